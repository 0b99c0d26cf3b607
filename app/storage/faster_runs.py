"""Find what does the work of a run faster: another run of its project, or a published record.

Both become facts, settings and evidence of a rule. Other work is never faster: model, GPUs, sequence length, batch and
routing must be known to be equal, and a job of another name is another task.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import func
from sqlmodel import Session, col

from app.domain.contract.fields import CONFIG_FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.values import shown
from app.domain.numbers import contract_value, gain_change, on_off, time_saved
from app.domain.ranking.runs import family_of
from app.domain.references.nearest import compare
from app.domain.references.point import ReferencePoint
from app.domain.rules.engine import Taken
from app.domain.rules.evidence import MEASURED_HERE, Statement
from app.domain.rules.ranking import LIKENESS
from app.domain.run import FORCED_ROUTING, Stated, Value
from app.domain.text import some_of
from app.domain.verdict.bisect import commands_in
from app.domain.verdict.comparability import (
    Difference,
    differing,
    differing_commit,
    differing_outside_keys,
    differing_shape,
    marked,
)
from app.domain.verdict.evidence import value_text
from app.domain.verdict.step_time import RELEVANT_SHIFT
from app.storage.references import references
from app.storage.runs import RunDetail, stored_contract
from app.storage.setbacks import back_title, undo_text, values_of
from app.storage.tables import RunResultRow, RunRow, StackRow, not_indexed, select_any

RUN_RULE, RECORD_RULE = "own-faster-run", "published-faster"
"""Rules that these findings feed."""

# --- Another run of the project.

_CONFIGURATIONS, _READ, _LAUNCHES = 40, 5, 5
"""Maximum numbers: faster configurations whose contracts are read, fastest ones whose runs are read, runs of each."""
_OTHER_RESULT = frozenset({
    "model", "task", "data_mode", "seq_len", "gbs", "gpu", "gpus", "gpus_per_node", "cluster", "mtp", "routing_mode",
    "capacity", "rank_capacity", "lb_type", "expert_bias", "optimizer", "deterministic",
})  # fmt: skip
"""Fields that change the work of a step, its place or what is learned. A run that differs in one does different
work."""
_CONSEQUENCES = frozenset({"etp", "vpp"})
"""Degrees that follow from TP, or from PP and its layout, unless a flag states them."""
_KNOWN_ON_BOTH = ("model", "gpu", "gpus", "seq_len", "gbs")
_LAYOUT = ("tp", "pp", "cp", "ep")
"""Degrees that must be known of both before another setting can account for the gain."""
_Z = 1.96
_OF_CODE_PCT = 5.0
"""Gain that different code alone may explain. Our own choice: upstream calls a loss of 5 % between releases a
regression."""
_SHARED = " Also test the changes one by one: a single one may account for the gain."
_SHORT = "One of the two has a short window."


@dataclass(frozen=True, slots=True)
class FasterWork:
    """Runs and records that do the work of a run faster: facts, and what each rule takes over."""

    facts: Mapping[str, object] = field(default_factory=dict)
    taken: Mapping[str, Taken] = field(default_factory=dict)


class _Rival(NamedTuple):
    """A faster configuration of the same work. `low`, `high`: 95 % interval of the gain, in percent of throughput.

    `differences`: what to take over; `software`: what differs in the container, whether it is taken over or not;
    `beside`: versions and commit that differ; `may_differ`: fields that only one of the two states. `layout_unknown`:
    degrees that one of the two does not state. `is_earlier`: none of its runs is newer than the run itself.
    """

    run: int
    name: str
    differences: tuple[Difference, ...]
    software: tuple[Difference, ...]
    beside: tuple[str, ...]
    may_differ: tuple[str, ...]
    layout_unknown: tuple[str, ...]
    pct: float
    low: float
    high: float
    launches: int
    doubts: tuple[str, ...]
    contract: Mapping[str, Stated]
    is_earlier: bool

    @property
    def changes(self) -> tuple[Difference, ...]:
        """Return what to take over, without what follows from another change."""
        return tuple(difference for difference in self.differences if not difference.follows)

    @property
    def is_matched(self) -> bool:
        """Return whether it is one side of an A/B: one change, with the same container, versions and commit."""
        is_certain = not (self.may_differ or self.layout_unknown)
        return len(self.changes) == 1 and is_certain and not self.software and not self.beside

    @property
    def withheld(self) -> str:
        """Return why its settings are not suggested yet; empty if they are.

        The container of the same job can be taken over whatever the layout is.
        """
        if not self.layout_unknown or all(change.field == "container" for change in self.changes):
            return ""
        return f"State {', '.join(self.layout_unknown)} of both runs first: a difference there may explain the gain."

    @property
    def is_settled(self) -> bool:
        """Return whether the settings are faster beyond noise, and with another container or commit beyond those."""
        least = _OF_CODE_PCT if self.software or self.beside else 0.0
        return self.low > least and self.pct > 100 * RELEVANT_SHIFT

    @property
    def level(self) -> int:
        """Return the level of the evidence (`domain/rules/evidence.py`)."""
        if _SHORT in self.doubts or self.software or self.beside or self.may_differ or self.layout_unknown:
            return 4
        return 2 if self.is_matched else 3


def _in_container(rival: _Rival, commit: str) -> str:
    """Return the commands that measure a commit in the rival's container; empty unless that is the only change."""
    fields = {change.field: change.a for change in rival.changes}
    container = fields.get("container")
    return commands_in(contract_value(container.value), commit) if container and len(fields) == 1 else ""


