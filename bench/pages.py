"""Measure every page with a small and a large database: `.venv/bin/python -m bench.pages --runs 100000`.

`bench.seed` fills both databases. Requests alternate between them, over ASGI in this process. On a busy machine,
compare the processor times and their ratio. The databases are SQLite files, or the empty PostgreSQL databases
`--database` (large) and `--small-database`. `--data` or `--filled` uses two filled databases, the small one first.
"""

import gc
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog
from sqlalchemy import Engine, func, select
from sqlmodel import col
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.storage.database import make_engine, migrate, read_session
from app.storage.tables import RegressionRow, RunRow, StackRow, StandingRow, select_any
from app.storage.visible import see_every_project
from bench import options
from bench.seed import fill

SMALL = 10_000
PARTS = ("/chart", "/data")
"""Addresses of page parts, which htmx requests."""


def main() -> int:
    see_every_project()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    os.environ["THREEWALLS_LOG_LEVEL"] = "error"
    parser = options.parser(__doc__)
    parser.add_argument("--runs", type=options.count, default=100_000, help="runs of the large database (100,000)")
    parser.add_argument("--rounds", type=options.count, default=15, help="times that each page is read (15)")
    parser.add_argument("--only", default="", help="only pages with this text in their name")
    parser.add_argument("--data", type=Path, action="append", default=[], help="a data folder filled by bench.seed; "
                        "given twice: the small and the large one")  # fmt: skip
    parser.add_argument("--filled", action="append", default=[], help="URL of a filled database, twice")
    parser.add_argument("--database", default="", help="URL of an empty PostgreSQL database for the large one")
    parser.add_argument("--small-database", default="", help="URL of an empty PostgreSQL database for the small one")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if chosen.data:
            settings = [Settings(data_dir=data) for data in chosen.data]
        elif chosen.filled:
            settings = [Settings(data_dir=folder, database_url=url) for url in chosen.filled]
        else:
            sizes = ((SMALL, chosen.small_database), (chosen.runs, chosen.database))
            settings = [filled(folder / str(runs), url, runs) for runs, url in sizes]
        services = [stack.enter_context(_Service(of_one)) for of_one in settings]
        gc.collect()
        gc.freeze()  # as the service does when it starts
        backend = "postgresql" if settings[-1].database_url.startswith("postgresql") else "sqlite"
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {backend}; {chosen.rounds} rounds")
        print(f"{'':30} small p50   p95 ms   large p50   p95 ms   processor ms: small   large   ratio   kB of both")
        for name in services[0].paths:
            if chosen.only in name:
                few, many = (_Times(times) for times in _measure(services, name, chosen.rounds))
                line = f"{few.p50:9.1f} {few.p95:8.1f} {many.p50:11.1f} {many.p95:8.1f} {few.processor:21.1f} "
                line += f"{many.processor:7.1f} {many.processor / few.processor:7.2f}"
                print(f"{name:30} {line} {services[0].size / 1000:7.1f} {services[-1].size / 1000:6.1f}", flush=True)
    return 0


def filled(folder: Path, url: str, runs: int) -> Settings:
    folder.mkdir()
    settings = Settings(data_dir=folder, **({"database_url": url} if url else {}))
    migrate(settings)
    engine = make_engine(settings)
    fill(engine, settings, runs)
    engine.dispose()
    return settings


class _Service:
    """The web application on one database, with the URL of each page by name."""

    def __init__(self, settings: Settings) -> None:
        self._app = create_app(settings, open_to=("testserver",))
        self._client = TestClient(self._app)
        self.paths = page_addresses(self._app.state.engine)
        self.size = 0

    def __enter__(self) -> "_Service":
        self._client.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.__exit__(None)

    def ask(self, name: str) -> None:
        path = self.paths[name]
        is_part = path.partition("?")[0].endswith(PARTS)
        answer = self._client.get(path, headers={"HX-Request": "true"} if is_part else {})
        assert answer.status_code == 200, (path, answer.status_code, answer.text[:300])
        self.size = len(answer.content)


