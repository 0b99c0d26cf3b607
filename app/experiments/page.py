"""All that the page of one experiment shows. Parts are computed when a template asks for them."""

from collections.abc import Callable
from functools import cached_property

from sqlmodel import Session

from app.domain.experiments.values import UNDECIDED, Side, State
from app.domain.numbers import counted
from app.experiments.commands_view import SideCommands, side_commands
from app.experiments.forms import DecisionForm
from app.experiments.order_view import Slot, missing, next_side, slots
from app.experiments.projects import is_generated
from app.experiments.result_view import Effect, Row, effect, result_rows, runs_that_decide, would_decide
from app.experiments.runs_view import RunLine, run_lines
from app.experiments.words import LETTERS, knobs_text
from app.storage.audit import AuditEvent, events
from app.storage.experiments import Experiment, get_experiment

NextStep = Callable[[Session, int], tuple[str, str] | None]
"""Rule and title of what to do first with a run; None where there is nothing."""
_STEPS: tuple[State, ...] = ("planned", "waiting", "done")


class ExperimentPage:
    """What the template asks for. Raises NotFound."""

    def __init__(
        self,
        session: Session,
        experiment_id: int,
        base_url: str,
        next_step: NextStep | None = None,
        form: DecisionForm | None = None,
    ) -> None:
        self._session = session
        self._base_url = base_url
        self._next_step = next_step
        self.form = form or DecisionForm()
        self.one: Experiment = get_experiment(session, experiment_id)

    @property
    def token(self) -> str:
        """What this page has seen: another one means news."""
        runs = ".".join(f"{run.run_id}{run.status[:2]}{'' if run.counts else '-'}" for run in self.one.runs)
        at = f"{self.one.result_at.timestamp():.0f}" if self.one.result_at else "0"
        return f"{self.one.state}.{at}.{runs}"[:400]

    @property
    def follows(self) -> bool:
        """Something may still come by itself."""
        return self.one.state in ("planned", "waiting") or any(run.status == "processing" for run in self.one.runs)

    @cached_property
    def generated(self) -> bool:
        return is_generated(self._session, self.one.project)

    @property
    def undecided(self) -> bool:
        return self.one.state in UNDECIDED

    @property
    def knobs(self) -> str:
        return knobs_text(self.one.knobs)

    @property
    def steps(self) -> tuple[tuple[str, str], ...]:
        """Each step of its life with `done`, `current` or `open`."""
        last = self.one.state if self.one.state not in _STEPS else "decided"
        place = _STEPS.index(self.one.state) if self.one.state in _STEPS else len(_STEPS)
        if self.one.state == "withdrawn":
            return (("planned", "done"), ("withdrawn", "current"))
        return tuple(
            (name, "done" if number < place else "current" if number == place else "open")
            for number, name in enumerate((*_STEPS, last))
        )

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        return slots(self.one)

    @property
    def next_side(self) -> Side | None:
        return next_side(self.slots) if self.undecided and not self.one.result.finished else None

    @property
    def answer(self) -> str:
        """Where it stands and what to do next, in plain words."""
        one, result = self.one, self.one.result
        if one.state == "withdrawn":
            return "Withdrawn: it was given up before its result."
        if one.state in ("accepted", "rejected"):
            return f"{one.state.capitalize()} by {one.decided_by}. {result.sentence}".rstrip()
        if result.finished or one.state == "done":
            return result.sentence
        wait = " and ".join(
            f"{counted(n, 'run')} of {LETTERS[side]}" for side in LETTERS if (n := missing(self.slots, side))
        )
        return f"{result.sentence + ' ' if result.gain else ''}{'Waits for ' + wait + '.' if wait else ''}".strip()

    @property
    def advice(self) -> str:
        """The next thing to do; empty when nothing is left to run."""
        side = self.next_side
        if side is None:
            return ""
        what = "as it is" if side == "baseline" else f"with {self.knobs}"
        return f"Next: a run of {LETTERS[side]}, {what}."

    @cached_property
    def sides(self) -> tuple[SideCommands, ...]:
        """Whose turn it is first."""
        order: tuple[Side, ...] = ("candidate", "baseline") if self.next_side == "candidate" else tuple(LETTERS)
        return tuple(side_commands(self.one, side, self._base_url) for side in order)

    @cached_property
    def runs(self) -> tuple[RunLine, ...]:
        return run_lines(self.one)

    @property
    def rows(self) -> tuple[Row, ...]:
        return result_rows(self.one.result)

    @property
    def effect(self) -> Effect | None:
        return effect(self.one.result.verdict)

    @property
    def would_decide(self) -> str:
        return would_decide(self.one.result.verdict) if self.one.result.finished and self.undecided else ""

    @property
    def offered_runs(self) -> int:
        """The number of runs a side that the form offers."""
        return max(self.one.runs_each, runs_that_decide(self.one.result.verdict) or 0)

    @property
    def compare_query(self) -> str:
        """Empty while a side has no run that counts."""
        a, b = (",".join(self.one.result.counted(side)) for side in LETTERS)
        return f"a={a}&b={b}" if a and b else ""

    @property
    def goes_on_from(self) -> int | None:
        """The run whose next steps follow: the newest of the side that was decided for."""
        if self.one.state == "rejected":
            return self.one.baseline_run_id
        return (
            int(self.one.result.candidate[-1]) if self.one.state == "accepted" and self.one.result.candidate else None
        )

    @cached_property
    def first_next(self) -> tuple[str, str] | None:
        """Rule and title of what to do first from there."""
        run_id = self.goes_on_from
        return self._next_step(self._session, run_id) if run_id is not None and self._next_step else None

    def done(self, event: AuditEvent) -> str:
        """What somebody did to it, behind the name."""
        if event.action == "runs_each":
            return f"planned {counted(event.after['runs_each'], 'run')} a side instead of {event.before['runs_each']}"
        return {"plan": "planned it"}.get(event.action, f"{event.action} it")

    @cached_property
    def events(self) -> tuple[AuditEvent, ...]:
        """Who did what to it, newest first."""
        return events(self._session, "experiment", self.one.id)
