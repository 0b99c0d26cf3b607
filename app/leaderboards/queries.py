"""What a leaderboard can be asked for. The query string is its whole state, so it is checked as input."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self
from urllib.parse import urlencode

from app.domain.contract.fields import FIELDS, PRECISIONS
from app.domain.ranking.runs import LEVELS
from app.errors import FieldError, InvalidQuery, NotFound
from app.leaderboards.words import EP_SIZES, SEMANTIC_CLASSES
from app.storage.standings import DEFAULT_FLOOR, FilterOptions, StandingsFilters, is_key, no_key

RANKINGS = {
    "step_time": "step time",
    "tokens_per_s_per_gpu": "tokens/s/GPU",
    "tflops_per_gpu": "TFLOP/s/GPU",
    "memory_headroom": "memory headroom",
}
"""What a board can be ordered by. The first three are one test, so they give one order."""
BY_STEP_TIME = "step_time"
ROUTINGS = ("forced", "natural", "unknown", *FIELDS["routing_mode"].choices)
_DEFAULTS = {"rank": BY_STEP_TIME, "evidence": DEFAULT_FLOOR}
_CHOICES = {
    "rank": tuple(RANKINGS),
    "evidence": LEVELS,
    "routing": ROUTINGS,
    "semantic_class": tuple(SEMANTIC_CLASSES),
    "ep_size": tuple(EP_SIZES),
}
_MAX_TEXT = 200
_MOST_NAMED = 20
_REFUSED = "The address of this leaderboard asks for what there is not."


@dataclass(frozen=True, slots=True)
class BoardFilters:
    """Empty text means "any". `evidence` is the weakest level that counts; `stack` the first digits of a stack key."""

    rank: str = BY_STEP_TIME
    evidence: str = DEFAULT_FLOOR
    routing: str = ""
    semantic_class: str = ""
    precision: str = ""
    ep_size: str = ""
    project: str = ""
    stack: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Self:
        """Raises InvalidQuery naming each bad field."""
        given = {f.name: params.get(f.name, "").strip() for f in fields(cls)}
        errors = tuple(error for name, value in given.items() if (error := _check(name, value)))
        if errors:
            raise InvalidQuery(_REFUSED, errors)
        return cls(**{name: value for name, value in given.items() if value})

    def check(self, options: FilterOptions) -> None:
        """Raises NotFound, InvalidQuery on what no stack here has: an empty answer would look like no results."""
        precisions = tuple(dict.fromkeys((*PRECISIONS, *options.precisions)))
        if self.project and self.project not in options.projects:
            raise NotFound(
                f"No stack of the project {self.project[:60]!r} is ranked here. {_there_are(options.projects)}"
            )
        if self.precision and self.precision not in precisions:
            raise InvalidQuery(_REFUSED, (FieldError("precision", _not_one_of(precisions, self.precision)),))

    @property
    def active(self) -> dict[str, str]:
        """What narrows the page: how stacks are ordered does not."""
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) and f.name != "rank"}
        return {name: value for name, value in given.items() if value != _DEFAULTS.get(name)}

    def query(self, page: int = 1, **changes: str) -> str:
        """The query string with `changes` applied; what is as usual is left out, so that addresses stay short."""
        changed = replace(self, **changes)
        pairs = changed.active
        if changed.rank != BY_STEP_TIME:
            pairs["rank"] = changed.rank
        if page > 1:
            pairs["page"] = str(page)
        return urlencode(pairs)

    def without(self, name: str) -> str:
        """The query string with one filter taken away."""
        return replace(self, **{name: _DEFAULTS.get(name, "")}).query()

    @property
    def kept(self) -> StandingsFilters:
        return StandingsFilters(
            project=self.project,
            floor=self.evidence,
            routing=self.routing,
            semantic_class=self.semantic_class,
            precision=self.precision,
            ep_size=self.ep_size,
            stack=self.stack,
        )


def page_number(params: Mapping[str, str]) -> int:
    """`page` of a query string, from 1. Raises InvalidQuery when it is no such number."""
    text = params.get("page", "").strip() or "1"
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
        error = FieldError("page", f"must be a whole number from 1, not {text[:40]!r}")
        raise InvalidQuery(_REFUSED, (error,))
    return int(text)


def _check(name: str, value: str) -> FieldError | None:
    if name in _CHOICES and value and value not in _CHOICES[name]:
        return FieldError(name, _not_one_of(_CHOICES[name], value))
    if len(value) > _MAX_TEXT:
        return FieldError(name, f"is longer than {_MAX_TEXT} characters")
    # PostgreSQL refuses NUL in a text; no name holds any control character.
    if any(ord(c) < 32 for c in value):
        return FieldError(name, "holds a control character")
    if name == "stack" and value and not is_key(value):
        return FieldError(name, no_key(value))
    return None


def _not_one_of(names: Sequence[str], value: str) -> str:
    return f"must be one of {_listed(names)}, not {value[:40]!r}"


def _there_are(names: Sequence[str]) -> str:
    return f"There are: {_listed(names)}." if names else "There is none."


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")