def faster_work(session: Session, run: RunDetail, variance: float) -> FasterWork:
    """Return faster runs and records of the same work. `variance`: of ln(step time) between launches of this job."""
    if run.status != "ready" or run.steady_state is None or not run.steady_state.is_steady:
        return FasterWork()
    facts: dict[str, object] = {}
    taken: dict[str, Taken] = {}
    rivals = list(_rivals(session, run, variance))
    rival = _best(rivals)
    if rival is not None:
        facts |= {
            "faster_run": rival.run,
            "faster_pct": time_saved(rival.pct),
            "faster_low_pct": time_saved(rival.low),
            "faster_high_pct": time_saved(rival.high),
            "faster_changes": _changes_text(rival.changes),
            "faster_take": undo_text(rival.changes, "to") + (_SHARED if len(rival.changes) > 1 else ""),
            "faster_in_container": _in_container(rival, run.commit),
            "faster_doubt": " ".join(("", *rival.doubts)),
            "faster_same_code": not rival.software and not rival.beside,
            "faster_also": _faster_still(rival, rivals),
        }
        title = back_title(f"Go back to run #{rival.run}", rival.changes) if rival.is_earlier else ""
        statement = _measured_statement(rival)
        taken[RUN_RULE] = Taken(values_of(rival.differences), statement, title=title, withheld=rival.withheld)
    record = _record(session, run)
    if record is not None:
        facts |= record.facts
        taken |= record.taken
    return FasterWork(facts, taken)


def _rivals(session: Session, run: RunDetail, variance: float) -> Iterator[_Rival]:
    ours = run.steady_state
    if ours is None or any(name not in run.contract for name in _KNOWN_ON_BOTH):
        return
    eligible = []
    for row in _faster_configurations(session, run, ours.log_step_time):
        contract = stored_contract(row.contract)
        differences = _taken_over(contract, run.contract)
        software = tuple(difference for difference in differences if difference.axis == "container")
        is_earlier = run.ordered_at is not None and row.latest is not None and row.latest < run.ordered_at
        if software and is_earlier:
            # The job has left that container: its settings may be taken over, not the container itself.
            differences = tuple(difference for difference in differences if difference.axis != "container")
        choices = sum(not difference.follows for difference in differences)
        if choices:
            eligible.append((bool(software), choices > 1, row, contract, differences, software, is_earlier))
    eligible.sort(key=itemgetter(0, 1))  # the fastest of each kind first, as the database returns them
    for _, _, row, contract, differences, software, is_earlier in eligible[:_READ]:
        launches = _launches(session, run, row.stack_key, row.config_key)
        n = len(launches)
        shift = ours.log_step_time - math.fsum(item.log_step_time for item in launches) / n
        errors = ours.se**2 + math.fsum(item.step_time_se**2 for item in launches) / n**2
        error = _Z * math.sqrt(variance * (1 + 1 / n) + errors)
        newest = launches[0]
        gain, low, high = (100 * (math.exp(shift + sign * error) - 1) for sign in (0, -1, 1))
        others = (*differing_outside_keys(contract, run.contract), *differing_commit(newest.commit, run.commit))
        beside = tuple(item.field for item in others)
        knobs = differing((*STACK_FIELDS, *CONFIG_FIELDS), contract, run.contract)
        may_differ = tuple(item.field for item in knobs if not item.is_certain)
        yield _Rival(
            newest.id,
            newest.name,
            differences,
            software,
            beside,
            may_differ,
            tuple(name for name in _LAYOUT if name not in contract or name not in run.contract),
            gain,
            low,
            high,
            n,
            tuple(_doubts(run, contract, differences, beside, may_differ, is_short=ours.short or bool(newest.short))),
            contract,
            is_earlier,
        )


