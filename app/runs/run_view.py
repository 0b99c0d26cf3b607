"""What part of a run its page shows: the query string of `/runs/{id}`, checked as input."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from app.errors import FieldError, InvalidQuery

_CHOICES = {"scale": ("linear", "log"), "view": ("chart", "table")}
_MAX_NUMBER = 10**12


@dataclass(frozen=True, slots=True)
class RunView:
    """`first` and `last` zoom the chart to iterations, `page` is of its table; `line` (from 1) of log file `file`
    (from 0) places the log viewer; `iteration` is the chart point that a log line leads to. 0: not asked for.
    `amend` is a contract field that somebody wants to correct.
    """

    series: str = "step_time_ms"
    scale: str = "linear"
    view: str = "chart"
    first: int = 0
    last: int = 0
    page: int = 1
    iteration: int = 0
    file: int = 0
    line: int = 0
    amend: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Raises InvalidQuery naming the first field that means nothing."""
        given = {f.name: params[f.name].strip() for f in fields(cls) if params.get(f.name, "").strip()}
        values: dict[str, str | int] = {}
        for name, text in given.items():
            if name in ("series", "scale", "view", "amend"):
                if text not in _CHOICES.get(name, (text,)):
                    raise _invalid(name, f"must be one of {', '.join(_CHOICES[name])}")
                values[name] = text
            elif text.isascii() and text.isdigit() and len(text) <= 13 and int(text) <= _MAX_NUMBER:
                values[name] = int(text)
            else:
                raise _invalid(name, f"must be a whole number, not {text[:40]!r}")
        view = cls(**values)  # type: ignore[arg-type]
        if view.last and view.first > view.last:
            raise _invalid("last", "must not be before first")
        return replace(view, page=max(1, view.page))

    def query(self, **changes: str | int) -> str:
        """The query string with `changes` applied; what is as by default is left out."""
        changed = replace(self, **changes)  # type: ignore[arg-type]
        default = RunView()
        return urlencode(
            {f.name: value for f in fields(self) if (value := getattr(changed, f.name)) != getattr(default, f.name)}
        )


def _invalid(name: str, message: str) -> InvalidQuery:
    return InvalidQuery("The address of this run asks for what there is not.", (FieldError(name, message),))
