"""``python -m dpmcmc.run CONFIG``: the name that ``dpmcmc run CONFIG`` had first, and keeps."""

import sys

from dpmcmc.cli import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
