"""Suggestions for every run of the demo and for a folder of logs: how often each rule fires, and which one is first.

First `make setup`; then `.venv/bin/python -m bench.suggestions --logs FOLDER` (`corpus/logs/real-full` of the shared
data). It uploads every run to a separate service in a temporary folder, in this process. Exit code 1 if a rule without
evidence and without `general` fires for more than 60 % of the runs, or if the first suggestion for a regression of the
demo is not its cause.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlmodel import select
from starlette.testclient import TestClient

from app.demo.story import render, story
from app.domain.rules.load import built_in_rules
from app.main import create_app
from app.settings import get_settings
from app.storage.database import migrate, read_session
from app.storage.tables import StackWorkRow
from app.storage.visible import see_every_project
from workers.tasks import judge_stack, process_run

MOST_SHARE = 0.6
FIRST = 3
NO_CAUSE = "no known field differs"
"""Every regression of the demo is planted, so its cause is known."""


@contextmanager
def service(folder: Path) -> Iterator[Any]:
    """Return a client of a service in this process, with an empty database in the folder."""
    os.environ["THREEWALLS_DATA_DIR"], os.environ["THREEWALLS_LOG_LEVEL"] = str(folder), "warning"
    migrate(get_settings())
    see_every_project()
    app = create_app(get_settings(), open_to=("testserver",))
    with TestClient(app) as client:
        yield client
    app.state.engine.dispose()


def upload(client: Any, log: bytes, meta: dict[str, Any]) -> int:
    """Upload and process one run. Return its id."""
    parts = [("log", ("train.log", log)), ("meta", (None, json.dumps(meta)))]
    run_id = int(client.post("/api/v1/runs", files=parts).raise_for_status().json()["id"])
    process_run(run_id)
    return run_id


def settle(client: Any) -> None:
    """Judge every waiting stack."""
    for _ in range(3):
        with read_session(client.app.state.engine) as session:
            waiting = session.exec(select(StackWorkRow.id).where(StackWorkRow.work != "")).all()
        for work_id in waiting:
            judge_stack(work_id or 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, help="folder of further logs; the file next to each states the GPU")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, service(Path(name)) as client:
        return report(client, options.logs)


def report(client: Any, logs: Path | None) -> int:
    runs = {}
    for job in story():
        runs[job.name] = upload(client, render(job).encode(), job.metadata())
        settle(client)
    paths = [] if logs is None else sorted(logs.glob("*.log"))
    real = {path.name: upload(client, path.read_bytes(), sidecar(path)) for path in paths}
    settle(client)

    answers = {
        name: client.get(f"/api/v1/runs/{run_id}/suggestions").raise_for_status().json()
        for name, run_id in {**runs, **real}.items()
    }
    bad = print_shares(answers)
    print("\nFirst suggestions of the demo's runs")
    firsts = Counter(" > ".join(row["rule"] for row in answers[name]["suggestions"][:FIRST]) for name in runs)
    for rules, count in firsts.most_common():
        print(f"{count:4} {rules}")
    bad += print_regressions(client, runs, answers)
    for name in real:
        print(f"\n{name}: wall {answers[name]['wall']['wall']} ({answers[name]['wall']['certainty']})")
        for number, row in enumerate(answers[name]["suggestions"][:FIRST], 1):
            print(f"  {number}. {row['rule']} [{row['place']['group']}] {row['title']}: {row['why']}")
    return int(bad > 0)


def sidecar(path: Path) -> dict[str, Any]:
    """Return what an uploader knows about a log: its name, and the GPU from the file next to it (`8x MI355X`)."""
    meta: dict[str, Any] = {"project": "real", "name": path.name}
    beside = path.with_suffix(".json")
    hardware = json.loads(beside.read_text()).get("hardware", "") if beside.is_file() else ""
    if match := re.fullmatch(r"(\d+)x (MI\d+X)\b.*", hardware):
        meta |= {"gpu": match[2], "gpus": int(match[1]), "gpus_per_node": 8}
    return meta


def print_shares(answers: dict[str, Any]) -> int:
    """Print the share of runs for which each rule is suggested. Return the number of too common rules."""
    rules = built_in_rules().rules
    shares = Counter(row["rule"] for answer in answers.values() for row in answer["suggestions"])
    bad = 0
    print(f"Share of {len(answers)} runs for which a rule is suggested")
    for rule, count in shares.most_common(30):
        share = count / len(answers)
        is_bad = share > MOST_SHARE and not rules[rule].effect.evidence and rules[rule].hints.general is False
        print(
            f"{share:5.0%} {rule}{'  general' if rules[rule].hints.general else ''}{'  TOO COMMON' if is_bad else ''}"
        )
        bad += is_bad
    return bad


def print_regressions(client: Any, runs: dict[str, int], answers: dict[str, Any]) -> int:
    """Print the first suggestion of each run that is slower than its baseline. Return how many miss the cause."""
    bad = 0
    print("\nRegressions of the demo")
    for name, run_id in runs.items():
        verdict = client.get(f"/api/v1/runs/{run_id}/verdict").json()
        fires = [row for row in answers[name]["suggestions"] if row["rule"] == "val-regression-cause"]
        if verdict.get("verdict") != "regression" and not fires:
            continue
        first = answers[name]["suggestions"][0]
        is_bad = first["rule"] != "val-regression-cause" or NO_CAUSE in first["why"]
        bad += is_bad
        fields = ", ".join(f"{row['name']}: {row['before']} to {row['after']}" for row in first["changes"]["fields"])
        print(
            f"  {'BAD ' if is_bad else ''}{name}: {first['rule']}: {first['why']} {first['changes']['text']} [{fields}]"
        )
    return bad


if __name__ == "__main__":
    sys.exit(main())
