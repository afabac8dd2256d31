"""Pictures of a run: the same whether another process draws them or this one, and none is lost with that process."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="pictures are drawn beside a run on two cores"
)

PROGRAM = """
    import datetime, multiprocessing, os, signal, sys
    from pathlib import Path
    from dpmcmc.report import pictures
    from dpmcmc.storage.run_folder import RunFolder

    def folder(name):
        return RunFolder(Path(sys.argv[1]) / name, datetime.date(2026, 1, 2))

    def begun():
        import numpy as np
        some = pictures.Pictures()
        some.begin("temperature", "", np.linspace(1, 2, 50), np.full(50, 3.0), "a title", None)
        some.begin("traces", "Traces", {"w": np.ones((2, 9))}, (10, 2), "a title", "a note")
        return some

    def child():
        pictures.start_drawing()
        (one,) = multiprocessing.active_children()
        return one

    one = child()
    os.kill(one.pid, signal.SIGINT)
    assert list(begun().save(folder("beside"))) == ["Traces"]
    assert "matplotlib" not in sys.modules, "drawn here"
    one.join()
    pictures._drawer = None
    begun().save(folder("here"))
    assert "matplotlib" in sys.modules

    one = child()
    some = begun()
    one.kill()
    one.join()
    some.save(folder("killed"))

    one = child()
    some = pictures.Pictures()
    some.begin("no_such_picture", "")
    try:
        some.save(folder("missing"))
    except AttributeError as error:
        assert "no_such_picture" in str(error)
    else:
        raise AssertionError
    one.join()

    print(child().pid, flush=True)
    os._exit(3)  # as a command that is killed
"""


def test_pictures_are_the_same_beside_and_here_and_outlive_the_process_that_draws(tmp_path):
    program = textwrap.dedent(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=False, timeout=300
    )
    assert done.returncode == 3
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "beside" / "figures").iterdir()}
    assert sorted(drawn) == ["temperature.png", "traces.png"]
    for other in "here", "killed":
        assert {path.name: path.read_bytes() for path in (tmp_path / other / "figures").iterdir()} == drawn
    _ends(int(done.stdout))


def _ends(pid: int) -> None:
    """Wait until a process is gone, or is a zombie that nobody waits for."""
    for _ in range(600):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError("the process that draws outlives its command")
