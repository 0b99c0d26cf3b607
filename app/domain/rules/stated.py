"""Facts that users may state about a run: profile measurements, launch options, packages of the container.

Contract fields are stated separately (`domain/contract/statements.py`). Derived facts and facts that this service
computes cannot be stated.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import yaml

from app.domain.contract.statements import TAKE_BACK
from app.domain.numbers import gain_change
from app.domain.rules.evidence import LEVEL_NAMES, OwnResult
from app.domain.rules.facts import FACTS, Fact, typed
from app.domain.rules.rule import Source
from app.errors import FieldError

MAX_TEXT = 500
_JUDGED = frozenset(
    (
        *(
            "unknown_fields",
            "unknown_names",
            "is_baseline",
            "evidence_level",
            "full_length_lacks",
            "semantic_class",
            "fair_for_timing",
            "framework",
        ),
        *("steps_done", "window", "window_first", "window_last", "unsteady_because", "fits"),
        *("step_s", "tokens_s_gpu", "tflops_gpu"),
    )
)
"""Facts that this service computes by rules shared by all runs."""
STATEABLE: Mapping[str, Fact] = {
    name: fact
    for name, fact in FACTS.items()
    if fact.section in ("log", "profile", "stated", "asked") and name not in _JUDGED
}
CHOICES: Mapping[str, tuple[str, ...]] = {
    "oom_phase": ("setup", "warmup", "steady"),
    "installed_flex_backends": ("deepep", "hybridep", "ncclep"),
    "requested_dispatcher": ("allgather", "alltoall", "deepep", "hybridep", "ncclep"),
    "resolved_dispatcher": ("allgather", "alltoall", "deepep", "hybridep", "ncclep"),
    "router_score_function": ("softmax", "sigmoid", "sqrtsoftplus"),
}
_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_NONE = ("none", "[]")


def read_facts(stated: Mapping[str, object], path: str) -> tuple[dict[str, object], list[FieldError]]:
    """Return typed values, None for withdrawn ones, and the errors, each named `PATH.NAME`."""
    values: dict[str, object] = {}
    errors: list[FieldError] = []
    for name, raw in stated.items():
        try:
            values[name] = None if raw == TAKE_BACK else _read(name, raw)
        except ValueError as problem:
            errors.append(FieldError(f"{path}.{name[:100]}", str(problem)))
    return values, errors


def _read(name: str, raw: object) -> object:
    fact = STATEABLE.get(name)
    if fact is None:
        raise ValueError(_not_stated(name))
    value = typed(fact, _from_text(fact, raw.strip()) if isinstance(raw, str) else raw)
    if value is None:
        raise ValueError('must have a value; {"unset": true} withdraws it')
    for word in value if isinstance(value, list) else [value]:
        _check(fact, word)
    return value


def _from_text(fact: Fact, text: str) -> object:
    """Parse a value from a form: `18 %`, `yes`, `deepep, hybridep`; `none` is an empty list."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"must have at most {MAX_TEXT} characters")
    match fact.type:
        case "bool":
            if text.lower() not in _WORDS:
                raise ValueError("must be yes or no")
            return _WORDS[text.lower()]
        case "int" | "double":
            return _number(text)
        case "strings" | "ints":
            words = [] if text.lower() in _NONE else [word.strip() for word in text.strip("[]").split(",")]
            return [_number(word) for word in words] if fact.type == "ints" else words
        case _:
            return text


def _number(text: str) -> float:
    bare, percent = text.removesuffix("%").strip(), text.endswith("%")
    try:
        value = float(bare)
    except ValueError:
        raise ValueError("must be a number") from None
    return value / 100 if percent else value


def _check(fact: Fact, value: object) -> None:
    if isinstance(value, float | int) and not isinstance(value, bool):
        if not math.isfinite(value) or (value < 0 and fact.name != "budget_residual_ms"):
            raise ValueError("must not be negative")
        if is_share(fact) and value > 1:
            raise ValueError("must be between 0 and 1, or a percentage such as 18 %")
    allowed = CHOICES.get(fact.name)
    if allowed and value not in allowed:
        raise ValueError(f"must be one or more of {', '.join(allowed)}")
    if isinstance(value, str) and not 0 < len(value) <= MAX_TEXT:
        raise ValueError(f"must have 1 to {MAX_TEXT} characters")


def is_share(fact: Fact) -> bool:
    """Return whether the fact is a share from 0 to 1."""
    return fact.section == "profile" and (fact.name.endswith(("_util", "_time")) or "0 to 1" in fact.meaning)


