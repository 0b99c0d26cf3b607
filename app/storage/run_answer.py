"""What the page of a run, the API, reports and notifications say first: the badge, the lead, and reruns to start."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from sqlmodel import Session

from app.domain.numbers import levels_text, step_time
from app.domain.performance.failures import failure_lead
from app.domain.performance.steady_state import unsteady_briefly
from app.domain.report.values import verdict_json
from app.domain.verdict.assess import changed_field
from app.domain.verdict.comparability import Difference
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.evidence import RankedSuspect, alternates_text, since_last_good
from app.domain.verdict.lead import OngoingRegression, answer_line, lead
from app.domain.verdict.regression import Regression
from app.domain.verdict.regression_text import idle_text
from app.domain.verdict.step_time import shows_no_difference
from app.domain.verdict.triage import ACTIVE, is_half_gone
from app.domain.verdict.words import badge_text, decision_word, other_branch_text, rerun_text, sides_text
from app.storage.regressions import ends_of_costs, read_regressions, regressions_elsewhere
from app.storage.runs import RunDetail
from app.storage.suspect_evidence import alternations_of_runs, suspects_with_evidence, within_regression
from app.storage.verdicts import RunRegression, current_verdict, recovery, regressions_of, rerun_request, run_badge


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """`document`: the verdict, with the commits since the last good run. `suspects`: with evidence. `regressions`: of
    the run; `opened` is whether it opened one of them.

    `badge`: decision and label, as `VerdictDocument.badge`. `metric`: what it is about, as
    `VerdictDocument.leading_metric`. `lead`: the answer in one short sentence; `whole_lead`: the same with the setting
    that would change it.

    `ab`: the run belongs to an experiment or has another configuration than its baseline, so it opens no regression.
    `cause`: the difference that the evidence supports as the cause, None without one. `rerun`: the reruns that the
    verdict or an unsteady contrast requests, and how to start them; empty for none. `asks_rerun`: a rerun is the next
    step, because it would confirm or decide the answer. `ongoing`: the regression that a run without a change
    continues. `elsewhere`: other regressions, of its job in another container or cluster, whose pages list the run.
    `alternates`: nothing is decided, because its job moves between two levels, whose mean has no meaning.
    """

    document: VerdictDocument
    suspects: tuple[RankedSuspect, ...]
    regressions: tuple[RunRegression, ...]
    opened: bool
    badge: tuple[str, str]
    metric: str
    ab: bool
    lead: str
    whole_lead: str
    cause: Difference | None
    rerun: str
    asks_rerun: bool
    ongoing: OngoingRegression | None
    elsewhere: tuple[Regression, ...]
    alternates: bool = False

    @property
    def word(self) -> str:
        """Return the text of the badge; the decision where the page shows none."""
        return badge_text(*self.badge, is_ab=self.ab) or decision_word(self.document.decision)

    @property
    def needs_confirmation(self) -> bool:
        """Return whether a rerun must confirm that the run is slower, because it opened no regression."""
        return self.document.needs_confirmation and not self.opened

    @property
    def headline(self) -> str:
        """Return badge and lead as one line of plain text, with which reports begin."""
        aside = f"; quarantined: {self.document.quarantined}" if self.document.quarantined else ""
        return answer_line(self.badge, self.whole_lead, is_ab=self.ab) + aside

    @property
    def values(self) -> dict[str, Any]:
        """Return the verdict as JSON, with what only the service knows about it."""
        return verdict_json(self.document, self.suspects) | {
            "reason": self.lead,
            "raises_regression": self.document.raises_regression or self.opened,
            "needs_confirmation": self.needs_confirmation,
        }


def run_answer(session: Session, run: RunDetail, document: VerdictDocument) -> RunAnswer:
    """Return the answer of a judged run. `document`: its stored verdict."""
    regressions = regressions_of(session, run.id)
    ends = ends_of_costs(session, {item.id for item in regressions if item.gpu_hours_per_day and not item.over})
    regressions = tuple(replace(item, cost_end=ends.get(item.id, "")) for item in regressions)
    opened = {item.metric for item in regressions if not item.continues}
    is_opened, metric = bool(opened), document.leading_metric(in_regression=opened)
    ranked, _ = within_regression(session, run.id, metric, suspects_with_evidence(session, run.id, document, metric))
    document = since_last_good(document, ranked)
    recovered_from = recovery(session, run.id, document)
    request, contrast, steady = rerun_request(session, run.id, document), document.contrast, run.steady_state
    likely = [item for item in ranked if item.is_likely]
    # All likely suspects are supported, or one alone is left: the one that the page of its regression names.
    cause = likely[0].suspect.difference if likely else None
    rerun = "" if request is None else rerun_text(request, document.decision, str(run.id))
    if not is_opened and contrast is not None and document.rerun_decides:
        rerun = "A rerun shows whether the step time changed."
    own_ids = {item.id for item in regressions}
    elsewhere = tuple(item for item in regressions_elsewhere(session, run.id) if item.id not in own_ids)
    shown: list[RunRegression | Regression] = [*regressions, *elsewhere]
    levels = alternations_of_runs(session, [run.id]).get(run.id) if document.decision == "no_baseline" else None
    has_node = "nodes" in run.contract
    if between := levels or next((item.alternates for item in ranked if is_opened and item.alternates), None):
        node = "another node" if has_node else "a named node"
        rerun = f"The job alternates between {levels_text(between)}, whatever its code: rerun it on {node}."
    idle = {item.id for item in shown if item.shown_state in ACTIVE and item.proposal == "stale"}
    for regression in read_regressions(session, idle)[:1]:
        rerun = idle_text(regression)
    badge = run_badge(document, opened, is_back=recovered_from is not None)
    is_undecided = levels is not None and badge[0] == "inconclusive"
    time, own_ms = document.verdict.step_time, steady.step_time_ms if steady else None
    ongoing = None
    if own_ms and time is not None and (time.decision == "no_change" or shows_no_difference(time)):
        ongoing = ongoing_regression(session, regressions, own_ms)
        if ongoing is None or time.decision != "no_change":
            sizes = {item.id: item.delta_pct for item in regressions}
            pairs = [(ongoing, sizes[ongoing.id])] if ongoing else []
            pairs += _of_other_stacks(elsewhere, run.job)
            ongoing = next((item for item, pct in pairs if _are_slow(item, pct, (own_ms, time.baseline_ms))), None)
    own = (
        failure_lead(run.failures[0], run.health.get("last_iteration"))
        if document.decision == "failed" and run.failures
        else lead(
            document,
            cause,
            own_ms,
            ongoing,
            unsteady=unsteady_briefly(steady) if steady else "",
            recovered_from=recovered_from,
            in_regression=opened,
            alternates=between is not None,
        )
    )
    if levels and is_undecided and own_ms:
        own = f"Inconclusive: {step_time(own_ms)}; the job {alternates_text(levels, states_node=has_node)}."
    other_branch = document.other_branch if document.decision == "no_baseline" else None
    return RunAnswer(
        document=document,
        suspects=ranked,
        regressions=regressions,
        opened=is_opened,
        badge=badge,
        metric=metric,
        ab=run.purpose == "experiment"
        or (document.comparability is not None and document.comparability.kind != "verdict"),
        lead=own,
        whole_lead=own if other_branch is None else f"{other_branch_text(other_branch)}.",
        cause=cause,
        rerun=rerun,
        asks_rerun=(document.rerun_decides and not (is_opened and document.comparability is None))
        or (bool(rerun) and badge[0] == "regression")
        or is_undecided,
        ongoing=ongoing,
        elsewhere=elsewhere,
        alternates=is_undecided,
    )


def _of_other_stacks(elsewhere: Iterable[Regression], job: str) -> list[tuple[OngoingRegression, float | None]]:
    """Return the active step-time regressions of a job in other containers and clusters, with its change (%)."""
    return [
        (OngoingRegression(item.id, slow.first.usual, f"before regression {item.id}", is_elsewhere=True), pct)
        for item in elsewhere
        if item.metric == "step_time_ms" and item.shown_state in ACTIVE and not item.is_back
        for slow in item.jobs
        if slow.first.job == job and slow.first.usual and (pct := slow.worst.delta_pct) is not None
    ]


def _are_slow(ongoing: OngoingRegression, delta_pct: float | None, times_ms: Iterable[float]) -> bool:
    """Return whether at least half of the change of a regression is in each of these step times."""
    return not any(is_half_gone(delta_pct, 100 * (ms / ongoing.usual_ms - 1)) for ms in times_ms)


def ongoing_regression(
    session: Session, regressions: Iterable[RunRegression], own_ms: float
) -> OngoingRegression | None:
    """Return the newest active step-time regression of a run that is slower than its job was before it."""
    for item in regressions:
        is_slow = item.metric == "step_time_ms" and item.shown_state in ACTIVE and not item.over
        if not is_slow or item.since_run is None or item.usual is None or own_ms <= item.usual:
            continue
        slow = current_verdict(session, item.since_run) if item.kind == "upgrade" else None
        upgrade = slow.document.upgrade if slow else None
        with_ = f"with {sides_text(changed_field(upgrade.comparability))[0]}" if upgrade else ""
        return OngoingRegression(item.id, item.usual, with_ or f"before #{item.since_run}")
    return None
