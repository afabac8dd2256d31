"""Ctrl-C at any moment of a command is one sentence and exit code 130."""

import signal
import subprocess
import sys
import time

import pytest

from dpmcmc.engine import result, sizes
from dpmcmc.engine.kept_draws import KeptDraws
from dpmcmc.storage import checkpoint
from experiments.commands import command
from tests.engine.test_reservation import call, config, ledger, outcomes  # noqa: F401  # fixtures

#: Commands that import much, little, and pandas.
FACES = ("run adult", "verify nowhere", "data nowhere here --x a --y b")


@pytest.fixture(autouse=True)
def handlers_of_a_terminal():
    """Those that Python starts with; and none is left behind."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    signal.signal(signal.SIGINT, before)


def interrupt(*_):
    signal.raise_signal(signal.SIGINT)


def as_another_error(*_):
    try:
        interrupt()
    except KeyboardInterrupt:  # some libraries do this too
        raise RuntimeError("something went wrong") from None


@pytest.mark.parametrize("how", [interrupt, as_another_error])
def test_an_interrupt_reaches_the_command_wherever_it_comes(how, capsys):
    @command
    def main(argv):
        how()
        time.sleep(120)

    started = time.monotonic()
    assert main() == 130
    assert time.monotonic() - started < 60
    error = capsys.readouterr().err
    assert error.startswith("error: stopped by the user")
    assert error.count("\n") == 1


def test_a_command_is_stopped_while_it_is_imported():
    """Each face after another library has been imported."""
    running = []
    for at, face in enumerate(FACES):
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "dpmcmc", *face.split()],
            stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, pipesize=4096,  # it waits for its reader
        )  # fmt: skip
        for line in process.stderr:
            if line.rstrip().endswith("dpmcmc.cli.interrupt"):
                break
        for _ in range(20 + 150 * at):
            process.stderr.readline()
        process.send_signal(signal.SIGINT)
        running.append(process)
    for process in running:
        out, error = process.communicate()
        said = [line for line in error.splitlines() if not line.startswith("import time:")]
        assert process.returncode == 130
        assert len(said) == 1
        assert said[0].startswith("error: stopped by the user")
        assert out == ""


@pytest.mark.slow
def test_a_resumed_run_is_stopped_at_any_moment_and_goes_on(config, ledger, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 20)
    monkeypatch.setattr(checkpoint, "_OVERHEAD", 1e9)
    arguments = (config, "--out", tmp_path / "run")
    moments = [
        (KeptDraws, "add", interrupt),
        (checkpoint.Checkpoint, "begin", interrupt),
        (checkpoint.Checkpoint, "commit", interrupt),
        (result, "content", interrupt),
    ]
    for room, name, how in moments:
        with monkeypatch.context() as patch:

            def stopped(*given, real=getattr(room, name), how=how, **named):  # noqa: B008
                how()
                time.sleep(0.5)
                return real(*given, **named)

            patch.setattr(room, name, stopped)
            assert call(*arguments) == 130, name
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"--resume {tmp_path / 'run'}" in error
        arguments = ("--resume", tmp_path / "run")
    assert call(*arguments) == 0
    assert outcomes(ledger) == ["released"]
