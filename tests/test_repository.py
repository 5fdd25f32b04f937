"""What several files of the repository say of the same thing is the same."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import ictd
from ictd.claims import registry

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
# Addresses of package indexes and registries: the project names none, whoever installs it chooses.
REGISTRY = re.compile(
    r"https?://[^\s\"')>]*\b(?:"
    r"registry\.|files\.pythonhosted|pypi\.org/simple|download\.pytorch|conda\.anaconda|"
    r"[a-z.]*mirror[a-z.]*/)"
    r"|\"resolved\":"
)


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    split = (line.split("==") for line in lines if not line.startswith("#"))
    return {normal(name): version for name, version in split}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    named = [Requirement(r) for group in (PROJECT["dependencies"], *extras) for r in group]
    return [r for r in named if r.name != PROJECT["name"]]  # one extra asks for another


# --- Dependencies


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_every_dependency_is_pinned_within_its_range(requirement: Requirement) -> None:
    assert requirement.specifier.contains(pins()[normal(requirement.name)])


def test_the_pins_fit_every_build_and_leave_the_project_out() -> None:
    assert "ictd" not in pins()
    assert pins()["torch"] == "2.13.0"
    assert not [version for version in pins().values() if "+" in version]


def conda_pins(name: str) -> dict[str, str]:
    packages = [p for p in load(name)["dependencies"] if isinstance(p, str) and "=" in p]
    return dict(package.split("=") for package in packages)


def test_conda_takes_the_pinned_versions() -> None:
    versions = conda_pins("environment.yml")
    assert "cuda" not in json.dumps(load("environment.yml"))
    assert versions.pop("pytorch-cpu") == pins()["torch"]
    assert f"Programming Language :: Python :: {versions.pop('python')}" in PROJECT["classifiers"]
    assert versions == {name: pins()[name] for name in versions}


def test_conda_leaves_the_rest_to_pip_under_the_constraints() -> None:
    *_, last = load("environment.yml")["dependencies"]
    assert last == {"pip": ["-c constraints.txt", "-e .[book,gym]"]}
    assert {"book", "gym"} <= set(PROJECT["optional-dependencies"])


def test_binder_has_the_same_environment() -> None:
    ours, binders = load("environment.yml"), load(".binder/environment.yml")
    assert binders == ours | {"dependencies": ours["dependencies"][:-1]}
    post_build = (ROOT / ".binder" / "postBuild").read_text(encoding="utf-8")
    assert "-c constraints.txt -e '.[book,gym]'" in post_build
    assert "jupytext-config set-default-viewer" in post_build


def test_lab_opens_chapters_as_notebooks() -> None:
    settings = json.loads(
        (ROOT / ".jupyter/labconfig/default_setting_overrides.json").read_text(encoding="utf-8")
    )
    viewers = settings["@jupyterlab/docmanager-extension:plugin"]["defaultViewers"]
    assert viewers["markdown"] == viewers["myst"] == "Jupytext Notebook"


# --- Files


def tracked() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listed.splitlines() if (path := ROOT / name).is_file()]


def test_no_file_names_a_registry() -> None:
    faults = []
    for path in tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        faults += [f"{path}: {match[0]}" for match in REGISTRY.finditer(text)]
    assert faults == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("https://" + "registry.example.org/x", True),
        ("https://" + "download.pytorch.org/whl/cpu", True),
        ("https://pytorch.org/get-started/locally/", False),
    ],
)
def test_the_check_sees_registries(text: str, named: bool) -> None:
    assert bool(REGISTRY.search(text)) is named


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_make_or_plain_commands(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert workflow["permissions"]
    for job in workflow["jobs"].values():
        assert "runs-on" in job or job["uses"].startswith("./.github/workflows/")
        for step in job.get("steps", []):
            assert ("uses" in step) != ("run" in step)
            called = re.search(r"^make (\w+)", step.get("run", ""))
            assert called is None or called[1] in targets
    if "TORCH_INDEX" in workflow.get("env", {}):
        assert workflow["env"]["TORCH_INDEX"] == "${{ vars.TORCH_INDEX }}"


def test_the_workflows_test_every_python_that_is_promised() -> None:
    matrix = load(".github/workflows/check.yml")["jobs"]["tests"]["strategy"]["matrix"]
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: Python :: 3." in c]
    assert matrix["python-version"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_make_help_lists_every_target() -> None:
    said = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    assert {line.split()[0] for line in said.stdout.splitlines()} == set(phony[1].split())


# --- Results and their tests


def test_tests_of_results_name_a_claim() -> None:
    """What the registry of claims holds, test_claims.py compares with the book, and runs."""
    pattern = r"^\s*@?pytest\.mark\.claim\(\s*\"([^\"]+)\"|^\w+ = pytest\.mark\.claim\(\"([^\"]+)\""
    texts = (module.read_text("utf-8") for module in (ROOT / "tests").glob("test_*.py"))
    found = {
        label
        for text in texts
        for pair in re.findall(pattern, text, re.MULTILINE)
        for label in pair
        if label
    }
    assert len(found) > 30
    assert found - registry().keys() == set()


# --- The package's public names

PUBLIC = sorted(ictd.__all__)
public_name = pytest.mark.parametrize("name", PUBLIC)


def methods(cls: type) -> dict[str, Any]:
    """The class's own public methods; a module's forward is described with the module."""
    return {
        f"{cls.__name__}.{name}": method
        for name, method in vars(cls).items()
        if inspect.isfunction(method) and not name.startswith("_") and name != "forward"
    }


def parameters(thing: Any) -> list[str]:
    """The names of what is passed, without self and without what is only passed on."""
    named = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    found = inspect.signature(thing).parameters.values()
    return [p.name for p in found if p.kind not in named and p.name != "self"]


def left_out(name: str, thing: Any) -> list[str]:
    """What the docstring of a function or a class does not say."""
    text = inspect.getdoc(thing) or ""
    said = [re.search(rf"^ +{p}(?: \([^)]*\))?:", text, re.MULTILINE) for p in parameters(thing)]
    missing = [p for p, found in zip(parameters(thing), said, strict=True) if not found]
    returns = not inspect.isclass(thing) and inspect.signature(thing).return_annotation != "None"
    if returns and not re.search(r"^(?:Returns|Yields):", text, re.MULTILINE):
        missing.append("Returns")
    raises = inspect.isfunction(thing) and "raise " in inspect.getsource(thing)
    if raises and not re.search(r"^Raises:", text, re.MULTILINE):
        missing.append("Raises")
    return [f"{name}: {part}" for part in missing]


@public_name
def test_every_public_name_is_documented(name: str) -> None:
    thing = getattr(ictd, name)
    own = methods(thing) if inspect.isclass(thing) else {}
    parts = {name: thing, **own}
    assert [fault for part in parts.items() for fault in left_out(*part)] == []
    assert any(">>> " in (inspect.getdoc(part) or "") for part in parts.values())


def test_the_check_of_docstrings_sees_what_is_left_out() -> None:
    def complete(x: float) -> float:
        """Do.

        Args:
            x: A number.

        Returns:
            The same.
        """
        return x

    def sparse(x: float) -> float:
        """Do."""
        if x < 0:
            raise ValueError
        return x

    assert left_out("complete", complete) == []
    assert left_out("sparse", sparse) == ["sparse: x", "sparse: Returns", "sparse: Raises"]


@public_name
def test_every_public_name_is_on_the_api_page(name: str, site: Path) -> None:
    page = (site / "book" / "api.html").read_text(encoding="utf-8")
    assert f'id="ictd.{name}"' in page
    assert f"_modules/{getattr(ictd, name).__module__.replace('.', '/')}.html" in page
