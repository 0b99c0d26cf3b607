"""Regressions for tests of triage: a stack whose runs became slower, its verdict, and the row that people work on."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlmodel import Session

from app.domain.verdict.assess import assess
from app.domain.verdict.document import verdict_document
from app.storage import audit
from app.storage.stacks import full_records
from app.storage.tables import RegressionMemberRow, RegressionRow, RunRow, utc_now
from app.storage.verdicts import put_verdict
from tests.builders import make_project, make_run

FIRST = datetime(2026, 10, 20, 3, tzinfo=UTC)
NOISE = (0.0, 0.002, -0.001, 0.001, -0.002)


@dataclass(frozen=True)
class SlowStack:
    """`runs` in order, one per day; those from `slow` on are slower."""

    stack_key: str
    config_key: str
    runs: tuple[int, ...]
    slow: int
    usual_level: float
    slow_level: float
    project_id: int

    @property
    def since(self) -> int:
        return self.runs[self.slow]


def make_slow_stack(
    session: Session,
    *,
    project: str = "triage",
    stack: str = "a",
    usual_ms: float = 20_000.0,
    slow_pct: float = 5.0,
    days: tuple[int, int] = (13, 4),
    back: int = 0,
    **columns: Any,
) -> SlowStack:
    """Nightly runs of one stack: `days[0]` usual ones, `days[1]` slow ones, then `back` usual ones again."""
    keys = {name: hashlib.sha256(f"{project} {stack} {name}".encode()).hexdigest() for name in ("stack", "config")}
    usual, slow = math.log(usual_ms), math.log(usual_ms * (1 + slow_pct / 100))
    levels = [usual] * days[0] + [slow] * days[1] + [usual] * back
    runs = []
    for k, level in enumerate(levels):
        value = level + NOISE[k % 5]
        fields: dict[str, Any] = {
            "purpose": "ci",
            "name": f"nightly-{stack}-{k}",
            "commit": hashlib.sha256(f"{project}{k}".encode()).hexdigest()[:40],
            "stack_key": keys["stack"],
            "config_key": keys["config"],
            "ordered_at": FIRST + timedelta(days=k),
            "created_at": utc_now(),
            "log_step_time": value,
            "step_time_se": 0.002,
            "window_length": 46,
            "is_steady": True,
            "short": False,
            "outcome": "completed",
        }
        runs.append(make_run(session, project=project, step_time_ms=math.exp(value), **(fields | columns)))
    owner = make_project(session, project)
    slow_stack = SlowStack(keys["stack"], keys["config"], tuple(runs), days[0], usual, slow, owner.id or 0)
    _judge(session, slow_stack)
    return slow_stack


def make_regression(
    session: Session, stacks: SlowStack | Sequence[SlowStack], *, each_costs: float | None = 12.5, **columns: Any
) -> int:
    """A regression with these stacks as members; `columns` overrides any of its row."""
    members = [stacks] if isinstance(stacks, SlowStack) else list(stacks)
    commit = session.get_one(RunRow, members[0].since).commit
    fields: dict[str, Any] = {
        "project_id": members[0].project_id,
        "kind": "run",
        "cause_key": f"code:{commit}",
        "cause": f"Code: commit {commit[:8]}.",
        "metric": "step_time_ms",
        "opened_at": FIRST + timedelta(days=20),
        "changed_at": FIRST + timedelta(days=20),
        "worst_delta_pct": 5.0,
        "gpu_hours_per_day": 12.5 * len(members),
    }
    row = RegressionRow(**(fields | columns))
    session.add(row)
    session.flush()
    assert row.id is not None
    for member in members:
        session.add(
            RegressionMemberRow(
                regression_id=row.id,
                run_id=member.since,
                stack_key=member.stack_key,
                config_key=member.config_key,
                usual_level=member.usual_level,
                slow_level=member.slow_level,
                delta_pct=100 * math.expm1(member.slow_level - member.usual_level),
                gpu_hours_per_day=each_costs,
                proposal=(fields | columns).get("proposal", ""),
                joined_at=fields["opened_at"],
            )
        )
    audit.record(
        session, who=audit.SERVICE, subject="regression", subject_id=row.id, action="opened",
        project_id=row.project_id, after={"state": row.state},
    )  # fmt: skip
    session.flush()
    return row.id


def continue_in_stack(session: Session, regression_id: int, slow: SlowStack, stack_key: str, run_id: int) -> None:
    """The slow job moved to another stack: its first run there is a member, as the pipeline makes it."""
    old = session.get_one(RegressionMemberRow, (regression_id, slow.since))
    levels = {"usual_level": old.usual_level, "slow_level": old.slow_level, "delta_pct": old.delta_pct}
    session.add(
        RegressionMemberRow(
            regression_id=regression_id, run_id=run_id, stack_key=stack_key, config_key=slow.config_key,
            proposal=old.proposal, joined_at=old.joined_at, **levels,
        )
    )  # fmt: skip
    old.proposal = "fixed"
    audit.record(
        session, who=audit.SERVICE, subject="regression", subject_id=regression_id, action="continued",
        project_id=slow.project_id, before={"stack": old.stack_key}, after={"run": run_id, "stack": stack_key},
    )  # fmt: skip


def _judge(session: Session, slow_stack: SlowStack) -> None:
    """The verdict of the first slow run, by the judge itself."""
    *usual, first = slow_stack.runs[: slow_stack.slow + 1]
    judge_against(session, first, usual)


def judge_against(session: Session, run: int, baseline: Sequence[int]) -> None:
    session.flush()
    records = full_records(session, [*baseline, run])
    result = assess([records[str(run)]], [records[str(name)] for name in baseline])
    names = [*map(str, baseline), str(run)]
    document = verdict_document(result, (str(run),), {name: {} for name in names}, definition_version=1)
    put_verdict(session, run, document, "It was uploaded.")
