"""A simulated year of nightly runs: openings, reopenings and ends of regressions, compared with a fixed 5 % rule.

    make setup; .venv/bin/python -m bench.year [--stacks 2] [--otava PATH]

The code does not change in 365 nights. Launches vary by 0.5, 1.0 or 1.5 %, 2 % of the nights run on a slow node (5 to
15 % slower), the level drifts by 1 % over the year, and nothing runs during two weeks of maintenance. So every opening
is a false alarm. The real judge judges each night when it arrives. The fixed rule compares a night with the mean of the
previous ten. `--otava` is the executable of Apache Otava, which analyses each complete year once.
"""

import argparse
import csv
import os
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import structlog
from sqlalchemy import Engine
from sqlmodel import col, select

from app.settings import Settings
from app.storage.database import make_engine, migrate, read_session
from app.storage.tables import AuditEventRow
from app.storage.visible import see_every_project
from tests.regressions.judging import arrive, day, judge_all

SPREADS = (0.005, 0.01, 0.015)
NIGHTS, SLOW_NIGHTS, DRIFT = 365, 0.02, 0.01
MAINTENANCE = range(180, 194)
FIXED, BEFORE = 0.05, 10


def year(draw: np.random.Generator, spread: float) -> list[tuple[int, float]]:
    """Return (night, step time in ms) of every run."""
    nights = [night for night in range(NIGHTS) if night not in MAINTENANCE]
    launches = spread * draw.standard_t(5, len(nights)) / np.sqrt(5 / 3)
    slow = np.where(draw.random(len(nights)) < SLOW_NIGHTS, draw.uniform(0.05, 0.15, len(nights)), 0.0)
    drift = DRIFT * np.array(nights) / NIGHTS
    return list(zip(nights, (1000 * np.exp(launches + slow + drift)).tolist(), strict=True))


def threewalls(engine: Engine, settings: Settings, nights: list[tuple[int, float]]) -> Counter[str]:
    """Return how often each action on a regression was recorded. The database has no other runs."""
    for night, time in nights:
        arrive(engine, time, night)
        judge_all(engine, settings)
    with read_session(engine) as session:
        chosen = select(AuditEventRow.action).where(col(AuditEventRow.subject) == "regression")
        return Counter(session.exec(chosen).all())


def fixed_rule(nights: list[tuple[int, float]]) -> int:
    """Return how often a night becomes more than 5 % slower than the mean of the previous ten nights."""
    times = [time for _, time in nights]
    slow = [times[i] > (1 + FIXED) * float(np.mean(times[i - BEFORE : i])) for i in range(BEFORE, len(times))]
    return sum(now and not before for before, now in zip([False, *slow], slow, strict=False))


def otava(path: str, nights: list[tuple[int, float]], folder: Path) -> int:
    """Return the number of change points with a slowdown, from Otava's report."""
    with (folder / "year.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", "step_time_ms"])
        writer.writerows((day(night).strftime("%Y-%m-%d %H:%M:%S"), time) for night, time in nights)
    (folder / "otava.yaml").write_text(
        f"tests:\n  year:\n    type: csv\n    file: {folder / 'year.csv'}\n    time_column: time\n"
        "    metrics: [step_time_ms]\n    csv_options: {delimiter: ','}\n"
    )
    done = subprocess.run(
        [path, "analyze", "year", "--since", "2000-01-01"],
        capture_output=True, text=True, check=True, env={**os.environ, "OTAVA_CONFIG": str(folder / "otava.yaml")},
    )  # fmt: skip
    return sum(word.startswith("+") and word.endswith("%") for word in done.stdout.split())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stacks", type=int, default=2)
    parser.add_argument("--otava", default="")
    options = parser.parse_args()
    see_every_project()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    columns = ("openings", "reopened", "proposed fixed", "fixed 5 % rule", "Otava")
    print(f"{'launches vary by':18}" + "".join(f"{column:>16}" for column in columns))
    for spread in SPREADS:
        total: Counter[str] = Counter()
        for number in range(options.stacks):
            nights = year(np.random.default_rng([number, round(spread * 1e4)]), spread)
            with tempfile.TemporaryDirectory() as folder:
                os.environ["THREEWALLS_DATA_DIR"] = folder
                settings = Settings(data_dir=Path(folder))
                migrate(settings)
                engine = make_engine(settings)
                total += threewalls(engine, settings, nights)
                engine.dispose()
                total["fixed rule"] += fixed_rule(nights)
                if options.otava:
                    total["otava"] += otava(options.otava, nights, Path(folder))
        per_year = {name: count / options.stacks for name, count in total.items()}
        figures = [per_year.get(name, 0.0) for name in ("opened", "reopened", "proposal_made", "fixed rule")]
        if options.otava:
            figures.append(per_year.get("otava", 0.0))
        print(f"{f'{100 * spread:.1f} %':18}" + "".join(f"{figure:16.1f}" for figure in figures))


if __name__ == "__main__":
    main()