def _faster_configurations(session: Session, run: RunDetail, log_step_time: float) -> Sequence[Any]:
    """Return other configurations on the same model and GPUs with a faster run, fastest first, each with a contract."""
    newest, latest = func.max(RunRow.id).label("newest"), func.max(RunRow.ordered_at).label("latest")
    fastest = func.min(RunRow.log_step_time).label("fastest")
    model, gpu, gpus = (run.contract[name].value for name in ("model", "gpu", "gpus"))
    # The runs of these stacks, because SQLite would read all runs of the model and the GPU, at any number of GPUs.
    stacks = select_any(StackRow.stack_key).where(
        col(StackRow.project_id) == run.project_id,
        col(StackRow.model) == shown(model),
        col(StackRow.gpu) == shown(gpu),
        col(StackRow.gpus) == gpus,
    )
    groups = (
        select_any(RunRow.stack_key, RunRow.config_key, newest, latest, fastest)
        .where(*_usable(run), col(RunRow.stack_key).in_(stacks), col(RunRow.config_key) != run.config_key)
        .group_by(col(RunRow.stack_key), col(RunRow.config_key))
        .having(fastest < log_step_time - RELEVANT_SHIFT)
        .order_by(newest.desc())
        .limit(_CONFIGURATIONS)
        .subquery()
    )
    rows = session.execute(
        select_any(groups.c.stack_key, groups.c.config_key, groups.c.latest, RunResultRow.contract)
        .join(RunResultRow, col(RunResultRow.run_id) == groups.c.newest)
        .order_by(groups.c.fastest)
    )
    return rows.all()


def _usable(run: RunDetail) -> tuple[Any, ...]:
    """Return the conditions under which a run of the project may be compared with this one."""
    model, gpu, gpus = (run.contract[name].value for name in ("model", "gpu", "gpus"))
    of_job = (not_indexed(col(RunRow.job)).in_(("", run.job)),) if run.job else ()
    return (
        *of_job,
        not_indexed(col(RunRow.project_id)) == run.project_id,
        not_indexed(col(RunRow.model)) == shown(model),
        not_indexed(col(RunRow.gpu)) == shown(gpu),
        col(RunRow.gpus) == gpus,
        not_indexed(col(RunRow.status)) == "ready",
        col(RunRow.is_steady).is_(True),
        col(RunRow.fair_for_timing).is_(True),
        col(RunRow.not_finite) == 0,
        col(RunRow.skipped_share) == 0,
        col(RunRow.quarantine) == "",
        col(RunRow.semantic_class) == run.semantic_class,
        not_indexed(col(RunRow.definition_version)) == run.definition_version,
        col(RunRow.log_step_time).is_not(None),
    )


def _launches(session: Session, run: RunDetail, stack_key: str, config_key: str) -> Sequence[Any]:
    """Return the newest runs of a configuration."""
    columns = (RunRow.id, RunRow.name, RunRow.commit, RunRow.short, RunRow.log_step_time, RunRow.step_time_se)
    rows = session.execute(
        select_any(*columns)
        .where(*_usable(run), col(RunRow.stack_key) == stack_key, col(RunRow.config_key) == config_key)
        .order_by(col(RunRow.ordered_at).desc(), col(RunRow.id).desc())
        .limit(_LAUNCHES)
    )
    return rows.all()


