"""``python -m dpmcmc.run CONFIG``: the name that ``dpmcmc run CONFIG`` had first, and keeps."""

import sys

from dpmcmc.cli.interrupt import while_importing

while_importing()  # before what takes seconds to import

from dpmcmc.cli.commands import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
