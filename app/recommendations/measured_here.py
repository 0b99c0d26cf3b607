"""What this project measured itself: matched A/Bs on the one knob that a suggestion would turn."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from sqlalchemy import Row, select
from sqlmodel import Session, col

from app.domain.contract.values import shown
from app.domain.matching.following import FOLLOWS
from app.domain.rules.engine import Suggestion
from app.domain.rules.precedence import OwnResult
from app.domain.rules.rule import Setting
from app.domain.run import Stated
from app.domain.suspect_evidence import value_text
from app.storage.judging_tables import VerdictRow
from app.storage.run_records import RunDetail
from app.storage.tables import RunRow

MOST_RESULTS = 500
"""Newest A/Bs on the knobs in question that are looked at."""


@dataclass(frozen=True, slots=True)
class Knob:
    """The one field that a suggestion changes in a run: what it is now ("" is unknown), and what it becomes."""

    field: str
    now: str
    wanted: str


@dataclass(frozen=True, slots=True)
class MeasuredHere:
    """`result`: what was gained on one stack, the run's own, or on the others; `runs`: the candidates of the A/Bs."""

    result: OwnResult
    runs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Gain:
    """In percent of throughput, with the interval of the A/B."""

    pct: float
    low: float
    high: float
    run_id: int
    stack_key: str
    at: datetime


def measured_here(session: Session, run: RunDetail, found: Iterable[Suggestion]) -> tuple[MeasuredHere, ...]:
    """For each suggestion that turns one knob, what matched A/Bs of the project say of it."""
    knobs = {one.rule.id: knob for one in found if (knob := knob_of(one.set, run.contract)) is not None}
    if not knobs:
        return ()
    rows = _one_a_candidate(_results(session, run, sorted({knob.field for knob in knobs.values()})))
    groups = [(rule, own, gains) for rule, knob in knobs.items() for own, gains in _by_stack(run, _gains(rows, knob))]
    contracts = _contracts(session, {gains[0].run_id for _, _, gains in groups})
    return tuple(
        _measured(rule, gains, contracts.get(gains[0].run_id, {}), own_stack=own) for rule, own, gains in groups
    )


def knob_of(settings: Mapping[str, Setting], contract: Mapping[str, Stated]) -> Knob | None:
    """None where a suggestion changes nothing, or several knobs at once."""
    changes = _one_dispatcher(settings, contract)
    texts = {name: _text(value, contract.get(name)) for name, value in changes.items()}
    changed = {name for name, text in texts.items() if _is_turned(text, changes[name], contract.get(name))}
    leading = [name for name in changed if FOLLOWS.get(name) not in changed]
    if len(leading) != 1:
        return None
    name = leading[0]
    return Knob(name, value_text(contract.get(name)), texts[name])


def _is_turned(text: str, value: Setting, now: Stated | None) -> bool:
    """What nobody stated and is to be off is made sure of, not turned."""
    return value not in (False, None, ()) if now is None else value_text(now) != text


def _one_dispatcher(settings: Mapping[str, Setting], contract: Mapping[str, Stated]) -> dict[str, Setting]:
    """Type and backend are one knob, the dispatcher that they name."""
    rest = {name: value for name, value in settings.items() if name not in ("dispatcher_type", "flex_backend")}
    kind, backend = settings.get("dispatcher_type"), settings.get("flex_backend")
    if len(rest) == len(settings) or "dispatcher" in rest:
        return rest
    if kind == "flex" or (kind is None and backend is not None):
        stated = contract.get("flex_backend")
        kind = backend if backend is not None else (None if stated is None else stated.value)
    return rest if kind is None else {**rest, "dispatcher": kind}


def _text(value: Setting, now: Stated | None) -> str:
    if now is not None and isinstance(now.value, tuple) and not isinstance(value, tuple):
        value = () if value is None else (value,)
    return shown(value)


