"""The Python that README and pages show outside of cells runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
FILES = ("README.md", "book/how-to-run.md")


def snippets(name: str) -> list[str]:
    """What stands between fences that say `python`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


def run(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, "snippet", "exec"), names)
    return names


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=f"{name}-{i}")
        for name in FILES
        for i, code in enumerate(snippets(name))
    ],
)
def test_a_snippet_runs(code: str) -> None:
    assert run(code).keys() > {"__builtins__"}


def test_ones_own_record_ends_at_the_values_of_its_chain() -> None:
    (code,) = [code for code in snippets("book/how-to-run.md") if "from_episodes" in code]
    names = run(code)
    states, rewards = names["observations"][0].argmax(-1).tolist(), names["rewards"][0].tolist()
    system, mean = torch.zeros(3, 3), torch.zeros(3)
    for state, reward, onward in zip(states, rewards, states[1:], strict=False):
        system[state, state] += 1
        system[state, onward] -= 0.9
        mean[state] += reward
    expected = torch.linalg.solve(system, mean)
    # 80 layers with a factor of .9 each, from values of about 35.
    torch.testing.assert_close(names["values"], expected, rtol=0, atol=0.02)
    torch.testing.assert_close(names["middle"].flip(0), expected)
    assert names["states"].tolist() == torch.eye(3).flip(0).tolist()
    report = names["report"]
    assert report.holds[report.conditions.index("diagonality")]