def _not_stated(name: str) -> str:
    if name in _JUDGED:
        return "is computed by this service and cannot be stated"
    if name in FACTS and FACTS[name].section == "contract":
        return "is a contract field: state it in the contract (`PATCH /api/v1/runs/{id}/contract`)"
    if name in FACTS:
        return f"is derived: state {', '.join(FACTS[name].inputs) or 'those'}"
    near = difflib.get_close_matches(name, STATEABLE, n=1, cutoff=0.7)
    return "is not a known fact" + (f" (did you mean `{near[0]}`?)" if near else "")


# --- Contradictions between sources, and how rules handle them: `contradictions.yaml`, shown with the rules concerned.

PATH = Path(__file__).resolve().parent / "contradictions.yaml"


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two statements with their sources (keys of sources.yaml).

    `measurable`: a matched A/B can settle the disagreement.
    """

    rules: tuple[str, ...]
    older: str
    older_sources: tuple[str, ...]
    newer: str
    newer_sources: tuple[str, ...]
    kept: str
    measurable: bool = False


@lru_cache(maxsize=1)
def contradictions() -> tuple[Contradiction, ...]:
    """Return all contradictions, in the order of the file."""
    rows = yaml.safe_load(PATH.read_text(encoding="utf-8"))
    return tuple(
        Contradiction(
            rules=tuple(row["rules"]),
            older=row["older"],
            older_sources=tuple(row["older_sources"]),
            newer=row["newer"],
            newer_sources=tuple(row["newer_sources"]),
            kept=row["kept"],
            measurable=row.get("measurable") is True,
        )
        for row in rows
    )


@lru_cache(maxsize=1)
def _by_rule() -> Mapping[str, tuple[Contradiction, ...]]:
    by_rule: dict[str, tuple[Contradiction, ...]] = {}
    for contradiction in contradictions():
        for rule in contradiction.rules:
            by_rule[rule] = (*by_rule.get(rule, ()), contradiction)
    return by_rule


def contradictions_of(rule: str) -> tuple[Contradiction, ...]:
    return _by_rule().get(rule, ())


# --- Which statement counts. What code enforces outranks every text. A settled A/B of this service outranks texts about
# speed; then published evidence, then first editions of guides. Equal levels do not outrank each other.

Side = Literal["older", "newer", "here", "both"]
CODE, HERE, PUBLISHED, FIRST_EDITION = 1, 2, 4, 5
_FIRST_EDITIONS = ("S0", "S1", "S2", "S3", "S4")
_ENFORCES_NOTHING = ("M-readme", "C-rec", "C-penv")
"""A readme, recipes and launcher defaults are in the code, but a launch may differ from them."""


@dataclass(frozen=True, slots=True)
class Overruling:
    """Which side counts, by its evidence level, and the explanation. `both`: equal levels."""

    side: Side
    level: int
    because: str


def source_level(key: str) -> int:
    """Return the level of a source, 1 the strongest (`evidence.LEVEL_NAMES`)."""
    if key.startswith(("M-", "C-")) and key not in _ENFORCES_NOTHING:
        return CODE
    return FIRST_EDITION if key in _FIRST_EDITIONS else PUBLISHED


def overruling(contradiction: Contradiction, sources: Mapping[str, Source], own: Sequence[OwnResult]) -> Overruling:
    """Return the ruling. `own`: this service's measurements for the rule."""
    older, newer = _strongest(contradiction.older_sources), _strongest(contradiction.newer_sources)
    settled = [result for result in own if result.settled]
    if settled and contradiction.measurable and min(older, newer) > CODE:
        best = max(settled, key=lambda result: result.n)
        effect = gain_change(best.median_gain_pct).figure
        sentence = f"Our own A/B measured {effect} (n = {best.n}), which outranks both."
        return Overruling("here", HERE, sentence)
    if older < newer:
        return Overruling("older", older, f"The older statement applies: {_named(older)} outranks {_named(newer)}.")
    if newer < older:
        return Overruling("newer", newer, f"The newer statement applies: {_named(newer)} outranks {_named(older)}.")
    sides = (contradiction.older_sources, contradiction.newer_sources)
    before, date = (max((sources[key].date for key in keys if key in sources), default="") for keys in sides)
    if date and date == before:
        when = f"Both are dated {date}"
    else:
        when = f"The newer one is {f'dated {date}' if date else 'undated'}"
    return Overruling("both", newer, f"Neither outranks the other: both are {_named(newer)}. {when}.")


def _strongest(keys: Sequence[str]) -> int:
    return min((source_level(key) for key in keys), default=FIRST_EDITION)


def _named(level: int) -> str:
    return {
        CODE: "what is enforced in code",
        PUBLISHED: "published evidence",
        FIRST_EDITION: "the first edition of a guide",
    }.get(level, LEVEL_NAMES[level])
