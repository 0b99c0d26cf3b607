"""Cost of one more run in a long stack: `.venv/bin/python -m bench.stack [--runs 5000]`.

Stacks of 40, 1,000 and `--runs` runs on SQLite have a lasting change every 80 runs. A further stack of 40 runs became
slower at run 20, so that it has an open regression like the long stacks. The real judge judges them all. The bench then
judges a new run and ranks the stack, and alternates between the stacks, so that the ratios hold on a busy machine. It
prints processor time and SQL statements of judging and ranking.
"""

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import numpy as np
import structlog
from sqlalchemy import Engine, event, func
from sqlmodel import col, select

from app.pipeline.judge import give_verdicts, judge_stack, rank_again
from app.pipeline.work import StackClaim, stack_queue
from app.settings import Settings
from app.storage.database import make_engine, migrate, read_session, transaction
from app.storage.tables import EVERYTHING, RegressionMemberRow, RunRow
from app.storage.visible import see_every_project
from bench.options import count, parser
from tests.builders import FIRST_PLACE, make_stack

ROUNDS = 15
LEVELS = (400.0, 412.0, 424.5)


@dataclass(frozen=True)
class Stack:
    runs: int
    change_every: int = 80

    @property
    def project(self) -> str:
        return f"of-{self.runs}-{self.change_every}"

    def level(self, number: int) -> float:
        """Return the step time (ms) of a run, without its variation."""
        return LEVELS[number // self.change_every % len(LEVELS)]


SHORT, LONG = Stack(40), Stack(1000)
SHORT_WITH_REGRESSION = Stack(40, change_every=20)


@dataclass
class Cost:
    """Processor milliseconds and statements of each round."""

    milliseconds: list[float] = field(default_factory=list)
    statements: list[int] = field(default_factory=list)


class Statements:
    """Counts the statements of an engine."""

    def __init__(self, engine: Engine) -> None:
        self.count = 0
        event.listen(engine, "before_cursor_execute", self._add)

    def _add(self, *_: object) -> None:
        self.count += 1


def fill(engine: Engine, settings: Settings, stack: Stack) -> None:
    draw = np.random.default_rng(stack.runs)
    times = [stack.level(number) * math.exp(0.005 * draw.standard_normal()) for number in range(stack.runs)]
    with transaction(engine) as session:
        first, *_ = make_stack(session, times, project=stack.project, judged=False)
        row = session.get_one(RunRow, first)
        work_id = stack_queue.request(session, row.project_id, row.stack_key, judge_from=EVERYTHING)
    while judge_stack(engine, settings, work_id) is not None:
        pass


def new_run(engine: Engine, settings: Settings, stack: Stack, number: int) -> StackClaim:
    """Add a run to the end of the stack and claim the stack."""
    with transaction(engine) as session:
        at = FIRST_PLACE + timedelta(days=stack.runs, minutes=number)
        level = stack.level(stack.runs - 1)
        added, *_ = make_stack(session, [level], project=stack.project, started=at, judged=False)
        row = session.get_one(RunRow, added)
        work_id = stack_queue.request(session, row.project_id, row.stack_key, judge_from=at)
    with transaction(engine) as session:
        claim = stack_queue.claim(session, work_id, settings)
    assert claim is not None
    return claim


def measure(engine: Engine, settings: Settings, stacks: tuple[Stack, ...]) -> dict[tuple[str, Stack], Cost]:
    statements = Statements(engine)
    costs: dict[tuple[str, Stack], Cost] = {}

    def spend(what: str, stack: Stack, act: Callable[[], object]) -> None:
        began, before = time.process_time(), statements.count
        assert act() is not None
        cost = costs.setdefault((what, stack), Cost())
        cost.milliseconds.append(1000 * (time.process_time() - began))
        cost.statements.append(statements.count - before)

    for number in range(ROUNDS):
        for stack in stacks:
            claim = new_run(engine, settings, stack, number)
            spend("judging", stack, lambda claim=claim: give_verdicts(engine, settings, claim))
            spend("ranking", stack, lambda claim=claim: rank_again(engine, settings, claim))
    return costs


def options() -> argparse.Namespace:
    choices = parser(__doc__)
    choices.add_argument("--runs", type=count, default=5000, help="runs of the longest stack (default: 5000)")
    return choices.parse_args()


def main() -> int:
    see_every_project()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    stacks = tuple(dict.fromkeys((SHORT, SHORT_WITH_REGRESSION, LONG, Stack(options().runs))))
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        migrate(settings)
        engine = make_engine(settings)
        for stack in stacks:
            fill(engine, settings, stack)
            with read_session(engine) as session:
                members = session.exec(select(func.count()).select_from(RegressionMemberRow)).one()
                runs = session.exec(select(func.count()).select_from(RunRow).where(col(RunRow.verdict) != "")).one()
            print(f"after the stack of {stack.runs:,}: {runs:,} judged runs, {members} members of regressions")
        costs = measure(engine, settings, stacks)
        engine.dispose()
    print(f"{'':10}{'runs':>8}{'processor ms':>14}{'to first':>10}{'to second':>11}{'statements':>12}")
    for what in ("judging", "ranking", "both"):
        spent = {stack: statistics.median(_milliseconds(costs, what, stack)) for stack in stacks}
        for stack in stacks:
            statements = sum(statistics.median(costs[step, stack].statements) for step in _steps(what))
            ratios = f"{spent[stack] / spent[SHORT]:9.2f}x{spent[stack] / spent[SHORT_WITH_REGRESSION]:10.2f}x"
            print(f"{what:10}{stack.runs:8,}{spent[stack]:14.1f}{ratios}{statements:12.0f}")
    return 0


def _steps(what: str) -> tuple[str, ...]:
    return ("judging", "ranking") if what == "both" else (what,)


def _milliseconds(costs: dict[tuple[str, Stack], Cost], what: str, stack: Stack) -> list[float]:
    return [sum(steps) for steps in zip(*(costs[step, stack].milliseconds for step in _steps(what)), strict=True)]


if __name__ == "__main__":
    sys.exit(main())
