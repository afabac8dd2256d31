"""Start several processes on this machine that share one run, and end them together.

    python scripts/launch_local.py --processes 2
    python scripts/launch_local.py --processes 2 -- dpmcmc run CONFIG --distributed --set run.mesh.data=2
    python scripts/launch_local.py --processes 2 -- python your_script.py     # which calls dpmcmc.processes.connect()

Every process is told who it is by DPMCMC_COORDINATOR, DPMCMC_PROCESSES and DPMCMC_PROCESS. Output of process 0 is
shown, and the errors of all. If one fails, the others are ended, and its exit code is returned. Whatever ends the
launcher ends them all with what they have started: Ctrl-C, any signal, SIGKILL as well. Ctrl-Z and SIGSTOP stop the
launcher alone. Without a command it runs configs/two_normals.yaml, its records split over the processes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
#: Seconds that the others have, after one has failed, to say why they end.
_GRACE = 5.0
#: Signals that do not end a process, that no process can heed, or that tell of a fault of its own.
_NOT_ASKED = {
    "SIGKILL",
    "SIGSTOP",
    "SIGCONT",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGCHLD",
    "SIGURG",
    "SIGWINCH",
    "SIGPIPE",
} | {"SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS", "SIGEMT", "SIGINFO"}
#: Reads lines "+N" and "-N" of process groups that begin and end; ends those that are left when the launcher has gone.
_GUARD = f"""
import os, signal, sys, time
groups = set()
for line in sys.stdin:
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for ask in signal.SIGTERM, signal.SIGKILL:
    for group in [*groups]:
        try:
            os.killpg(group, ask)
        except ProcessLookupError:
            groups.discard(group)
    time.sleep({_GRACE} if groups and ask == signal.SIGTERM else 0)
"""


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = argparse.ArgumentParser(description="Start several processes on this machine that share one run.")
    out.add_argument("--processes", type=int, default=2, metavar="N", help="how many (default 2)")
    out.add_argument("--timeout", type=float, metavar="SECONDS", help="end them all after so long (default: never)")
    out.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what each of them runs")
    return out


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def default_command(processes: int) -> list[str]:
    """The shipped example, its records split over the processes."""
    config = str(ROOT / "configs" / "two_normals.yaml")
    return [sys.executable, "-m", "dpmcmc.run", config, "--distributed", "--set", f"run.mesh.data={processes}"]


def launch(command: list[str], processes: int, timeout: float | None = None) -> int:
    """Run a command in so many processes.

    Args:
        command: and its arguments.
        processes: how many.
        timeout: seconds, or None.

    Returns:
        0 where all succeed; else the first failure's code, 124 after the timeout, 128 and the number of a
        signal that ended them, or 127 where the command cannot be started.
    """
    asked: list[int] = []
    for one in signal.valid_signals():
        named = getattr(one, "name", "")  # those for real time have none
        if named not in _NOT_ASKED and signal.getsignal(one) in (signal.SIG_DFL, signal.default_int_handler):
            # Noted and no more, so that no process is started and not known. Under nohup SIGHUP stays ignored.
            signal.signal(one, lambda number, frame: asked.append(number))
    guard = _Guard()
    readers: list[threading.Thread] = []
    who = {"DPMCMC_COORDINATOR": f"127.0.0.1:{free_port()}", "DPMCMC_PROCESSES": str(processes)}
    running: list[subprocess.Popen] = []
    try:
        for process in range(processes):
            environment = {**os.environ, **who, "DPMCMC_PROCESS": str(process)}
            shown = None if process == 0 else subprocess.DEVNULL
            # Each in a group of its own, so that what it started ends with it. It tells the guard itself, so that there
            # is no moment in which the launcher can be killed and the guard does not know of it.
            started = functools.partial(
                subprocess.Popen, command, env=environment, stdout=shown, stderr=subprocess.PIPE, start_new_session=True
            )
            running.append(started(preexec_fn=guard.begun))  # no thread is there yet
        for process, one_of_them in enumerate(running):
            readers.append(threading.Thread(target=_pass_on, args=(process, one_of_them.stderr), daemon=True))
            readers[-1].start()
        code = _wait(running, timeout, asked, guard)
    except OSError as error:
        print(f"{command[0]}: cannot be started ({error.strerror}); give a program that is there.", file=sys.stderr)
        code = 127
    finally:
        _end(running)
        guard.dismiss(running)
    for reader in readers:
        reader.join(timeout=_GRACE)
    return code


class _Guard:
    """A process that ends the others once the launcher has gone, however that was: its end closes a pipe."""

    def __init__(self) -> None:
        nobody = subprocess.DEVNULL
        self._process = subprocess.Popen(
            [sys.executable, "-c", _GUARD], stdin=subprocess.PIPE, stdout=nobody, stderr=nobody, start_new_session=True
        )
        assert self._process.stdin is not None
        self._pipe = self._process.stdin.fileno()  # closed in what is executed

    def begun(self) -> None:
        """Tell of the process that calls this."""
        os.write(self._pipe, b"+%d\n" % os.getpid())

    def ended(self, process: subprocess.Popen) -> None:
        """Tell of a process that has ended, whose number may come to be another's."""
        with contextlib.suppress(BrokenPipeError):  # somebody has ended the guard
            os.write(self._pipe, b"-%d\n" % process.pid)

    def dismiss(self, running: list[subprocess.Popen]) -> None:
        """End the guard, since all have ended."""
        for process in running:
            self.ended(process)
        self._process.communicate()


def _pass_on(process: int, errors: IO[bytes]) -> None:
    for line in errors:
        sys.stderr.write(f"[{process}] {line.decode(errors='replace')}")
        sys.stderr.flush()


def _wait(running: list[subprocess.Popen], timeout: float | None, asked: list[int], guard: _Guard) -> int:
    """Wait for all, for the first that fails and a little longer, or for a signal to end."""
    started = time.monotonic()
    told = [False for _ in running]
    failed: int | None = None
    until = float("inf") if timeout is None else started + timeout
    while True:
        codes = [process.poll() for process in running]
        for at, code in enumerate(codes):
            if code is not None and not told[at]:
                told[at] = True
                guard.ended(running[at])
        bad = [code for code in codes if code]
        if bad and failed is None:
            failed = bad[0]
            until = min(until, time.monotonic() + _GRACE)
        if None not in codes:
            return _exit_code(failed or 0)
        if asked:
            return 128 + asked[0]
        if time.monotonic() > until:
            return 124 if failed is None else _exit_code(failed)
        time.sleep(0.05)


def _exit_code(code: int) -> int:
    """A shell's code of a process that a signal ended."""
    return 128 - code if code < 0 else code


def _end(running: list[subprocess.Popen]) -> None:
    left = [process for process in running if process.poll() is None]
    for ask in (signal.SIGTERM, signal.SIGKILL):
        for process in left:
            with contextlib.suppress(ProcessLookupError):  # nothing of its group is left
                os.killpg(process.pid, ask)
        deadline = time.monotonic() + _GRACE
        while any(process.poll() is None for process in left) and time.monotonic() < deadline:
            time.sleep(0.05)


def main() -> int:
    arguments = parser().parse_args()
    if arguments.processes < 1:
        parser().error(f"--processes must be at least 1, got {arguments.processes}")
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    return launch(command or default_command(arguments.processes), arguments.processes, arguments.timeout)


if __name__ == "__main__":
    sys.exit(main())
