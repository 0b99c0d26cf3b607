"""The page of one regression: what is known of each member, the discussion, and the form to work on it."""

from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlencode

from sqlalchemy import func, select
from sqlmodel import Session, col

from app.domain.contract.values import shown
from app.domain.cost import Cost
from app.domain.numbers import counted, short_commit, step_time
from app.domain.suspect_evidence import RankedSuspect
from app.domain.triage import MEANING, State, next_states
from app.domain.verdict_document import VerdictDocument
from app.domain.verdict_sentences import answer as verdict_answer
from app.domain.verdict_words import side_text
from app.regressions import sentences
from app.regressions.costs import costs_of
from app.regressions.forms import TriageForm
from app.regressions.history_chart import Point, points_of
from app.regressions.queries import get_regression
from app.regressions.read_models import Member, Regression
from app.storage import audit
from app.storage.evidence import suspects_with_evidence
from app.storage.run_records import aware
from app.storage.tables import ProjectRow, RunRow, utc_now
from app.storage.verdicts import StoredVerdict, current_verdict


@dataclass(frozen=True, slots=True)
class BaselineRun:
    id: int
    name: str
    commit: str
    step_time: str
    counted: bool


@dataclass(frozen=True, slots=True)
class MemberView:
    """`verdict`: the current one of the first slow run; `baseline` oldest first; `before`: the last commit before."""

    member: Member
    cost: Cost
    cost_factors: str
    first_seen: str
    usual: str
    slow: str
    verdict: StoredVerdict | None
    verdict_answer: str
    suspects: tuple[RankedSuspect, ...]
    baseline: tuple[BaselineRun, ...]

    @property
    def against(self) -> str:
        """`13 baseline runs`; what stands in for them after an upgrade are none."""
        n = len(self.baseline)
        is_contrast = self.verdict is not None and self.verdict.document.comparability is None
        return f"{counted(n, 'run')} before the upgrade" if is_contrast else counted(n, "baseline run")

    @property
    def before(self) -> str:
        """The commit of the newest baseline run."""
        return self.baseline[-1].commit if self.baseline else ""


class RegressionView:
    """What the template prints. `form` came back from a browser; it belongs to the proposal when it answers one."""

    def __init__(self, session: Session, regression_id: int, form: TriageForm | None = None) -> None:
        self._session = session
        self.found: Regression = get_regression(session, regression_id)
        answers = form is not None and form.value("proposal")
        self.answering = form if form and answers else TriageForm()
        self.form = (TriageForm() if answers or form is None else form).over(self.found)
        self.problem = form.problem if form else ""
        self.project: ProjectRow = session.execute(
            select(ProjectRow).where(col(ProjectRow.slug) == self.found.project)
        ).scalar_one()

    side = staticmethod(side_text)

    @property
    def title(self) -> str:
        return sentences.what(self.found)

    @property
    def answer(self) -> str:
        return sentences.answer(self.found)

    @property
    def states(self) -> tuple[tuple[State, str], ...]:
        """The states that may follow, with what they mean."""
        return tuple((state, MEANING[state]) for state in next_states(self.found.state))

    @cached_property
    def members(self) -> tuple[MemberView, ...]:
        costs = costs_of(self._session, self.found, utc_now())
        return tuple(self._member(member, costs[member.run_id]) for member in self.found.members)

    @cached_property
    def discussion(self) -> tuple[sentences.Done, ...]:
        """Newest last, as a discussion is read."""
        return tuple(
            sentences.told(event) for event in reversed(audit.events(self._session, "regression", self.found.id))
        )

    @cached_property
    def proposal(self) -> str:
        """`The last 4 runs are back within 1 %.`; empty when nothing is proposed."""
        if self.found.proposal != "fixed":
            return ""
        run = self._session.get(RunRow, self.found.proposal_run_id) if self.found.proposal_run_id else None
        if run is None:
            return "Its later runs are back within 1 % of the usual level."
        back = self._runs_since(run)
        which = "The last run is" if back == 1 else f"The last {back} runs are"
        return f"{which} back within 1 % of the usual level, since run #{run.id}" + (
            f" at commit {short_commit(run.commit)}." if run.commit else "."
        )

    @property
    def upgrade(self) -> str:
        """The query of the report of the upgrade that opened it; empty for others."""
        verdict = self.members[0].verdict if self.found.kind == "upgrade" and self.members else None
        contrast = verdict.document.contrast if verdict else None
        if contrast is None or not contrast.comparability.stack:
            return ""
        one = contrast.comparability.stack[0]
        sides = {name: "" if side is None else shown(side.value) for name, side in (("from", one.a), ("to", one.b))}
        return urlencode({"project": self.found.project, "field": one.field} | sides)

    def member_of(self, run_id: int) -> Member | None:
        return next((member for member in self.found.members if member.run_id == run_id), None)

    def points(self, member: Member) -> tuple[Point, ...]:
        return points_of(self._session, self.project.id or 0, member, self.found.metric)

    def _runs_since(self, run: RunRow) -> int:
        """Runs of the configuration that count, from `run` on."""
        counts = (
            col(RunRow.config_key) == run.config_key, col(RunRow.project_id) == run.project_id,
            col(RunRow.purpose) == "ci", col(RunRow.is_steady).is_(True), col(RunRow.short).is_(False),
            col(RunRow.quarantine) == "",
            col(RunRow.ordered_at) >= aware(run.ordered_at),
        )  # fmt: skip
        found: int = self._session.execute(select(func.count(col(RunRow.id))).where(*counts)).scalar_one()
        return max(found, 1)

    def _member(self, member: Member, cost: Cost) -> MemberView:
        verdict = current_verdict(self._session, member.run_id)
        document = verdict.document if verdict else None
        return MemberView(
            member=member,
            cost=cost,
            cost_factors=sentences.cost_factors(cost),
            first_seen=sentences.first_seen(self.found.metric, member),
            usual=sentences.figure_text(self.found.metric, member.usual),
            slow=sentences.figure_text(self.found.metric, member.slow),
            verdict=verdict,
            verdict_answer=verdict_answer(document) if document else "",
            suspects=suspects_with_evidence(self._session, member.run_id, document) if document else (),
            baseline=self._baseline(document) if document else (),
        )

    def _baseline(self, document: VerdictDocument) -> tuple[BaselineRun, ...]:
        """The runs that it was measured against; after an upgrade those of the other side."""
        contrast = document.contrast if document.comparability is None else None
        chosen, used = document.baseline, document.verdict.baseline_used
        if contrast is not None:
            chosen, used = contrast.runs, contrast.measured.baseline_used
        ids = [int(name) for name in chosen]
        rows = self._session.execute(
            select(RunRow.id, RunRow.name, RunRow.commit, RunRow.step_time_ms).where(col(RunRow.id).in_(ids))  # type: ignore[call-overload]
        )
        runs = {
            row.id: BaselineRun(
                row.id, row.name, row.commit,
                "unknown" if row.step_time_ms is None else step_time(row.step_time_ms), str(row.id) in used,
            )
            for row in rows
        }  # fmt: skip
        return tuple(runs[one] for one in ids if one in runs)
