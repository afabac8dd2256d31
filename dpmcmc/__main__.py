"""``python -m dpmcmc COMMAND``."""

import sys

from dpmcmc.cli.interrupt import while_importing

while_importing()  # before what takes seconds to import

from dpmcmc.cli.commands import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
