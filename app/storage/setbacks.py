"""The state that a run fell back from: its baseline if it regressed, or the last run that worked if it failed.

Each names what has changed since and how to revert it. The rules use both as facts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sqlalchemy import and_, or_
from sqlmodel import Session, col

from app.domain.contract.fields import CONFIG_FIELDS, PREFIX, STACK_FIELDS
from app.domain.contract.values import GPU_MEMORY_GIB, shown
from app.domain.flags import FLAGS
from app.domain.numbers import contract_value, gain_change, percent, short_commit
from app.domain.performance.failures import FROM_OUTSIDE, PACKAGE_MISSING
from app.domain.rules.engine import Taken
from app.domain.rules.evidence import MEASURED_HERE, Statement
from app.domain.rules.ranking import LIKENESS
from app.domain.rules.rule import Setting
from app.domain.run import Stated
from app.domain.text import capitalized, some_of
from app.domain.verdict.bisect import commands_in
from app.domain.verdict.comparability import Difference, axis_of, differing, differing_commit, differing_outside_keys
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.evidence import RankedSuspect, alternates_text
from app.domain.verdict.words import last_parts, what_would_decide
from app.storage import readings
from app.storage.experiments import experiment_sides
from app.storage.runs import ENDED_BADLY, RunDetail, files_of, stored_contract
from app.storage.suspect_evidence import states_node, suspects_with_evidence, within_regression
from app.storage.tables import AvailabilityRow, RunResultRow, RunRow, select_any
from app.storage.verdicts import (
    current_verdict,
    metrics_in_regressions,
    regressions_of,
    rerun_request,
    slow_member,
)

REGRESSION_RULE, RERUN_RULE = "val-regression-cause", "val-rerun"
REGRESSION_RULES = (REGRESSION_RULE, RERUN_RULE)
"""Rules about a slowdown of the run itself, which stays with it when its tuning continues in another run."""
FITTED_RULE, WORKED_RULE = "fit-go-back", "fit-since-it-worked"
PACKAGE_RULE = "disp-package-missing"
"""Ids of the rules about setbacks."""
_WITHOUT_PACKAGE = "alltoall"
"""The dispatcher that needs no package."""
_OVER = ("expected", "invalid", "fixed", "recovered")
"""States of regressions that leave nothing to undo."""
_EARLIER, _WITH_ARGUMENTS, _SHOWN = 30, 3, 6
"""Limits: earlier runs whose contracts are compared, the most similar of them whose arguments are read, and changes
that a sentence lists."""

Facts = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Setbacks:
    """Setbacks of a run. `facts`: for rule conditions. `taken`: what each rule takes over from an earlier run."""

    facts: Facts = field(default_factory=dict)
    taken: Mapping[str, Taken] = field(default_factory=dict)


def setbacks_of(
    session: Session, run: RunDetail, document: VerdictDocument | None = None, *, in_regressions: bool = True
) -> Setbacks:
    """Return the setbacks of a run; empty if it neither failed nor regressed.

    `document`: its verdict, if already read. `in_regressions`: False if the caller knows that it belongs to none.
    """
    facts: dict[str, object] = {}
    taken: dict[str, Taken] = {}
    crash = _crash(run)
    worked = _last_that_worked(session, run) if crash else None
    if worked is not None and crash == "out_of_memory" and worked.names:
        taken[FITTED_RULE] = worked.taken
        facts |= {
            "fitted_run": worked.run,
            "fitted_differs": worked.names,
            "fitted_changes": worked.causes,
            "fitted_peak": worked.peak,
            "fitted_undo": worked.undo,
        }
    elif worked is not None and crash != "out_of_memory":
        taken[WORKED_RULE] = worked.taken
        facts |= {
            "worked_run": worked.run,
            "worked_changes": worked.changes or "no known field, argument or version",
            "worked_undo": worked.undo or "Rerun the job on other nodes: nothing known changed.",
        }
    if run.health.get("outcome") in ENDED_BADLY and any(failure.kind in PACKAGE_MISSING for failure in run.failures):
        works = _with_other_dispatcher(session, run)
        dispatcher = works.dispatcher if works is not None and works.dispatcher else _WITHOUT_PACKAGE
        as_in = "" if works is None else f", as in run #{works.id}"
        title, container = f"Set dispatcher to {dispatcher}{as_in}", ""
        if (place := _other_container(session, run)) is not None:
            container = place[0]
            _, name = last_parts(contract_value(run.contract["container"].value), container)
            works_in = "" if works is None else f" (#{works.id})"
            title = f"Use container {name} ({place[1]}) or dispatcher {dispatcher}{works_in}"
        taken[PACKAGE_RULE] = Taken({"dispatcher": dispatcher}, title=title, container=container)
        facts |= {} if works is None else {"works_with": dispatcher}
    if document is None and (verdict := current_verdict(session, run.id)) is not None:
        document = verdict.document
    is_side = run.purpose == "experiment" and bool(experiment_sides(session, [run.id]))  # its experiment decides
    regression = None
    if document is not None and not is_side:
        regression = _regression(session, run, document, in_regressions=in_regressions)
    if regression is not None:
        of_regression, taken[REGRESSION_RULE] = _undoing(session, run, regression)
        facts |= of_regression
    is_open = document is not None and not is_side and document.rerun_decides
    if document is not None and is_open and run.health.get("outcome") not in ENDED_BADLY:
        may_be_confirmed = in_regressions and document.comparability is None  # by other stacks with the same contrast
        if not (may_be_confirmed and metrics_in_regressions(session, run.id)):
            facts["rerun_why"] = what_would_decide(document) or _unsteady_text(run)
    return Setbacks(facts, taken)


def _unsteady_text(run: RunDetail) -> str:
    """Return `Step times drift: the end is 22.5 % slower than the start. One such run cannot decide.`"""
    because = "" if run.steady_state is None else run.steady_state.unsteady_because
    return f"{capitalized(because)}. One such run cannot decide." if because else "An unsteady run cannot decide."


def _crash(run: RunDetail) -> str:
    """Return the kind of failure that ended the run; empty if it did not fail, or if the cause was outside the job."""
    kinds = [failure.kind for failure in run.failures if failure.kind not in FROM_OUTSIDE]
    if "out_of_memory" in kinds:
        return "out_of_memory"
    return kinds[0] if kinds and run.health.get("outcome") in ENDED_BADLY else ""


_METRICS = {"step time": "step_time_ms", "peak memory": "peak_memory_gib"}
"""The metrics that rules name, the first of them that regressed."""


class _Regression(NamedTuple):
    """A regression of a metric: its size in percent and as a sentence, and the run whose verdict shows the cause.

    `number`: of the open regression that the run continues; None if its own verdict shows one.
    """

    metric: str
    pct: float
    text: str
    run: int
    document: VerdictDocument
    number: int | None = None


_LEAST_PCT = 0.01


def regression_change(metric: object, pct: object) -> str:
    """Return `The step takes 6.2 % longer`."""
    return f"Peak memory is {pct:.1f} % higher" if metric == "peak memory" else f"The step takes {pct:.1f} % longer"


def _regression(
    session: Session, run: RunDetail, document: VerdictDocument, *, in_regressions: bool
) -> _Regression | None:
    """Return the slowdown, else the rise of peak memory, that the verdict or a regression shows.

    Regressions that are over, expected or invalid do not count. A run that continues a regression is as good as its own
    baseline. The cause then comes from the run that opened the regression; the size compares this run with
    the level before it, as on its page, if that is known.
    """
    of_run = regressions_of(session, run.id) if in_regressions else ()
    for metric, name in _METRICS.items():
        regressions = [item for item in of_run if item.metric == name]
        ongoing = [item for item in regressions if item.state_text not in _OVER]
        change = document.measured_metrics.get(name)
        is_worse = change is not None and document.decision == change.decision == "regression"
        if (is_worse and (ongoing or not regressions)) or any(item.is_member for item in ongoing):
            pct = max(change.delta_pct if change else 0.0, _LEAST_PCT)
            return _Regression(metric, pct, f"{regression_change(metric, pct)} than in its baseline.", run.id, document)
        for item in ongoing:
            member = slow_member(session, item.id, run.id)
            first = None if member is None else current_verdict(session, member.run_id)
            if (
                member is not None
                and first is not None
                and (member.delta_pct or 0.0) > 0
                and member.proposal != "fixed"
            ):
                own = getattr(session.get_one(RunRow, run.id), name)
                is_slower = item.usual is not None and own is not None and own > item.usual
                pct = 100 * (own / item.usual - 1) if is_slower else member.delta_pct or 0.0
                since = f"{regression_change(metric, pct)} than before #{member.run_id}"
                text = f"{since}: regression {item.id} is {item.state_text}."
                return _Regression(metric, pct, text, member.run_id, first.document, item.id)
    return None


def _undoing(session: Session, run: RunDetail, regression: _Regression) -> tuple[Facts, Taken]:
    """Return the facts of a regression, and what its rule takes over from the baseline."""
    causes = _causes(session, regression)
    certain = [cause for cause in causes.first if cause.is_certain]
    undo, settings = undo_text(certain), values_of(certain)
    bisected = _range(certain) if causes.is_likely else ""
    container = next((item for item in causes.differences if item.field == "container" and item.a), None)
    continued = regression.number  # then the runs since the first were as slow
    before = "" if container is None or settings else _side(container.a)
    commit = session.get_one(RunRow, regression.run).commit
    tested = ""  # the commands measure the code of the first slow run
    if container is not None and before and commit != run.commit:
        tested = f"commit {short_commit(commit)} in container {last_parts(_side(container.b), before)[1]}"
    is_unconfirmed = continued is None and rerun_request(session, run.id, regression.document) is not None
    title = back_title("Go back to the baseline" if continued is None else f"Undo regression {continued}", certain)
    if settings:  # a knob is tested with one run
        taken = Taken(settings, _restored(run, regression), title=title)
    elif causes.is_likely and causes.differences and not is_unconfirmed:
        restored = _restored(run, regression) if title else None  # a bisection finds the cause, it undoes nothing
        if tested:
            title = f"Test regression {continued}: {tested}"
            undo = f"Run commit {short_commit(commit)} in container {before}."
            restored = restored and replace(restored, name=f"if the container caused regression {continued}")
        taken = Taken({}, restored, title=title or (f"Bisect {bisected}" if bisected else ""))
    elif container is not None and not is_unconfirmed:
        has_other_code = any(item.axis == "code" for item in causes.differences)
        title = f"Test the old container{' with the new code' if has_other_code else ''}"
        taken = Taken({}, title=f"Test regression {continued}: {tested}" if tested else title)
        undo = undo_text(causes.differences)
    else:
        test = f"bisect {bisected}" if bisected else _apart_text(causes.differences)
        rerun = f"Rerun, then {test}" if test else "Rerun the job on other nodes"
        title = rerun if continued is None or not test else f"{test[0].upper()}{test[1:]}"
        taken = Taken({}, title=title)
        undo = undo_text(causes.differences)
        undo = f"Rerun the job. If it is slow again: {undo}" if undo and continued is None else undo
    by_metric = "" if regression.metric == "step time" else f" --metric {_METRICS[regression.metric]}"
    bisect = f"threewalls bisect {causes.bisected}{by_metric}"
    facts = {
        "regression_rerun": is_unconfirmed and not settings,
        "regression_bisect": bisect if bisected and not settings else "",
        "regression_in_container": commands_in(before, commit) if before else "",
        "regression_metric": regression.metric,
        "regression_pct": regression.pct,
        "regression_text": regression.text,
        "regression_cause": _cause_text(causes),
        "regression_undo": undo
        or f"Rerun the job on other nodes{'' if causes.alternates else ', because no known field differs'}.",
    }
    return facts, taken


_BELOW_AB = 4
"""Evidence level of a suggestion to go back. A verdict names only a likely cause; an A/B must prove it."""


def _restored(run: RunDetail, regression: _Regression) -> Statement | None:
    """Return the expected gain of undoing the regression; None if no step time regressed.

    Its size is what the runs since then show; its interval comes from the verdict on the slow run.
    """
    change = regression.document.measured
    if change is None or regression.metric != "step time":
        return None
    since = (100 + regression.pct) / (100 + change.delta_pct)
    low, high = (since * (100 + end) - 100 for end in (change.ci_low_pct, change.ci_high_pct))
    gain = gain_change(regression.pct, low, high)
    return Statement(
        level=_BELOW_AB,
        text=f"{gain.text}, if the whole difference disappears",
        setting=f"run #{regression.run} and its baseline",
        source=MEASURED_HERE,
        date="",
        gain=(low, high),
        pct=regression.pct,
        at={name: run.contract[name].value for name in LIKENESS if name in run.contract},
        name="undoes the slowdown of this run"
        if regression.run == run.id
        else f"undoes {percent(regression.pct)} since #{regression.run}",
    )


class _Causes(NamedTuple):
    """The likely suspects, or without evidence all possible ones. `first`: the code, or the fields to set back at once.

    `is_likely`: evidence supports `first`, or nothing else can be the cause. `is_single`: the evidence singles out each
    of `differences` (`RankedSuspect.is_likely`). `bisected`: the run whose commits are bisected, as code is suspected.
    `alternates`: in words, between which levels the job alternates; then a node is suspected, and no field.
    """

    differences: tuple[Difference, ...]
    first: tuple[Difference, ...]
    is_likely: bool
    is_single: bool
    bisected: int
    alternates: str = ""


def _causes(session: Session, regression: _Regression) -> _Causes:
    metric = _METRICS[regression.metric]
    own = suspects_with_evidence(session, regression.run, regression.document, metric)
    suspects, bisected = within_regression(session, regression.run, metric, own)
    if levels := next((item.alternates for item in suspects if item.alternates), None):
        words = alternates_text(levels, states_node=states_node(session, regression.run))
        return _Causes((), (), is_likely=False, is_single=False, bisected=bisected, alternates=words)
    ranked = [item for item in suspects if item.support != "unlikely"]
    likely = _differences(item for item in ranked if item.is_likely)
    possible = likely or _differences(ranked)
    if not possible:
        return _Causes((), (), is_likely=True, is_single=False, bisected=bisected)
    first = possible[:1] if possible[0].role == "info" else [item for item in possible if item.role != "info"]
    is_likely = bool(likely) or len(first) == len(possible)
    return _Causes(tuple(first if is_likely else possible), tuple(first), is_likely, bool(likely), bisected)


def _differences(ranked: Iterable[RankedSuspect]) -> list[Difference]:
    """Return the differences of suspects that are as certain as the first."""
    differing = [item.suspect.difference for item in ranked if item.suspect.difference is not None]
    return [item for item in differing if item.is_certain == differing[0].is_certain]


def _cause_text(causes: _Causes) -> str:
    if causes.alternates:
        return f"The job {causes.alternates}."
    if not causes.differences:
        return "No known field differs: suspect the nodes or chance."
    texts = (f"{cause.field} {_side(cause.a)} to {_side(cause.b)}" for cause in causes.differences[:3])
    possible = "Possible cause, not proven" if len(causes.differences) == 1 else "Possible causes, none proven"
    return f"{'Most likely cause' if causes.is_single else possible}: {'; '.join(texts)}."


def _range(differences: Sequence[Difference]) -> str:
    """Return `64bee49c..e79110c6`; empty if the commit does not differ."""
    code = next((item for item in differences if item.axis == "code"), None)
    return "" if code is None else f"{short_commit(_side(code.a))}..{short_commit(_side(code.b))}"


def _apart_text(differences: Sequence[Difference]) -> str:
    """Return `test container and code one by one`; empty if nothing differs."""
    names = ["code" if item.axis == "code" else item.field for item in differences]
    if len(names) < 2:
        return f"test {names[0]}" if names else ""
    return f"test {names[0]} and {names[1] if len(names) == 2 else f'{len(names) - 1} more'} one by one"


_HASH = re.compile(r"[0-9a-f]{40}")
_SHORT_HASH = 12
_IN_TITLE = 40


def _side(value: Stated | None) -> str:
    """Return a value for a sentence; a commit is shortened to digits that git accepts."""
    text = "" if value is None else contract_value(value.value)[:100]
    return (text[:_SHORT_HASH] if _HASH.fullmatch(text) else text) or "not stated"


def undo_text(differences: Sequence[Difference], verb: str = "back to") -> str:
    """Return instructions for getting from side b to side a: bisect the code, run on another node, set a value."""
    sentences = []
    for difference in differences[:5]:
        before, now = _side(difference.a), _side(difference.b)
        if difference.axis == "code":
            sentences.append(f"Bisect the code: `git bisect start {now} {before}`.")
        elif difference.axis == "place":
            sentences.append(f"Run on {difference.field} {before} again.")
        else:
            sentences.append(f"Set {difference.field} {verb} {before}.")
    return " ".join(sentences)


def back_title(aim: str, differences: Sequence["Difference | _Changed"]) -> str:
    """Return `Go back to run #12: mbs 2 → 1 and 3 more`, with values from now to before; empty without a setting.

    Commits and nodes are not settings.
    """
    settings = [item for item in differences if isinstance(item, _Changed) or item.axis not in ("code", "place")]
    if not settings:
        return ""
    first, more = settings[0], len(settings) - 1
    if isinstance(first, _Changed):
        name, now, before = first.name, _short(first.now), _short(first.before)
    else:
        name, (now, before) = first.field, last_parts(_side(first.b), _side(first.a))
    title = f"{aim}: {name} {now[:_IN_TITLE]} → {before[:_IN_TITLE]}"
    return f"{title} and {more} more" if more else title


def values_of(differences: Sequence[Difference]) -> dict[str, Setting]:
    """Return side a of the fields that a launch can set, without commit, container and node."""
    return {
        difference.field: difference.a.value
        for difference in differences
        if difference.a is not None and difference.axis in ("recipe", "workload") and PREFIX not in difference.field
    }


# --- The last run of the same job that worked, and what has changed since then.


class _Changed(NamedTuple):
    """A changed trainer argument that is not part of the contract."""

    name: str
    before: object
    now: object


@dataclass(frozen=True, slots=True)
class _Worked:
    """An earlier run that worked. `differences`: of key fields; `versions`: also container digest and commit.

    `is_side`: it was made for an experiment. `peak`: its peak memory against that of its GPU, or empty.
    """

    run: int
    differences: tuple[Difference, ...]
    arguments: tuple[_Changed, ...] = ()
    versions: tuple[Difference, ...] = ()
    is_side: bool = False
    peak: str = ""

    @property
    def names(self) -> list[str]:
        return [*(item.field for item in self.differences), *(item.name for item in self.arguments)]

    @property
    def taken(self) -> Taken:
        title = back_title(f"Go back to run #{self.run}", (*self.differences, *self.arguments, *self.versions))
        return Taken(values_of(self.differences), title=title)

    @property
    def changes(self) -> str:
        """Return what has changed since then, as text."""
        texts = [f"{item.field} {_side(item.a)} to {_side(item.b)}" for item in (*self.differences, *self.versions)]
        texts[len(self.differences) : len(self.differences)] = [
            f"{item.name} {_short(item.before)} to {_short(item.now)}" for item in self.arguments
        ]
        return some_of(texts, _SHOWN)

    @property
    def causes(self) -> str:
        """Return `mbs and commit changed, likely cause: mbs`: versions rarely raise the peak memory."""
        versions = ["commit" if item.axis == "code" else item.field for item in self.versions]
        changed = f"{some_of([*self.names, *versions], _SHOWN)} changed"
        return f"{changed}, likely cause: {some_of(self.names, _SHOWN)}" if versions else changed

    @property
    def undo(self) -> str:
        """Return how to go back."""
        arguments = [f"Set {item.name} back to {_short(item.before)}." for item in self.arguments[:_SHOWN]]
        return " ".join(filter(None, [undo_text(self.differences), *arguments, undo_text(self.versions)]))


def _last_that_worked(session: Session, run: RunDetail) -> _Worked | None:
    """Return the most similar earlier run that worked: of the same job, or of the same model and GPUs.

    Of equally similar runs, one side of an experiment comes last.
    """
    model, gpu = run.contract.get("model"), run.contract.get("gpu")
    if run.ordered_at is None or (not run.job and (model is None or gpu is None)):
        return None
    is_same = [col(RunRow.job) == run.job] if run.job else []
    if model is not None and gpu is not None:
        is_same.append(and_(col(RunRow.model) == shown(model.value), col(RunRow.gpu) == shown(gpu.value)))
    rows = session.execute(
        select_any(RunRow.id, RunRow.commit, RunRow.purpose, RunRow.peak_memory_gib, RunResultRow.contract)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.project_id) == run.project_id,
            or_(*is_same),
            col(RunRow.status) == "ready",
            col(RunRow.is_steady).is_(True),
            col(RunRow.outcome).not_in(ENDED_BADLY),
            col(RunRow.quarantine) == "",
            col(RunRow.ordered_at) < run.ordered_at,
            col(RunRow.id) != run.id,
        )
        .order_by(col(RunRow.purpose) == "experiment", col(RunRow.ordered_at).desc())
        .limit(_EARLIER)
    )
    worked = []
    for row in rows:
        contract = stored_contract(row.contract)
        if any(item.is_certain for item in differing(("seq_len",), contract, run.contract)):
            continue  # a run with a shorter sequence is another job
        versions = (*differing_outside_keys(contract, run.contract), *differing_commit(row.commit, run.commit))
        is_side = row.purpose == "experiment"
        memory = GPU_MEMORY_GIB.get(str(gpu.value)) if gpu is not None else None
        size = f" of {memory}" if memory else ""
        peak = f" (peak {row.peak_memory_gib:.1f}{size} GiB)" if row.peak_memory_gib else ""
        worked.append(_Worked(row.id, _since(contract, run.contract), (), versions, is_side, peak))
    nearest = sorted(worked, key=lambda earlier: (len(earlier.differences), earlier.is_side))[:_WITH_ARGUMENTS]
    now = _arguments(session, run.id) if nearest else {}
    if now:
        nearest = [replace(earlier, arguments=_changed(_arguments(session, earlier.run), now)) for earlier in nearest]
    return min(nearest, key=lambda earlier: (len(earlier.names), earlier.is_side, len(earlier.versions)), default=None)


def _since(before: Mapping[str, Stated], now: Mapping[str, Stated]) -> tuple[Difference, ...]:
    """Return certain differences that a launch can revert, without derived fields."""
    names = dict.fromkeys((*STACK_FIELDS, *CONFIG_FIELDS))
    return tuple(
        difference
        for difference in differing(names, before, now)
        if difference.is_certain
        and axis_of(difference.field) != "place"
        and difference.b is not None
        and difference.b.source != "derived"
    )


def _arguments(session: Session, run_id: int) -> Mapping[str, Any]:
    return readings.arguments_of(session, run_id, files_of(session, run_id))


_OF_FIELDS = frozenset(
    name for row in FLAGS.values() for names in (row, *row.words.values()) for name in names.arguments
)
"""Arguments that contract fields are read from. Their differences are shown as differences of the fields."""
_OF_ONE_RUN = re.compile(
    r"(^|_)(save|load|dir|path|name|id|uuid|user|host|port|addr|address|url|time|date|timestamp|rank|seed|wandb|mlflow|"
    r"tensorboard|prefix|version|key|token|project|group|entity)(_|$)|^data_parallel_size$|_parallel_size$|_warmup_"
)
"""Names of arguments that differ between any two runs, or that follow from contract fields."""


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[_Changed, ...]:
    """Return the arguments whose values differ between the runs, without those that name the run or its folders."""
    return tuple(
        _Changed(name, before[name], value)
        for name, value in now.items()
        if name in before
        and before[name] != value
        and name not in _OF_FIELDS
        and not _OF_ONE_RUN.search(name)
        and "/" not in f"{before[name]}{value}"
    )


def _short(value: Any) -> str:
    return shown(value)[:60]


# --- Runs that work where another failed.


_WORK = ("seq_len", "gbs", "container")
"""Fields that a run with the same model and GPUs must share to show that the work fits there."""


@dataclass(frozen=True, slots=True)
class WorkingRun:
    """`differs`: what differs from the failed run in work and container, with its own values; empty: nothing."""

    id: int
    name: str
    dispatcher: str | None
    step_time_ms: float
    differs: tuple[str, ...]


def working_runs(session: Session, run: RunDetail, most: int) -> tuple[WorkingRun, ...]:
    """Return the newest completed runs of the run's work in its container; without any, of its model and GPUs.

    Its own stack comes first, and runs of experiments come last. Empty if the run states no model or no GPU: any run
    would match.
    """
    values = {name: stated.value for name, stated in run.contract.items()}
    if not (values.get("model") and values.get("gpu")):
        return ()
    columns = {"model": RunRow.model, "gpu": RunRow.gpu, "gpus": RunRow.gpus}
    rows = session.execute(
        select_any(
            RunRow.id, RunRow.name, RunRow.dispatcher, RunRow.step_time_ms, RunRow.stack_key, RunResultRow.contract
        )
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.project_id) == run.project_id,
            col(RunRow.status) == "ready",
            col(RunRow.outcome) == "completed",
            col(RunRow.quarantine) == "",
            col(RunRow.step_time_ms).is_not(None),
            *(col(column) == values[name] for name, column in columns.items() if values.get(name)),
        )
        .order_by(
            (col(RunRow.stack_key) == run.stack_key).desc(),
            col(RunRow.purpose) == "experiment",
            col(RunRow.ordered_at).desc(),
            col(RunRow.id).desc(),
        )
        .limit(_EARLIER)
    )
    working = []
    for row in rows:
        is_same = row.stack_key == run.stack_key != ""
        differences = () if is_same else differing(_WORK, stored_contract(row.contract), run.contract)
        texts = tuple(f"{item.field} {last_parts(_side(item.a), _side(item.b))[0]}" for item in differences)
        working.append(WorkingRun(row.id, row.name, row.dispatcher, row.step_time_ms, texts))
    here = [other for other in working if not other.differs]
    return tuple((here or working)[:most])


def _other_container(session: Session, run: RunDetail) -> tuple[str, str] | None:
    """Return another container in which the requested dispatcher works on this GPU, and the run that shows it.

    A run of the same model comes first; a run of another one is named with its model.
    """
    container, dispatcher, gpu = (run.contract.get(name) for name in ("container", "dispatcher", "gpu"))
    if container is None or dispatcher is None or gpu is None:
        return None
    model = run.contract["model"].value if "model" in run.contract else None
    row = session.execute(
        select_any(AvailabilityRow.container, AvailabilityRow.run_id, RunRow.model)
        .join(RunRow, col(RunRow.id) == AvailabilityRow.run_id)
        .where(
            col(AvailabilityRow.project_id) == run.project_id,
            col(AvailabilityRow.dispatcher) == dispatcher.value,
            col(AvailabilityRow.available),
            col(AvailabilityRow.container).not_in(("", container.value)),
            col(RunRow.gpu) == gpu.value,
            col(RunRow.quarantine) == "",
        )
        .order_by((col(RunRow.model) == model).desc().nulls_last(), col(AvailabilityRow.run_id).desc())
        .limit(1)
    ).one_or_none()
    if row is None:
        return None
    return row.container, f"#{row.run_id}" if row.model in (model, None) else f"#{row.run_id}, {row.model}"


def _with_other_dispatcher(session: Session, run: RunDetail) -> WorkingRun | None:
    """Return the first of `working_runs` in the container with another dispatcher; None without one."""
    requested = run.contract.get("dispatcher")
    others = (None, "", None if requested is None else requested.value)
    runs = working_runs(session, run, _EARLIER)
    return next((row for row in runs if not row.differs and row.dispatcher not in others), None)
