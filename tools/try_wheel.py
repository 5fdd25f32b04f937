"""Install the wheel from dist/ into a new environment, outside the checkout, and use it there.

Arguments go to pip: constraints, say, or an index.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

DIST = Path(__file__).parents[1] / "dist"
USE = """
import importlib.metadata, pathlib, ictd
folder = pathlib.Path(ictd.__file__).parent
assert folder.is_relative_to(pathlib.Path.cwd()), folder
assert (folder / "py.typed").is_file()
assert importlib.metadata.version("ictd") == ictd.__version__
print("ictd", ictd.__version__, "works from the wheel;", len(ictd.__all__), "public names")
"""
TYPED = "import ictd\nreveal_type(ictd.boyan_chain(3, discount=0.9, generator=None))\n"


def main() -> None:
    (wheel,) = DIST.resolve().glob("*.whl")
    options = [str(Path(o).resolve()) if Path(o).is_file() else o for o in sys.argv[1:]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / "bin" / "python"
        install: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            *options,
            wheel,
            "mypy",
        ]
        subprocess.run(install, cwd=folder, check=True)
        subprocess.run([python, "-I", "-c", USE], cwd=folder, check=True)
        program = folder / "env" / "bin" / "ictd"
        verify: list[str | Path] = [program, "verify", "--claim", "thm-equivalence"]
        subprocess.run(verify, cwd=folder, check=True)
        (folder / "use.py").write_text(TYPED, encoding="utf-8")
        mypy: list[str | Path] = [python, "-m", "mypy", "use.py"]
        said = subprocess.run(mypy, cwd=folder, capture_output=True, text=True).stdout
        print(said)
        if 'Revealed type is "ictd.mrp.MarkovRewardProcess"' not in said:
            sys.exit("A type checker does not see the types of the package.")


if __name__ == "__main__":
    main()
