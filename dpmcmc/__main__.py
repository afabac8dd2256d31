"""``python -m dpmcmc COMMAND``, and what the installed command ``dpmcmc`` calls."""

import gc
import os
import sys

from dpmcmc.cli.interrupt import leave_while_importing
from dpmcmc.cli.unread_output import outlive_readers


def main() -> int:
    """Run the command line of this process."""
    for library in ("OPENBLAS", "MKL", "BLIS"):  # `storage/blas.py`; before there is one
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    flags = os.environ.get("XLA_FLAGS", "")
    if "xla_gpu_deterministic_ops" not in flags:  # a run that was stopped makes the same bits again, on a GPU too
        os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_deterministic_ops=true".strip()
    leave_while_importing()  # before what takes seconds to import
    if sys.argv[1:2] == ["run"] and not {"-h", "--help"} & {*sys.argv}:
        from dpmcmc.report.pictures import start_drawing

        start_drawing()  # before there are threads
    outlive_readers()
    gc.disable()  # until the command is loaded (`cli/commands.py`): imports make no garbage to look for

    from dpmcmc.cli.commands import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
