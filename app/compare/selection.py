"""Which runs stand on which side, and what of them is shown: the query string of `/compare`, checked as input."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, Self
from urllib.parse import urlencode

from app.errors import FieldError, InvalidQuery

Side = Literal["a", "b"]
MOST_RUNS = 20
"""A verdict takes no more baseline runs than these, and nobody reads more beside each other."""
_MAX_ID = 2**31 - 1
_MAX_TEXT = 300
_CHOICES = {"view": ("chart", "table"), "pick": ("", "a", "b")}
_TITLE = "The address of this comparison asks for what there is not."


@dataclass(frozen=True, slots=True)
class Selection:
    """`a` is the baseline, `b` the candidate: numbers of runs. `series`, `view` and `page` are of the chart.

    `pick` is the side for which a run is being chosen, `q` what is looked for.
    """

    a: tuple[int, ...] = ()
    b: tuple[int, ...] = ()
    series: str = "step_time_ms"
    view: str = "chart"
    page: int = 1
    pick: str = ""
    q: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Raises InvalidQuery naming each field that means nothing."""
        errors: list[FieldError] = []
        a, b = (_numbers(side, params.get(side, ""), errors) for side in ("a", "b"))
        if both := sorted(set(a) & set(b)):
            named = ", ".join(f"#{number}" for number in both)
            errors.append(FieldError("b", f"holds {named}, as `a` does: a run cannot be compared with itself"))
        texts = {name: params.get(name, "").strip() for name in ("series", "view", "pick", "q")}
        for name, text in texts.items():
            if name in _CHOICES and text and text not in _CHOICES[name]:
                errors.append(FieldError(name, f"must be one of {', '.join(filter(None, _CHOICES[name]))}"))
            if len(text) > _MAX_TEXT or any(ord(c) < 32 for c in text):
                errors.append(FieldError(name, "is too long, or holds a control character"))
        page = params.get("page", "").strip() or "1"
        if not (page.isascii() and page.isdigit() and 0 < len(page) <= 9):
            errors.append(FieldError("page", "must be a whole number from 1"))
        if errors:
            raise InvalidQuery(_TITLE, tuple(errors))
        given = {name: text for name, text in texts.items() if text}
        return cls(a=a, b=b, page=max(1, int(page)), **given)

    @property
    def runs(self) -> tuple[int, ...]:
        return (*self.a, *self.b)

    @property
    def complete(self) -> bool:
        """Something stands on both sides."""
        return bool(self.a and self.b)

    def side(self, name: Side) -> tuple[int, ...]:
        return self.a if name == "a" else self.b

    def query(self, **changes: object) -> str:
        """The query string with `changes` applied; what is as by default is left out."""
        changed, default = replace(self, **changes), Selection()  # type: ignore[arg-type]
        pairs = {
            field.name: ",".join(map(str, value)) if isinstance(value, tuple) else value
            for field in fields(self)
            if (value := getattr(changed, field.name)) != getattr(default, field.name)
        }
        return urlencode(pairs, safe=",")

    def address(self, **changes: object) -> str:
        query = self.query(**changes)
        return f"/compare?{query}" if query else "/compare"

    def swapped(self) -> str:
        return self.address(a=self.b, b=self.a, pick="", q="")

    def without(self, side: Side, run: int) -> str:
        return self.address(**{side: tuple(one for one in self.side(side) if one != run)})

    def instead(self, side: Side, run: int) -> str:
        """The address with `run` alone on `side`."""
        return self.address(**{side: (run,)}, pick="", q="")

    def added(self, side: Side, run: int) -> str:
        return self.address(**{side: (*self.side(side), run)}, pick="", q="")


def _numbers(side: str, text: str, errors: list[FieldError]) -> tuple[int, ...]:
    """Numbers of runs, separated by commas; each may have its `#`. Named twice is named once."""
    found: list[int] = []
    for word in text.split(","):
        number = word.strip().removeprefix("#")
        if not number:
            continue
        if not (number.isascii() and number.isdigit() and len(number) <= 10 and 0 < int(number) <= _MAX_ID):
            errors.append(FieldError(side, f"must be numbers of runs, separated by commas, not {word.strip()[:40]!r}"))
            return ()
        found.append(int(number))
    distinct = tuple(dict.fromkeys(found))
    if len(distinct) > MOST_RUNS:
        errors.append(FieldError(side, f"names {len(distinct)} runs; {MOST_RUNS} are the most"))
        return ()
    return distinct
