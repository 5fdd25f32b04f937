"""Draw the README's figure: run the cells of book/index.md and keep what they plot."""

from __future__ import annotations

from pathlib import Path

import jupytext
import matplotlib as mpl

ROOT = Path(__file__).parents[1]
FIGURE = ROOT / "book" / "_static" / "depth-and-context.svg"


def main() -> None:
    mpl.use("agg")
    import matplotlib.pyplot as plt

    def keep(*arguments: object, **options: object) -> None:
        plt.savefig(FIGURE, metadata={"Date": None})

    setattr(plt, "show", keep)  # noqa: B010
    namespace: dict[str, object] = {}
    for cell in jupytext.read(ROOT / "book" / "index.md").cells:
        if cell.cell_type == "code":
            exec(cell.source, namespace)
    print(f"Wrote {FIGURE.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