def _taken_over(theirs: Mapping[str, Stated], ours: Mapping[str, Stated]) -> tuple[Difference, ...]:
    """Return what to take over from a run, from our value to theirs; empty if it does other work.

    A field that only one of them states may differ, which does not make it other work but is doubtful.
    """
    if any(name not in theirs for name in _KNOWN_ON_BOTH) or any(True for _ in differing_shape(theirs, ours)):
        return ()
    certain = [item for item in differing((*STACK_FIELDS, *CONFIG_FIELDS), theirs, ours) if item.is_certain]
    if any(difference.field in _OTHER_RESULT for difference in certain):
        return ()
    return tuple(
        difference
        for difference in marked(certain)
        if difference.follows or not _is_consequence(difference.field, difference.a)
    )


def _is_consequence(name: str, theirs: Stated | None) -> bool:
    """Return whether their value results from other settings.

    A dispatcher or a precision that several flags state is derived as well, but it is a setting.
    """
    return theirs is not None and theirs.source == "derived" and (theirs.value is None or name in _CONSEQUENCES)


def _doubts(
    run: RunDetail,
    contract: Mapping[str, Stated],
    differences: Sequence[Difference],
    beside: Sequence[str],
    may_differ: Sequence[str],
    *,
    is_short: bool,
) -> Iterator[str]:
    """Yield what else may explain the gain."""
    if is_short:
        yield _SHORT
    if any(difference.field == "precision" for difference in differences):
        yield "The precision differs, so compare the loss as well."
    if beside:
        yield f"These differ, too: {', '.join(beside)}."
    if may_differ:
        yield f"These may differ, as only one of the two states them: {some_of(may_differ, 3)}."
    names = {difference.field for difference in differences}
    for item in differing(STACK_FIELDS, contract, run.contract):
        if item.axis == "container" and item.is_certain and item.field not in names:
            yield f"It ran in {item.field} {value_text(item.a)[:60]}, which may explain the gain: repeat it in yours."
    if contract["gbs"].source == "derived" or run.contract["gbs"].source == "derived":
        yield "The batch is derived, not stated."


def _best(rivals: Sequence[_Rival]) -> _Rival | None:
    """Return the rival with the strongest evidence; None without a settled gain.

    A matched A/B comes first, then runs of the same container, then those of others. Of several changes it is the
    rival with the fewest among those that may be the fastest.
    """
    settled = [rival for rival in rivals if rival.is_settled]
    settled = [rival for rival in settled if not rival.withheld] or settled
    matched = [rival for rival in settled if rival.is_matched]
    if matched:
        return max(matched, key=lambda rival: rival.pct)
    rest = [rival for rival in settled if not rival.software] or settled
    if not rest:
        return None
    best = max(rest, key=lambda rival: rival.pct)
    near = [rival for rival in rest if rival.pct >= best.low]
    return min(near, key=lambda rival: (len(rival.changes), -rival.pct))


def _faster_still(best: _Rival, rivals: Sequence[_Rival]) -> str:
    """Return the fastest rival in words, if it is clearly faster than the one with the strongest evidence."""
    fastest = max((rival for rival in rivals if not rival.withheld), key=lambda rival: rival.pct, default=best)
    if fastest.low <= best.pct:
        return ""
    software = "".join(f", in {item.field} {value_text(item.a)[:60]}" for item in fastest.software[:1])
    return (
        f" Run #{fastest.run} is {gain_change(fastest.pct, fastest.low, fastest.high).text}{software}, "
        f"with these changes: {_changes_text(fastest.changes)}."
    )


def _measured_statement(rival: _Rival) -> Statement:
    at = {name: rival.contract[name].value for name in LIKENESS if name in rival.contract}
    runs = "1 run" if rival.launches == 1 else f"{rival.launches} runs"
    return Statement(
        level=rival.level,
        text=f"{gain_change(rival.pct, rival.low, rival.high).text}, {runs} against this one",
        setting=f"run #{rival.run} {rival.name[:60]}",
        source=MEASURED_HERE,
        date="",
        gain=(rival.low, rival.high),
        pct=rival.pct,
        at=at,
        name="measured here, one change" if rival.is_matched else "measured here, same work",
    )


def _changes_text(differences: Sequence[Difference]) -> str:
    """Return the settings of the other run, with those of this one: `pp 1 in place of 2, ep 8 in place of 4`."""
    texts = [
        f"{item.field} {on_off(value_text(item.a))[:60]} in place of {on_off(value_text(item.b))[:60]}"
        for item in differences
    ]
    return some_of(texts, 6)


# --- A published record.

