"""``python -m dpmcmc.run CONFIG``: the name that ``dpmcmc run CONFIG`` had first, and keeps."""

import sys

if __name__ == "__main__":
    from dpmcmc.cli.interrupt import while_importing

    while_importing()  # before what takes seconds to import

    from dpmcmc.cli.commands import main

    sys.exit(main(["run", *sys.argv[1:]]))
