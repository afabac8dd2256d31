"""Scripts in processes of their own that measure their memory."""

import subprocess
import sys
import textwrap

import pytest

# Not ``ru_maxrss``, which a process inherits from the one that started it: the worker of the tests holds gigabytes.
_PEAK = """
def peak_mib():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) >> 10
"""


def printed(script: str, **values: object) -> str:
    """The last word printed by a script, with ``peak_mib()`` at hand: the most MiB its process held up to now."""
    if sys.platform != "linux":
        pytest.skip("the peak of a process is read from /proc")
    done = subprocess.run(
        [sys.executable, "-c", _PEAK + textwrap.dedent(script.format(**values))],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1]
