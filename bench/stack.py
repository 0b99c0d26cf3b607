"""Cost of one more run in a long stack: `.venv/bin/python -m bench.stack [--runs 5000]`.

Stacks of 40, 1,000 and `--runs` runs on SQLite, each with a lasting change every 80 runs, judged by the real judge.
Then it judges a new run and ranks the stack, alternating between the stacks so that the ratios hold on a busy machine.
It prints processor time and SQL statements of judging and of ranking.
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

SHORT, LONG = 40, 1000
ROUNDS = 15
CHANGE_EVERY = 80
LEVELS = (400.0, 412.0, 424.5)


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


def fill(engine: Engine, settings: Settings, runs: int) -> None:
    draw = np.random.default_rng(runs)
    times = [LEVELS[number // CHANGE_EVERY % 3] * math.exp(0.005 * draw.standard_normal()) for number in range(runs)]
    with transaction(engine) as session:
        first, *_ = make_stack(session, times, project=f"of-{runs}", judged=False)
        row = session.get_one(RunRow, first)
        work_id = stack_queue.request(session, row.project_id, row.stack_key, judge_from=EVERYTHING)
    while judge_stack(engine, settings, work_id) is not None:
        pass


def new_run(engine: Engine, settings: Settings, runs: int, number: int) -> StackClaim:
    """Add a run to the end of the stack and claim the stack."""
    with transaction(engine) as session:
        at = FIRST_PLACE + timedelta(days=runs, minutes=number)
        level = LEVELS[(runs - 1) // CHANGE_EVERY % 3]
        added, *_ = make_stack(session, [level], project=f"of-{runs}", started=at, judged=False)
        row = session.get_one(RunRow, added)
        work_id = stack_queue.request(session, row.project_id, row.stack_key, judge_from=at)
    with transaction(engine) as session:
        claim = stack_queue.claim(session, work_id, settings)
    assert claim is not None
    return claim


def measure(engine: Engine, settings: Settings, sizes: tuple[int, ...]) -> dict[tuple[str, int], Cost]:
    statements = Statements(engine)
    costs: dict[tuple[str, int], Cost] = {}

    def spend(what: str, size: int, act: Callable[[], object]) -> None:
        began, before = time.process_time(), statements.count
        assert act() is not None
        cost = costs.setdefault((what, size), Cost())
        cost.milliseconds.append(1000 * (time.process_time() - began))
        cost.statements.append(statements.count - before)

    for number in range(ROUNDS):
        for size in sizes:
            claim = new_run(engine, settings, size, number)
            spend("judging", size, lambda claim=claim: give_verdicts(engine, settings, claim))
            spend("ranking", size, lambda claim=claim: rank_again(engine, settings, claim))
    return costs


def options() -> argparse.Namespace:
    choices = parser(__doc__)
    choices.add_argument("--runs", type=count, default=5000, help="runs of the longest stack (default: 5000)")
    return choices.parse_args()


def main() -> int:
    see_every_project()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    sizes = tuple(dict.fromkeys((SHORT, LONG, options().runs)))
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_dir=Path(folder))
        migrate(settings)
        engine = make_engine(settings)
        for size in sizes:
            fill(engine, settings, size)
            with read_session(engine) as session:
                members = session.exec(select(func.count()).select_from(RegressionMemberRow)).one()
                runs = session.exec(select(func.count()).select_from(RunRow).where(col(RunRow.verdict) != "")).one()
            print(f"after the stack of {size:,}: {runs:,} judged runs, {members} members of regressions")
        costs = measure(engine, settings, sizes)
        engine.dispose()
    print(f"{'':10}{'runs':>8}{'processor ms':>14}{f'to {SHORT} runs':>12}{'statements':>12}")
    for what in ("judging", "ranking"):
        short = statistics.median(costs[what, SHORT].milliseconds)
        for size in sizes:
            cost = costs[what, size]
            spent, statements = statistics.median(cost.milliseconds), statistics.median(cost.statements)
            print(f"{what:10}{size:8,}{spent:14.1f}{spent / short:11.2f}x{statements:12.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
