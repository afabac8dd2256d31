"""``python -m dpmcmc COMMAND``."""

import sys

from dpmcmc.cli import main

if __name__ == "__main__":
    sys.exit(main())
