"""A server of PostgreSQL of one's own, on a free port, where its programs are installed."""

import contextlib
import glob
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

#: Name of the database's superuser, who needs no password from this machine.
OWNER = "keeper"


def program(name):
    """Path of one of PostgreSQL's programs; None where it is not installed."""
    there = sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))
    return there[-1] if there else shutil.which(name)


def missing():
    """Why no server can be started here; None where one can."""
    if not program("initdb") or not program("pg_ctl"):
        return "no server of PostgreSQL is installed (initdb and pg_ctl)"
    if os.name != "posix":
        return "servers of PostgreSQL are started on POSIX systems alone"
    try:
        import psycopg
    except ImportError:
        return "psycopg is not installed (pip install 'psycopg[binary]')"
    return None if psycopg else "never"


class Server:
    """A running server.

    Args:
        quick: whether it is made to start quickly; else its settings are PostgreSQL's own.

    Attributes:
        port: that it listens on, at 127.0.0.1.
    """

    def __init__(self, quick=True):
        # A path of its own: the socket's is at most 107 letters long, and another user must reach it.
        self._folder = Path(tempfile.mkdtemp(prefix="dpmcmc-pg-"))
        self._user = {}
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            nobody = pwd.getpwnam("nobody")
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        small = ("--no-sync", "--wal-segsize=1") if quick else ()
        self._do("initdb", "--auth=trust", *small, "--encoding=UTF8", "--locale=C", f"--username={OWNER}")
        settings = f"listen_addresses = '127.0.0.1'\nport = {self.port}\nunix_socket_directories = '{self._folder}'\n"
        settings += "shared_buffers = 16MB\n" if quick else ""
        version = int((self._folder / "data" / "PG_VERSION").read_text().split(".")[0])
        if quick and version >= 14 and sys.platform == "linux":
            settings += "recovery_init_sync_method = syncfs\n"  # a thousand files one by one take seconds
        with (self._folder / "data" / "postgresql.conf").open("a") as file:
            file.write(settings)
        self.start()

    def start(self):
        self._do("pg_ctl", "start", "-w", "-s", "-l", str(self._folder / "log"))

    def kill(self):
        """Stop it as a power cut does, without a last word to anybody."""
        self._do("pg_ctl", "stop", "-m", "immediate", "-s", "-w")

    def remove(self):
        with contextlib.suppress(subprocess.CalledProcessError):
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def url(self, user=OWNER, port=None, schema=""):
        mark = f"#{schema}" if schema else ""
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/postgres{mark}"

    def sql(self, *statements):
        """Rows of the last of some statements of the superuser."""
        import psycopg

        with psycopg.connect(self.url(), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def _do(self, name, *options):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
        subprocess.run(
            [program(name), "-D", str(self._folder / "data"), *options],
            check=True, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment, **self._user,
        )  # fmt: skip


def soon(condition, seconds=20.0):
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
