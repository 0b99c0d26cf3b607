"""Server time of a leaderboard over 100,000 runs in 500 stacks of one hardware and family, compared with 1,000 runs.

First `make setup`. `.venv/bin/python -m bench.leaderboard` fills two SQLite databases with processed runs, ranks them
with the real ranking, and sends requests to one process of the service for each. It prints response times at the client
and processor times of the service. Requests alternate between the two, so that other load slows both equally.

Both databases have the same number of stacks, so the growth is the cost of more runs. A third row has 1,000 runs in 5
stacks, with less text. The last row measures ranking: the cost of one more run in the largest stack. Exit code 1 if a
limit is exceeded. Options reduce the numbers of runs, stacks and pages; the limits then apply to these.
"""

import argparse
import http.client
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from sqlmodel import Session

from app.pipeline import rank
from app.settings import Settings, get_settings
from app.storage.database import make_engine, migrate, transaction
from app.storage.visible import see_every_project
from bench import options
from tests.builders import FIRST_PLACE, insert_runs, make_project, run_columns, stated_activity
from tests.embedded.processes import Running, running

LIMIT_MS, LIMIT_GROWTH = 150, 2.0
LEVELS = {"alltoall": 400.0, "deepep": 342.0, "hybridep": 340.0}
"""Dispatchers: every fifth stack has only alltoall, and every seventh has no deepep."""

HERE = "/leaderboards/h100/qwen3-30b-a3b"
PAGES = {
    "index": "/leaderboards",
    "page": HERE,
    "page, filtered": f"{HERE}?precision=fp8&ep_size=large&evidence=validated",
    "last page": f"{HERE}?page=50",
    "history of leaders": f"{HERE}/leaders",
    "API": "/api/v1/leaderboards?hardware=h100&family=qwen3-30b-a3b",
}
LIMITED = ("index", "page", "page, filtered", "last page")


@dataclass(frozen=True)
class Answer:
    median_ms: float
    highest_ms: float
    cpu_ms: float
    kilobytes: float


@dataclass
class House:
    name: str
    running: Running
    connection: http.client.HTTPConnection


