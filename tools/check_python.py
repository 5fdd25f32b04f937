"""Refuse a Python that is too old, in words that any Python can say."""

import sys

if sys.version_info < (3, 11):
    sys.exit(
        "ictd needs Python 3.11 or newer; %s is %d.%d. Name another: make PYTHON=python3.12"
        % (sys.executable, sys.version_info[0], sys.version_info[1])
    )
