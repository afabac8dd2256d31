/* Fails, or sends a signal, at the n-th system call that touches a folder; loaded by LD_PRELOAD (fault_sweep.py).

   fault_arm(folder, n, mode, value)   begins to count calls below the folder, the first of which is 1
       mode 0  count alone
       mode 1  the n-th call fails with errno = value
       mode 2  the n-th call and all after it fail: what is on the disk is what a kill would leave. Of a write that is
               the n-th the first half is made
       mode 3  the process gets the signal value before the n-th call
   fault_disarm()                      stops; returns how many calls were counted
   fault_place()                       name of the call that was met                                              */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t length;
static atomic_long count;
static atomic_int armed;
static long at;
static int mode, value;
static char place[64];

void fault_arm(const char *below, long n, int how, int what) {
    strncpy(folder, below, sizeof folder - 1);
    length = strlen(folder);
    at = n;
    mode = how;
    value = what;
    place[0] = 0;
    atomic_store(&count, 0);
    atomic_store(&armed, 1);
}

long fault_disarm(void) {
    atomic_store(&armed, 0);
    return atomic_load(&count);
}

const char *fault_place(void) { return place; }

static int below(const char *path) { return strncmp(path, folder, length) == 0 && (path[length] == '/' || !path[length]); }

static int below_handle(int handle) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below(path);
}

static int below_at(int handle, const char *path) {
    if (path[0] == '/') return below(path);
    if (handle != AT_FDCWD) return below_handle(handle);
    char here[PATH_MAX];
    return getcwd(here, sizeof here) && below(here);
}

/* 0: make the call; 1: fail; 2: fail after half of it. */
static int met(int touches, const char *name) {
    if (!touches) return 0;
    long n = atomic_fetch_add(&count, 1) + 1;
    if (n == at) strncpy(place, name, sizeof place - 1);
    if (mode == 1 && n == at) { errno = value; return 1; }
    if (mode == 2 && n >= at) { errno = value; return n == at ? 2 : 1; }
    if (mode == 3 && n == at) kill(getpid(), value);
    return 0;
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)
#define FAULT(touches, name) (atomic_load(&armed) && met(touches, name))

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        va_list more; va_start(more, flags); mode_t bits = va_arg(more, mode_t); va_end(more); \
        if (FAULT(below_at(AT_FDCWD, path), "open")) return -1; \
        return real(path, flags, bits); \
    }
OPEN(open)
OPEN(open64)
#define OPENAT(name) \
    int name(int handle, const char *path, int flags, ...) { \
        REAL(int, name, int, const char *, int, ...); \
        va_list more; va_start(more, flags); mode_t bits = va_arg(more, mode_t); va_end(more); \
        if (FAULT(below_at(handle, path), "openat")) return -1; \
        return real(handle, path, flags, bits); \
    }
OPENAT(openat)
OPENAT(openat64)

ssize_t write(int handle, const void *bytes, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (atomic_load(&armed)) {
        int how = met(below_handle(handle), "write");
        if (how == 2) { int before = errno; if (real(handle, bytes, size / 2) < 0) {} errno = before; }
        if (how) return -1;
    }
    return real(handle, bytes, size);
}
#define PWRITE(name) \
    ssize_t name(int handle, const void *bytes, size_t size, off_t start) { \
        REAL(ssize_t, name, int, const void *, size_t, off_t); \
        if (FAULT(below_handle(handle), "pwrite")) return -1; \
        return real(handle, bytes, size, start); \
    }
PWRITE(pwrite)
PWRITE(pwrite64)
#define OF_HANDLE(name) \
    int name(int handle) { REAL(int, name, int); return FAULT(below_handle(handle), #name) ? -1 : real(handle); }
OF_HANDLE(fsync)
OF_HANDLE(fdatasync)
#define TRUNCATE(name) \
    int name(int handle, off_t size) { \
        REAL(int, name, int, off_t); \
        return FAULT(below_handle(handle), "ftruncate") ? -1 : real(handle, size); \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)
int flock(int handle, int how) {
    REAL(int, flock, int, int);
    return FAULT(below_handle(handle), "flock") ? -1 : real(handle, how);
}
#define OF_TWO(name) \
    int name(const char *from, const char *to) { \
        REAL(int, name, const char *, const char *); \
        return FAULT(below_at(AT_FDCWD, from) || below_at(AT_FDCWD, to), #name) ? -1 : real(from, to); \
    }
OF_TWO(rename)
OF_TWO(link)
int renameat(int a, const char *from, int b, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    return FAULT(below_at(a, from) || below_at(b, to), "renameat") ? -1 : real(a, from, b, to);
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    return FAULT(below_at(a, from) || below_at(b, to), "linkat") ? -1 : real(a, from, b, to, flags);
}
#define OF_PATH(name) \
    int name(const char *path) { \
        REAL(int, name, const char *); \
        return FAULT(below_at(AT_FDCWD, path), #name) ? -1 : real(path); \
    }
OF_PATH(unlink)
OF_PATH(rmdir)
int unlinkat(int handle, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    return FAULT(below_at(handle, path), "unlinkat") ? -1 : real(handle, path, flags);
}
int mkdir(const char *path, mode_t bits) {
    REAL(int, mkdir, const char *, mode_t);
    return FAULT(below_at(AT_FDCWD, path), "mkdir") ? -1 : real(path, bits);
}
int mkdirat(int handle, const char *path, mode_t bits) {
    REAL(int, mkdirat, int, const char *, mode_t);
    return FAULT(below_at(handle, path), "mkdir") ? -1 : real(handle, path, bits);
}
int chmod(const char *path, mode_t bits) {
    REAL(int, chmod, const char *, mode_t);
    return FAULT(below_at(AT_FDCWD, path), "chmod") ? -1 : real(path, bits);
}
int fchmod(int handle, mode_t bits) {
    REAL(int, fchmod, int, mode_t);
    return FAULT(below_handle(handle), "fchmod") ? -1 : real(handle, bits);
}