RECORD_GAIN_PCT = 10.0
"""Smaller gaps to another lab's figure mean little: nodes, software and the window differ. Our judgement."""
FORCED_GAP_PCT = 25.0
"""The same job was 8 to 20 % slower with natural routing, so a record with forced balance must be faster by more."""
_MUST_EQUAL = ("task", "seq_len", "gbs", "precision", "mtp")
_NOT_TAKEN = frozenset((*_OTHER_RESULT, "container", "precision"))


def _record(session: Session, run: RunDetail) -> FasterWork | None:
    """Return the fastest record of this model on as many of these GPUs that is clearly faster; None without one.

    None also if a record with the settings of the run is about as fast, because then other settings do not explain it.
    """
    ours = {name: stated.value for name, stated in run.contract.items()}
    if not isinstance(ours.get("model"), str) or not isinstance(ours.get("gpus"), int):
        return None
    family = family_of(str(ours["model"]), ours)
    faster = []
    for reference in references(session, run.project):
        point = reference.point
        if point.family != family or point.contract["gpu"] != ours.get("gpu") or point.contract["gpus"] != ours["gpus"]:
            continue
        gain = _record_gain(run, ours, point)
        if gain is not None:
            faster.append((gain, point, _settings(ours, point)))
    if not faster:
        return None
    most = max(gain for gain, _, _ in faster)
    near = [item for item in faster if item[0] >= most - RECORD_GAIN_PCT]
    gain, point, settings = min(near, key=lambda item: (len(item[2]), -item[0]))
    if not settings:  # the record states what this run already does, so it is not advice
        return None
    changes = [f"{name} {shown(ours[name])} to {shown(value)}" for name, value in settings.items()]
    changes += [
        f"container {shown(difference.ours)} to {shown(difference.theirs)}"
        for difference in compare(ours, point)
        if difference.field == "container" and difference.is_known
    ]
    forced = point.contract.get("routing_mode") in FORCED_ROUTING and ours.get("routing_mode") not in FORCED_ROUTING
    take = " ".join(f"Set {name} to {shown(value)}." for name, value in settings.items())
    facts = {
        "record_pct": time_saved(gain),
        "record_model": str(point.contract["model"]),
        "record_title": f"{point.measured_by}, {point.source}, {point.date}",
        "record_changes": ", ".join(changes),
        "record_take": take,
        "record_doubt": " It forces balanced routing, which alone was worth 8 to 20 % elsewhere." if forced else "",
    }
    statement = Statement(
        level=4,
        text=gain_change(gain).figure,
        setting=f"{point.contract['gpus']} x {point.contract['gpu']}, {point.contract['precision']}",
        source=point.source,
        date=point.date,
        gain=(0.0, gain),
        at={name: point.contract[name] for name in LIKENESS if name in point.contract},
    )
    return FasterWork(facts, {RECORD_RULE: Taken(settings, statement, needs_forecast=True)})


def _record_gain(run: RunDetail, ours: Mapping[str, Value], point: ReferencePoint) -> float | None:
    """Return the gain of throughput of a faster record in percent; None if it is slower, or the work differs."""
    certain = {difference.field: difference for difference in compare(ours, point) if difference.is_known}
    if any(name in certain for name in _MUST_EQUAL) or "seq_len" not in point.contract:
        return None
    routing = certain.get("routing_mode")
    is_ceiling = routing is not None and routing.theirs in FORCED_ROUTING and routing.ours not in FORCED_ROUTING
    if routing is not None and not is_ceiling:
        return None
    for name, theirs in (
        ("tokens_per_s_per_gpu", point.tokens_per_s_per_gpu),
        ("tflops_per_gpu", point.tflops_per_gpu),
    ):
        mine = run.metrics.get(name)
        if theirs and mine is not None and mine.value > 0:
            gain = 100 * (theirs / mine.value - 1)
            return gain if gain >= (FORCED_GAP_PCT if is_ceiling else RECORD_GAIN_PCT) else None
    return None


def _settings(ours: Mapping[str, Value], point: ReferencePoint) -> dict[str, Any]:
    """Return the knobs that the record states differently."""
    return {
        difference.field: difference.theirs
        for difference in compare(ours, point)
        if difference.is_known and difference.field not in _NOT_TAKEN and PREFIX not in difference.field
    }
