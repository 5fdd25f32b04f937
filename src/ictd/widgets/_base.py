"""What every explorer has: settings, what is shown, a picture for where no JavaScript runs."""

from __future__ import annotations

import io
import math
import re
from importlib.resources import files
from typing import Any, ClassVar, TypeVar

import anywidget
import traitlets
from matplotlib.figure import Figure

from ictd import plotting

__all__ = ["Explorer", "Float", "Int", "setting"]

_FOLDER = files("ictd.widgets") / "js"
_Trait = TypeVar("_Trait", bound="traitlets.TraitType[Any, Any]")


class Float(traitlets.Float[float, int | float]):
    """A number that a setting may be: traitlets lets NaN pass every range, and bools be numbers."""

    info_text = "a number"

    def validate(self, obj: Any, value: Any) -> float:
        if isinstance(value, bool) or value != value:
            self.error(obj, value)
        found: float = super().validate(obj, value)
        return found


class Int(traitlets.Int[int, int]):
    """A number that a setting may be, likewise."""

    info_text = "an integer"

    def validate(self, obj: Any, value: Any) -> int:
        if isinstance(value, bool):
            self.error(obj, value)
        found: int = super().validate(obj, value)
        return found


def setting(trait: _Trait, label: str | None = None, **how: Any) -> _Trait:
    """Make a trait a setting of an explorer: the page follows it, and it follows the page.

    Args:
        trait: A number with ``min`` and ``max`` becomes a slider, an ``Enum`` a list to choose
            from, a ``Bool`` a box to tick.
        label: What stands at the control. None: no control; the explorer's JavaScript sets it.
        **how: ``step`` of a slider, ``log=True`` for a logarithmic one, ``decimals`` of the number
            beside it, ``options``, the text of each value of an ``Enum``.

    Returns:
        The trait itself.
    """
    trait.tag(sync=True, setting=True, label=label, **how)
    return trait


def assemble(name: str) -> str:
    """Join the module ``js/<name>.js`` with those it imports, so that it needs no other file."""
    parts = [(_FOLDER / f"{part}.js").read_text("utf-8") for part in ("numerics", "controls", name)]
    library = [re.sub(r"^export (?=const|function)", "", part, flags=re.M) for part in parts[:2]]
    return re.sub(
        r'^import \{[^}]*\} from "\./\w+\.js";\n', "", "\n".join([*library, parts[2]]), flags=re.M
    )


def describe_control(name: str, trait: traitlets.TraitType[Any, Any]) -> dict[str, Any]:
    """What the page must know to draw the control of a setting."""
    spec: dict[str, Any] = {"name": name, "label": trait.metadata["label"]}
    if isinstance(trait, traitlets.Bool):
        return {**spec, "kind": "check"}
    if isinstance(trait, traitlets.Enum):
        texts = trait.metadata.get("options", {})
        options = [[value, texts.get(value, value)] for value in trait.values or ()]
        return {**spec, "kind": "select", "options": options}
    if not isinstance(trait, traitlets.Int | traitlets.Float):
        raise TypeError(f"{name}: expected a number, an Enum or a Bool to have a control")
    step = trait.metadata.get("step", 1)
    decimals = trait.metadata.get("decimals", max(0, math.ceil(-math.log10(step) - 1e-9)))
    ends = {"min": trait.min, "max": trait.max, "step": step, "decimals": decimals}
    return {**spec, "kind": "range", "log": trait.metadata.get("log", False), **ends}


class Explorer(anywidget.AnyWidget):
    """Something to touch: native controls, and a drawing that follows them.

    The browser computes and draws, so that it works without a kernel as well. With one, every
    setting is a trait that Python reads and sets, and ``shown`` holds what the page displays.

    A subclass names its JavaScript (``script``) and its heading (``title``), defines its settings
    as traits made by ``setting``, and the methods :meth:`compute` and :meth:`draw`.
    """

    script: ClassVar[str]
    title: ClassVar[str]

    shown = traitlets.Dict(read_only=True).tag(sync=True)
    _settings = traitlets.List(traitlets.Unicode()).tag(sync=True)
    _controls = traitlets.List(traitlets.Dict()).tag(sync=True)
    _title = traitlets.Unicode().tag(sync=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "script" in cls.__dict__:  # not in the classes that adding traits makes
            cls._esm = assemble(cls.script)
            cls._css = (_FOLDER / "explorer.css").read_text("utf-8")
        super().__init_subclass__(**kwargs)

    def __init__(self, **settings: Any) -> None:
        known = self._known()
        unknown = sorted(set(settings) - set(known) - {"layout"})
        if unknown:
            raise TypeError(f"{unknown[0]}: expected a setting, one of {', '.join(sorted(known))}")
        controls = [
            describe_control(name, trait)
            for name, trait in known.items()
            if trait.metadata["label"]
        ]
        super().__init__(_settings=list(known), _controls=controls, _title=self.title, **settings)

    @classmethod
    def _known(cls) -> dict[str, traitlets.TraitType[Any, Any]]:
        """The settings, in the order in which the class defines them."""
        known = cls.class_traits(setting=True)
        return {name: known[name] for base in cls.__mro__ for name in vars(base) if name in known}

    def settings(self) -> dict[str, Any]:
        """Every setting by name, as it is now."""
        return {name: getattr(self, name) for name in self._settings}

    def compute(self) -> dict[str, Any]:
        """Compute what the page shows for these settings, by the package's own functions.

        Returns:
            Numbers and nested lists, under the names that ``shown`` has.
        """
        raise NotImplementedError

    def draw(self, figure: Figure) -> None:
        """Draw what the page shows for these settings into an empty figure."""
        raise NotImplementedError

    def picture(self) -> str:
        """Draw the picture that stands in where no JavaScript runs.

        Returns:
            What :meth:`draw` draws, in the style of the book, as an SVG document.
        """
        buffer = io.StringIO()
        with plotting.style():
            figure = Figure(figsize=(7.0, 3.6))
            self.draw(figure)
            figure.savefig(buffer, format="svg", metadata={"Date": None})
        return buffer.getvalue()

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Show the widget; programs that cannot show the picture."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if bundle is None:
            return None
        data, metadata = bundle
        return {**data, "image/svg+xml": self.picture()}, metadata