def _results(session: Session, run: RunDetail, fields: Sequence[str]) -> Iterable[Row[Any]]:
    """Current matched A/Bs of the project on these fields, newest first; quarantined runs are evidence of nothing."""
    columns = (
        VerdictRow.run_id, VerdictRow.attributed_to, VerdictRow.delta_pct, VerdictRow.ci_low_pct,
        VerdictRow.ci_high_pct, VerdictRow.from_value, VerdictRow.to_value, RunRow.stack_key, RunRow.config_key,
        RunRow.commit, RunRow.ordered_at,
    )  # fmt: skip
    chosen = (
        select(*columns)  # type: ignore[call-overload]
        .join(RunRow, col(RunRow.id) == col(VerdictRow.run_id))
        .where(
            col(VerdictRow.current),
            col(VerdictRow.comparison) == "matched_ab",
            col(VerdictRow.attributed_to).in_(fields),
            col(VerdictRow.delta_pct).is_not(None),
            col(RunRow.project_id) == run.project_id,
            col(RunRow.quarantine) == "",
        )
        .order_by(col(VerdictRow.run_id).desc())
        .limit(MOST_RESULTS)
    )
    return session.execute(chosen).all()


def _one_a_candidate(rows: Iterable[Row[Any]]) -> list[Row[Any]]:
    """Reruns share one verdict, so they are one result."""
    found: dict[tuple[object, ...], Row[Any]] = {}
    for row in rows:
        found.setdefault((row.stack_key, row.config_key, row.commit or row.run_id), row)
    return list(found.values())


def _gains(rows: Iterable[Row[Any]], knob: Knob) -> list[_Gain]:
    return [gain for row in rows if (gain := _gain(row, knob)) is not None]


def _gain(row: Row[Any], knob: Knob) -> _Gain | None:
    """The A/B read in the direction of the suggestion; None where it is about other values."""
    if row.attributed_to != knob.field or knob.wanted not in (row.from_value, row.to_value):
        return None
    forwards = row.to_value == knob.wanted
    if knob.now and knob.now != (row.from_value if forwards else row.to_value):
        return None
    low = row.delta_pct if row.ci_low_pct is None else row.ci_low_pct
    high = row.delta_pct if row.ci_high_pct is None else row.ci_high_pct
    if forwards:  # longer steps are less throughput
        middle, least, most = _throughput(row.delta_pct), _throughput(high), _throughput(low)
    else:
        middle, least, most = row.delta_pct, low, high
    return _Gain(middle, least, most, row.run_id, row.stack_key, row.ordered_at)


def _throughput(step_time_pct: float) -> float:
    """Change of throughput, in percent, of a step time that changed by so many percent."""
    return 100 * (1 / max(1 + step_time_pct / 100, 1e-3) - 1)


def _by_stack(run: RunDetail, gains: Sequence[_Gain]) -> Iterator[tuple[bool, list[_Gain]]]:
    """Those on the stack of the run, and those on others: the former outrank everything but code."""
    for own in (True, False):
        group = [gain for gain in gains if (gain.stack_key == run.stack_key) is own]
        if group:
            yield own, group


def _contracts(session: Session, run_ids: set[int]) -> dict[int, dict[str, object]]:
    """Of the newest candidates: under which contract they were measured."""
    rows = session.execute(select(RunRow.id, RunRow.contract).where(col(RunRow.id).in_(run_ids)))  # type: ignore[call-overload]
    return {row.id: {name: one["value"] for name, one in (row.contract or {}).items()} for row in rows}


def _measured(rule: str, gains: Sequence[_Gain], contract: Mapping[str, object], *, own_stack: bool) -> MeasuredHere:
    result = OwnResult(
        rule=rule,
        n=len(gains),
        median_gain_pct=median(gain.pct for gain in gains),
        low_pct=min(gain.low for gain in gains),
        high_pct=max(gain.high for gain in gains),
        stacks=tuple(dict.fromkeys(gain.stack_key for gain in gains)),
        newest=f"{max(gain.at for gain in gains):%Y-%m-%d}",
        contract=contract,
        same_contract=own_stack,
    )
    return MeasuredHere(result, tuple(gain.run_id for gain in gains))
