"""`python -m batchsieve <command>`: the command `batchsieve`."""

import sys

from batchsieve.cli import main

if __name__ == "__main__":
    sys.exit(main())
