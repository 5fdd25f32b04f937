"""``python -m ictd`` is ``ictd``."""

import sys

from ictd.cli import main

if __name__ == "__main__":
    sys.exit(main())
