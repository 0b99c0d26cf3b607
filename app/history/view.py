"""What part of a history its page shows: the query string of `/history/{stack}`, checked as input."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from app.errors import FieldError, InvalidQuery
from app.web.numbers import UNITS

ORDER, DATE = "order", "date"
_CHOICES: Mapping[str, tuple[str, ...]] = {"metric": tuple(UNITS), "axis": (ORDER, DATE)}
_NUMBERS = ("first", "last", "page")
_MOST_DIGITS = 18
"""Numbers of runs fit in 63 bits."""
_SHORTEST_KEY = 8
_HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True, slots=True)
class HistoryView:
    """`config`: the first digits of a config key, empty for all configurations. `first` and `last`: numbers of the runs
    that the zoom begins and ends with, so that an address shows the same runs when later ones came; 0 is not asked for.
    `page` is of the table.
    """

    config: str = ""
    metric: str = "step_time_ms"
    axis: str = ORDER
    first: int = 0
    last: int = 0
    page: int = 1

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Raises InvalidQuery naming the first field that means nothing."""
        given = {f.name: text for f in fields(cls) if (text := params.get(f.name, "").strip())}
        values: dict[str, str | int] = {}
        for name, text in given.items():
            if name in _NUMBERS:
                if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
                    raise refused(name, f"must be a whole number, not {text[:40]!r}")
                values[name] = int(text)
            else:
                if text not in _CHOICES.get(name, (text,)):
                    raise refused(name, f"must be one of {', '.join(_CHOICES[name])}, not {text[:40]!r}")
                values[name] = text
        view = cls(**values)  # type: ignore[arg-type]
        if view.config and not is_key(view.config):
            raise refused("config", f"must be at least {_SHORTEST_KEY} digits of a config key")
        return replace(view, page=max(1, view.page))

    @property
    def zoomed(self) -> bool:
        return bool(self.first or self.last)

    def query(self, **changes: str | int) -> str:
        """The query string with `changes` applied; what is as by default is left out."""
        changed = replace(self, **changes)  # type: ignore[arg-type]
        default = HistoryView()
        return urlencode(
            {f.name: value for f in fields(self) if (value := getattr(changed, f.name)) != getattr(default, f.name)}
        )


def is_key(text: str) -> bool:
    """Whether these may be the first digits of a key, enough of them to mean one."""
    return _SHORTEST_KEY <= len(text) <= 64 and set(text) <= _HEX


def refused(name: str, message: str) -> InvalidQuery:
    return InvalidQuery("The address of this history asks for what there is not.", (FieldError(name, message),))
