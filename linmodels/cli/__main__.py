"""`python -m linmodels.cli`."""

import sys

from linmodels.cli import main

if __name__ == "__main__":
    sys.exit(main())
