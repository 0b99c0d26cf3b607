"""What the page of a run, the API and its reports begin with: the badge, the lead, and the reruns to start."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlmodel import Session

from app.domain.numbers import change_text
from app.domain.performance.failures import failure_lead
from app.domain.performance.steady_state import unsteady_briefly
from app.domain.verdict.assess import changed_field
from app.domain.verdict.comparability import Difference
from app.domain.verdict.document import VerdictDocument
from app.domain.verdict.evidence import RankedSuspect
from app.domain.verdict.lead import lead
from app.domain.verdict.triage import ACTIVE
from app.domain.verdict.words import badge_text, other_branch_text, rerun_text, sides_text
from app.storage.runs import RunDetail
from app.storage.verdicts import RunRegression, current_verdict, recovery, rerun_request


@dataclass(frozen=True, slots=True)
class RunAnswer:
    """`badge`: decision and label, as `VerdictDocument.badge`. `lead`: the answer in one short sentence; `whole_lead`:
    the same with the setting that would change it.

    `ab`: the run belongs to an experiment or has another configuration than its baseline, so it opens no regression.
    `cause`: the difference that the evidence supports as the cause, None without one. `rerun`: the reruns that the
    verdict or an unsteady contrast requests, and how to start them; empty for none. `asks_rerun`: a rerun is the next
    step, because it would confirm or decide the answer.
    """

    badge: tuple[str, str]
    ab: bool
    lead: str
    whole_lead: str
    cause: Difference | None
    rerun: str
    asks_rerun: bool

    @property
    def headline(self) -> str:
        """Return badge and lead as one line of plain text, with which reports begin."""
        decision, label = self.badge
        badge, lead = badge_text(decision, label, is_ab=self.ab), self.whole_lead.replace("`", "")
        return f"{badge} · {lead.removeprefix('Inconclusive: ')}" if badge else lead


def run_answer(
    session: Session,
    run: RunDetail,
    document: VerdictDocument,
    ranked: Sequence[RankedSuspect],
    regressions: Sequence[RunRegression],
) -> RunAnswer:
    """Return the answer of a judged run. `ranked`: its suspects with evidence; `regressions`: of the run."""
    is_opened = any(not item.continues for item in regressions)
    recovered_from = recovery(session, run.id, document)
    cause = ranked[0].suspect.difference if ranked and ranked[0].support == "supported" else None
    request, contrast, steady = rerun_request(session, run.id, document), document.contrast, run.steady_state
    rerun = "" if request is None else rerun_text(request, document.decision, str(run.id))
    if not is_opened and contrast is not None and document.rerun_decides:
        rerun = "Not steady: a rerun of this job shows whether it is slower."
    badge = (
        ("improvement", "recovered")
        if recovered_from
        else ("regression", "more memory")
        if document.needs_more_memory
        else document.badge(in_regression=is_opened)
    )
    own = (
        failure_lead(run.failures[0], run.health.get("last_iteration"))
        if document.decision == "failed" and run.failures
        else lead(
            document,
            cause,
            steady.step_time_ms if steady else None,
            _ongoing(session, regressions),
            unsteady=unsteady_briefly(steady.reasons, steady.n) if steady else "",
            recovered_from=recovered_from,
        )
    )
    other_branch = document.other_branch if document.decision == "no_baseline" else None
    return RunAnswer(
        badge=badge,
        ab=run.purpose == "experiment"
        or (document.comparability is not None and document.comparability.kind != "verdict"),
        lead=own,
        whole_lead=own if other_branch is None else f"{other_branch_text(other_branch)}.",
        cause=cause,
        rerun=rerun,
        asks_rerun=(document.rerun_decides and not (is_opened and document.comparability is None))
        or (bool(rerun) and badge[0] == "regression"),
    )


def _ongoing(session: Session, regressions: Iterable[RunRegression]) -> str:
    """Return `6.5 % slower than train:2026.09 (regression 2)` for the newest active step-time regression of a run."""
    for item in regressions:
        is_slow = item.metric == "step_time_ms" and item.shown_state in ACTIVE and not item.over
        if not is_slow or item.since_run is None or item.delta_pct is None:
            continue
        slow = current_verdict(session, item.since_run) if item.kind == "upgrade" else None
        upgrade = slow.document.upgrade if slow else None
        before = sides_text(changed_field(upgrade.comparability))[0] if upgrade else f"before #{item.since_run}"
        return f"{change_text(item.delta_pct).text} than {before} (regression {item.id})"
    return ""
