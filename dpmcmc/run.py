"""``python -m dpmcmc.run CONFIG``: the name that ``dpmcmc run CONFIG`` had first, and keeps."""

import sys

if __name__ == "__main__":
    from dpmcmc.__main__ import main

    sys.argv.insert(1, "run")
    sys.exit(main())
