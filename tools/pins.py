"""Write the versions in this environment to constraints.txt."""

import subprocess
import sys
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
HEAD = """\
# What the book was built with: exact versions, for Python 3.11 and newer. Written by `make pins`.
# A constraint installs nothing by itself, so the packages of one system do no harm on another.
# torch carries no +cpu or +cu…, so that either build of it fits.
"""


def main() -> None:
    freeze = [sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable"]
    frozen = subprocess.run(
        [*freeze, "--exclude", "pip"], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    pins = [line.partition("+")[0] for line in frozen]
    CONSTRAINTS.write_text(HEAD + "".join(f"{pin}\n" for pin in pins), encoding="utf-8")


if __name__ == "__main__":
    main()
