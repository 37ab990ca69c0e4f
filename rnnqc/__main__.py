"""`python -m rnnqc`."""

import sys

from rnnqc.cli import main

if __name__ == "__main__":
    sys.exit(main())