def page_addresses(engine: Engine) -> Mapping[str, str]:
    """Return the URL of each page by name, with runs and stacks of this database."""
    with read_session(engine) as session:
        stacks = select_any(RunRow.stack_key, func.count().label("n")).where(col(RunRow.stack_key) != "")
        sizes = session.execute(stacks.group_by(col(RunRow.stack_key)).order_by(func.count().desc())).all()
        usual, long, longest = (min(sizes, key=lambda row: abs(row.n - n)).stack_key for n in (50, 1000, 5000))
        run = session.execute(select(func.max(col(RunRow.id)))).scalar_one()
        regression, regressions = session.execute(select(func.max(col(RegressionRow.id)), func.count())).one()
        histories = session.execute(
            select(func.count()).select_from(StackRow).where(col(StackRow.runs) > 0)
        ).scalar_one()
        board = session.execute(
            select_any(StandingRow.hardware_slug, StandingRow.family_slug, func.count())
            .group_by(StandingRow.hardware_slug, StandingRow.family_slug)
            .order_by(func.count().desc())
        ).first()
    return {
        "overview": "/",
        "overview, 90 days": "/?days=90",
        "overview, one branch": "/?branch=main&project=kernels",
        "runs": "/runs",
        "runs, page 150": "/runs?page=150",
        "runs, last page": "/runs?after=51",
        "runs by step time": "/runs?sort=step_time_ms",
        "runs by commit date": "/runs?sort=-commit_time",
        "runs of a project by commit date": "/runs?project=kernels&sort=-commit_time",
        "runs by name": "/runs?sort=name",
        "runs, failed": "/runs?outcome=failed",
        "runs, one model": "/runs?model=DeepSeek-V3",
        "runs, one project": "/runs?project=kernels",
        "runs, one branch": "/runs?branch=main",
        "runs, model and verdict": "/runs?model=DeepSeek-V3&verdict=regression",
        "runs, a verdict": "/runs?verdict=regression",
        "runs without a baseline": "/runs?verdict=no_baseline",
        "runs of a project by step time": "/runs?project=kernels&sort=step_time_ms",
        "runs of a project, a purpose": "/runs?project=kernels&purpose=experiment",
        "runs, three filters": "/runs?model=DeepSeek-V3&gpu=H100&dispatcher=deepep",
        "runs, two filters by step time": "/runs?model=DeepSeek-V3&gpu=H100&sort=step_time_ms",
        "runs, evidence by name": "/runs?evidence=screen&sort=-name",
        "runs, a commit": "/runs?commit=0123",
        "runs, last week": "/runs?since=7d",
        "runs, a contract field": "/runs?q=tp:1",
        "search, frequent word": "/runs?q=DeepSeek",
        "search, two words": "/runs?q=DeepSeek+release",
        "search, a number": f"/runs?q={run - 7}",
        "search, no match": "/runs?q=nothing-has-this-name",
        "palette": "/search?q=DeepSeek",
        "palette, no match": "/search?q=nothing-has-this-name",
        "API: runs": "/api/v1/runs",
        "API: runs, deep": f"/api/v1/runs?after={run // 2}",
        "API: search": "/api/v1/runs?q=nothing-has-this-name",
        "API: filters": "/api/v1/run-filters?field=model&q=D",
        "run": f"/runs/{run}",
        "run, next steps": f"/runs/{run}/next",
        "API: report": f"/api/v1/runs/{run}/report",
        "compare": f"/compare?a={run}&b={run - 1}",
        "history: stacks": "/history",
        "history: stacks, last": f"/history?page={-(-histories // 25)}",
        "history: stacks, model": "/history?model=DeepSeek-V3",
        "history: stacks, verdict": "/history?verdict=regression",
        "history: search": "/history?q=nothing-has-this-name",
        "history of 50 runs": f"/history/{usual}",
        "history of 50, chart": f"/history/{usual}/chart",
        "API: history of 50": f"/api/v1/history/{usual}",
        "history of 1,000 runs": f"/history/{long}",
        "history of 1,000, chart": f"/history/{long}/chart",
        "history of 5,000 runs": f"/history/{longest}",
        "history of 5,000, chart": f"/history/{longest}/chart",
        "upgrade": "/upgrade?project=kernels",
        "upgrade, driver": "/upgrade?project=kernels&field=driver",
        "regressions": "/regressions",
        "regressions, any state": "/regressions?state=any",
        "regressions, last page": f"/regressions?state=any&page={-(-regressions // 25)}",
        "regressions of a GPU by size": "/regressions?state=closed&gpu=A100&sort=-size",
        "API: regressions": "/api/v1/regressions",
        "regression": f"/regressions/{regression}",
        "API: upgrades": "/api/v1/upgrades",
        "API: upgrade": "/api/v1/upgrade?project=kernels",
        "leaderboards": "/leaderboards",
        "leaderboard": f"/leaderboards/{board[0]}/{board[1]}" if board else "/leaderboards",
        "API: leaderboards": "/api/v1/leaderboards",
        "leaderboard of one": f"/leaderboards/{board[0]}/{board[1]}/leaders" if board else "/leaderboards",
        "scaling": "/scaling",
        "API: scaling": "/api/v1/scaling",
        "experiments": "/experiments",
        "new experiment": "/experiments/new",
        "new experiment of a run": f"/experiments/new?run={run}",
        "playbook": "/playbook",
        "API: rules": "/api/v1/rules",
        "references": "/references",
        "plan": "/plan",
        "availability": "/availability",
        "API: availability": "/api/v1/availability",
        "usage": "/settings/usage",
        "metrics": "/metrics",
    }


class _Times:
    def __init__(self, times: Iterable[tuple[float, float]]) -> None:
        both = list(times)
        milliseconds = sorted(1000 * wall for wall, _ in both)
        self.p50 = statistics.median(milliseconds)
        self.p95 = milliseconds[min(len(milliseconds) - 1, round(0.95 * len(milliseconds)))]
        self.processor = 1000 * statistics.median(used for _, used in both)


def _measure(services: Sequence[_Service], name: str, rounds: int) -> list[list[tuple[float, float]]]:
    """Return the wall and processor seconds of each request, by service."""
    times: list[list[tuple[float, float]]] = [[] for _ in services]
    for number in range(rounds + 2):
        for k, service in enumerate(services):
            began, used = time.perf_counter(), _used()
            service.ask(name)
            if number >= 2:  # the first rounds compile statements and templates
                times[k].append((time.perf_counter() - began, _used() - used))
    return times


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