def main() -> int:
    see_every_project()
    asked = _options()
    print(f"{asked.rounds} requests each, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    sizes = {
        "few": (asked.few, asked.stacks),
        "many": (asked.runs, asked.stacks),
        "small": (asked.few, max(1, asked.few * asked.stacks // asked.runs)),
    }
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ["THREEWALLS_LOG_LEVEL"] = "warning"
        houses = {}
        for name, (runs, stacks) in sizes.items():
            data = Path(folder) / name
            _fill(Settings(data_dir=data), runs, stacks)
            os.environ["THREEWALLS_DATA_DIR"] = str(data)
            get_settings.cache_clear()
            house = stack.enter_context(running("serve", data))
            houses[name] = House(name, house, http.client.HTTPConnection(urlsplit(house.address).netloc))
        pages = asked.page or PAGES
        measured = {what: measure(list(houses.values()), PAGES[what], asked.rounds) for what in pages}
    return _report(sizes, measured)


def _options() -> argparse.Namespace:
    parser = options.parser(__doc__)
    rounds, runs = (int(os.environ.get(name, usual)) for name, usual in (("BENCH_ROUNDS", 40), ("BENCH_RUNS", 100_000)))
    for name, usual, what in (
        ("--rounds", rounds, "requests of each page"),
        ("--runs", runs, "runs of the large database"),
        ("--few", 1000, "runs of the small one"),
        ("--stacks", 500, "stacks of both"),
    ):
        parser.add_argument(name, type=options.count, default=usual, help=f"{what} ({usual:,})")
    parser.add_argument(
        "--page",
        action="append",
        choices=tuple(PAGES),
        metavar="NAME",
        help=f"only this page; can be repeated: {', '.join(PAGES)}",
    )
    return parser.parse_args()


def _report(sizes: dict[str, tuple[int, int]], measured: dict[str, dict[str, Answer]]) -> int:
    print(f"{'':20} {'runs':>8} {'stacks':>6}  median ms  highest ms  processor ms       kB")
    broken = []
    for what, answers in measured.items():
        for name, answer in answers.items():
            runs, stacks = sizes[name]
            print(
                f"{what:20} {runs:8,} {stacks:6}  {answer.median_ms:9.1f}  {answer.highest_ms:10.1f}"
                f"  {answer.cpu_ms:12.1f}  {answer.kilobytes:7.1f}"
            )
        growth = answers["many"].median_ms / answers["few"].median_ms
        (few, stacks), (many, _) = sizes["few"], sizes["many"]
        print(f"{'':20} from {few:,} runs to {many:,}, {stacks} stacks: x {growth:.2f}")
        if what in LIMITED and (answers["many"].median_ms > LIMIT_MS or growth > LIMIT_GROWTH):
            broken.append(what)
    outcome = f"exceeded by {', '.join(broken)}" if broken else "met"
    print(f"limits {LIMIT_MS} ms and x {LIMIT_GROWTH:.0f} for {', '.join(LIMITED)}: {outcome}")
    return int(bool(broken))


def _fill(settings: Settings, runs: int, stacks: int) -> None:
    migrate(settings)
    engine = make_engine(settings)
    with transaction(engine) as session:
        owner = make_project(session, "bench").id or 0
        draw, began = np.random.default_rng(11), time.perf_counter()
        keys = []
        for number in range(stacks):
            fields = _stack_fields(number)
            share = runs // stacks + (number < runs % stacks)
            rows = list(rows_of(owner, fields, share, number, draw))
            insert_runs(session, rows)
            keys.append(rows[0]["stack_key"])
        filled = time.perf_counter()
        rank_all(session, owner, keys)
        ranked = time.perf_counter()
        again = _rank_again(session, owner, keys)
    engine.dispose()
    print(
        f"{runs:,} runs in {stacks} stacks: written in {filled - began:.0f} s, ranked in {ranked - filled:.0f} s; "
        f"one stack of {runs // stacks} runs ranked, and compared with the stored ranking, in {again:.0f} processor ms"
    )


def rank_all(session: Session, project_id: int, keys: Sequence[str]) -> None:
    """Rank stacks as a worker does until all are up to date."""
    behind = [(project_id, key) for key in keys]
    while behind:
        for owner, key in behind:
            rank.keep(session, rank.rank(session, owner, key))
        behind = rank.behind(session)  # the prior of the family changed after its first stacks were ranked


def _rank_again(session: Session, project_id: int, keys: Sequence[str]) -> float:
    times = []
    for key in keys[:20]:
        began = time.process_time()
        rank.keep(session, rank.rank(session, project_id, key))
        times.append((time.process_time() - began) * 1000)
    return statistics.median(times)


def _stack_fields(number: int) -> dict[str, Any]:
    ep = (8, 16, 64)[number % 3]
    return {
        "container": f"nvcr.io/nvidia/nemo:26.{number // 100 + 1:02}",
        "seq_len": 1024 * (number % 100 + 1),
        "precision": ("bf16", "fp8")[number % 2],
        "ep": ep, "gpus": 64, "dp": 64, "force_balance": False, "routing_mode": "dropless", "data_mode": "real",
    }  # fmt: skip


def rows_of(
    owner: int, fields: dict[str, Any], runs: int, number: int, draw: np.random.Generator
) -> Iterator[dict[str, Any]]:
    names = [name for name in LEVELS if name == "alltoall" or (number % 5 and (name != "deepep" or number % 7))]
    faster = math.exp(0.1 * draw.standard_normal())
    typical = {name: run_columns("bench", fields | {"dispatcher": name}, LEVELS[name] * faster) for name in names}
    for run in range(runs):
        name = names[run % len(names)]
        launch = math.exp(0.006 * draw.standard_normal())  # no two launches of a job are alike
        columns = typical[name]
        yield columns | {
            "project_id": owner,
            "ordered_at": FIRST_PLACE + timedelta(days=run, minutes=number),
            "log_step_time": columns["log_step_time"] + math.log(launch),
            "step_time_ms": columns["step_time_ms"] * launch,
            "tokens_per_s_per_gpu": columns["tokens_per_s_per_gpu"] / launch,
            "tflops_per_gpu": columns["tflops_per_gpu"] / launch,
            "content_key": f"{number}-{run}",
            "activity": stated_activity(name),
            "evidence_level": "validated",
            "semantic_class": "training_equivalent",
        }


def measure(houses: Sequence[House], path: str, rounds: int) -> dict[str, Answer]:
    """Return the measurements by service. Requests alternate, so that other load affects all services equally."""
    times: dict[str, list[float]] = {house.name: [] for house in houses}
    sizes, used = {}, {}
    for number in range(rounds + 3):
        for house in houses:
            if number == 3:  # the first requests import modules and open connections
                used[house.name] = _cpu_seconds(house.running)
            began = time.perf_counter()
            headers = {"HX-Request": "true"} if "/leaders" in path or "/chart" in path else {"Accept": "*/*"}
            house.connection.request("GET", path, headers=headers)
            answer = house.connection.getresponse()
            content = answer.read()
            house.connection.close()  # the service closes idle connections
            if number >= 3:
                times[house.name].append((time.perf_counter() - began) * 1000)
            assert answer.status == 200, (path, answer.status, content[:500])
            sizes[house.name] = len(content)
    return {
        house.name: Answer(
            statistics.median(times[house.name]),
            max(times[house.name]),
            (_cpu_seconds(house.running) - used[house.name]) / rounds * 1000,
            sizes[house.name] / 1000,
        )
        for house in houses
    }


def _cpu_seconds(house: Running) -> float:
    """Return the processor seconds of the web process. The worker is a separate, idle process."""
    fields = Path(f"/proc/{house.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
