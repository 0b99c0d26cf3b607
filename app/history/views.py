"""Change points and configurations of a history as rows of tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlmodel import Session

from app.domain.badges import badge_key
from app.domain.text import range_address
from app.domain.verdict.comparability import Difference, compare_contracts
from app.domain.verdict.history_view import ConfigurationHistory, PlacedAlarm, SegmentChange, alarm_of, called_at
from app.history.queries import HistoryAlarm, HistoryOfStack, HistoryStack
from app.storage.stacks import StackRun, full_records
from app.storage.tables import ProjectRow

MOST_CONFIGURATIONS = 12
"""Maximum number of configurations: a stack of experiments may have hundreds.

Those with segments are listed first, newest first.
"""


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A change point.

    `run`: first run of the new segment. `before`: last run of the old segment. `called_by`: the run whose verdict
    reported it. `regression_id`, its state and `proposal`: of the regression that it opened or ended.
    """

    letter: str
    change: SegmentChange
    before: StackRun
    run: StackRun
    runs_since: int
    compare_address: str
    called_by: StackRun | None
    regression_id: int | None
    regression_state: str
    proposal: str


@dataclass(frozen=True, slots=True)
class ConfigurationRow:
    """A configuration. `differences`: knobs that differ from the configuration used last; None for that one."""

    configuration: ConfigurationHistory
    dispatcher: str | None
    newest: StackRun
    differences: tuple[Difference, ...] | None


def change_rows(
    history: HistoryOfStack, shown: Sequence[ConfigurationHistory], alarms: Sequence[HistoryAlarm]
) -> tuple[ChangeRow, ...]:
    """Return change points, newest first."""
    positions = {run.id: position for position, run in enumerate(history.runs)}
    rows = []
    for configuration in shown:
        if not configuration.changes:
            continue
        own = set(configuration.runs)
        placed = [
            PlacedAlarm(alarm.regression_id, positions[alarm.run_id], positions.get(alarm.fixed_by or 0))
            for alarm in alarms
            if alarm.metric == "step_time_ms" and positions.get(alarm.run_id) in own
        ]
        for change, level in zip(configuration.changes, configuration.levels[1:], strict=True):
            before, run = history.runs[change.before], history.runs[change.run]
            called = called_at(change, configuration.runs, lambda position: history.runs[position].verdict)
            number = alarm_of(change, level.last, placed)
            of_regression = [alarm for alarm in alarms if alarm.regression_id == number]
            rows.append(
                ChangeRow(
                    letter=configuration.letter,
                    change=change,
                    before=before,
                    run=run,
                    runs_since=level.n,
                    compare_address=range_address(history.stack.compare_url, before.commit, run.commit),
                    called_by=None if called is None else history.runs[called],
                    regression_id=number,
                    regression_state=next((alarm.shown_state for alarm in of_regression), ""),
                    proposal=next((alarm.proposal for alarm in of_regression if not alarm.is_back), "fixed"),
                )
            )
    return tuple(sorted(rows, key=lambda row: -row.change.run))


def configuration_rows(session: Session, history: HistoryOfStack) -> tuple[ConfigurationRow, ...]:
    """Return up to MOST_CONFIGURATIONS configurations: those with counted runs first, then by newest run."""
    ordered = sorted(
        history.configurations,
        key=lambda configuration: (configuration.is_last, bool(configuration.counted), configuration.runs[-1]),
    )
    listed = ordered[::-1][:MOST_CONFIGURATIONS]
    newest = {configuration.letter: history.runs[configuration.runs[-1]] for configuration in listed}
    records = full_records(session, [run.id for run in newest.values()])
    used = records.get(str(newest[history.last_used.letter].id))
    rows = []
    for configuration in listed:
        record = records.get(str(newest[configuration.letter].id))
        knobs = (
            None if configuration.is_last or used is None or record is None else compare_contracts(used, record).knobs
        )
        rows.append(
            ConfigurationRow(
                configuration, newest[configuration.letter].dispatcher, newest[configuration.letter], knobs
            )
        )
    return tuple(rows)


# --- Badge addresses as Markdown to paste into a README.

_SHORT = 16
"""Digits of a stack key in the link: enough to be unique."""


@dataclass(frozen=True, slots=True)
class StackBadge:
    """A badge. `path`: for this page. `markdown`: with the service's address and a link to the history."""

    name: str
    path: str
    markdown: str


@dataclass(frozen=True, slots=True)
class BadgeOffer:
    """The badges of a stack. `is_public`: the project is public, so the addresses need no key."""

    is_public: bool
    badges: tuple[StackBadge, ...]


def badge_offer(session: Session, stack: HistoryStack, base_url: str) -> BadgeOffer:
    project = session.get_one(ProjectRow, stack.project_id)
    query = "" if project.public else f"?key={badge_key(project.badge_secret, stack.stack_key)}"
    history = f"{base_url}/history/{stack.stack_key[:_SHORT]}"
    offers = []
    for name, file in (("Verdict", "verdict"), ("Step time", "step-time"), ("Chart", "history")):
        path = f"/badges/{stack.stack_key}/{file}.svg{query}"
        offers.append(StackBadge(name, path, f"[![{name}]({base_url}{path})]({history})"))
    return BadgeOffer(project.public, tuple(offers))
