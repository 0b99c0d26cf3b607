"""Verdicts on real histories: every golden run of the corpus, uploaded in commit order through the API.

    make setup; .venv/bin/python -m bench.histories [--corpus ../shared/corpus] [--every N] [--all]

In this process, each document is uploaded, read and judged before the next one. The output has the verdicts, the runs
that each regression compares, and what the first run after each change in `observed-changes.csv` showed to users.
`--every N` uses only every Nth test case, `--only TEXT` those whose names contain the text; `--all` also lists the
detected changes.
"""

import argparse
import csv
import json
import os
import resource
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import structlog
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import get_settings
from app.storage.database import migrate
from app.storage.visible import see_every_project
from workers.tasks import process_run

DEFAULT_CORPUS = Path(__file__).resolve().parent.parent.parent / "shared" / "corpus"
PROJECT = "golden"
LASTING = ("stayed", "last run", "moved again")
NOTICED = ("opened", "opened earlier", "joined", "called", "upgrade", "on its page", "improvement", "upgrade, faster")


@dataclass(frozen=True)
class GoldenRun:
    name: str
    job: str
    place: datetime
    commit: str
    path: Path
    environment: tuple[str, str]

    @property
    def history(self) -> tuple[str, str, str]:
        """Return the key of the comparable runs according to the corpus: test, platform and environment."""
        return (self.job, *self.environment)


def golden_runs(corpus: Path) -> list[GoldenRun]:
    rows = [json.loads(line) for line in (corpus / "golden" / "index.jsonl").read_text().splitlines()]
    runs = [
        GoldenRun(
            name=row["run_id"],
            job=row["test_case"],
            place=datetime.fromisoformat(row["commit_date"]).astimezone(UTC),
            commit=row["commit"],
            path=corpus / row["file"],
            environment=(row["platform"], row["environment"] or ""),
        )
        for row in rows
    ]
    return sorted(runs, key=lambda run: (run.place, run.name))


def observed_changes(corpus: Path) -> list[dict[str, str]]:
    with (corpus / "golden" / "observed-changes.csv").open() as file:
        return list(csv.DictReader(file))


def uploaded(client: TestClient, run: GoldenRun) -> int:
    meta = {"project": PROJECT, "name": run.name, "branch": "main", "commit": run.commit}
    meta["commit_time"] = run.place.isoformat()
    files = [("config", ("golden.json", run.path.read_bytes()))]
    answer = client.post("/api/v1/runs", files=files, data={"meta": json.dumps(meta)})
    assert answer.status_code in (200, 202), answer.text
    run_id: int = answer.json()["id"]
    process_run(run_id)
    return run_id


@dataclass(frozen=True)
class Result:
    """The result of all uploads.

    `ids`: run number by name. `verdicts`: by run number. `members`: of all regressions, each with its regression.
    `upgrades`: changes of an upgrade by its first run.
    """

    runs: Sequence[GoldenRun]
    ids: Mapping[str, int]
    steady: Mapping[int, Mapping[str, Any]]
    verdicts: Mapping[int, Mapping[str, Any]]
    members: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]
    upgrades: Mapping[int, Mapping[str, Any]]

    @property
    def by_id(self) -> dict[int, GoldenRun]:
        return {self.ids[run.name]: run for run in self.runs}

    def compared_with(self, run_id: int) -> list[int]:
        """Return the baseline runs of the verdict, or of the contrast that replaces it."""
        verdict = self.verdicts[run_id]
        contrast = verdict.get("contrast")
        runs = verdict["baseline"]["runs"] or (contrast["runs"] if contrast else [])
        return [int(run) for run in runs]


def upload_all(corpus: Path, every: int, only: str) -> Result:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    get_settings.cache_clear()
    settings = get_settings()
    migrate(settings)
    see_every_project()
    app = create_app(settings, open_to=("testserver",))
    client = TestClient(app)
    runs = golden_runs(corpus)
    chosen = sorted({run.job for run in runs if only in run.job})[::every]
    runs = [run for run in runs if run.job in chosen]
    ids = {run.name: uploaded(client, run) for run in runs}
    see_every_project()
    steady = {number: client.get(f"/api/v1/runs/{number}").json() for number in ids.values()}
    verdicts = {number: client.get(f"/api/v1/runs/{number}/verdict").json() for number in ids.values()}
    regressions = list(_regressions(client))
    members = [(regression, member) for regression in regressions for member in regression["members"]]
    items = client.get("/api/v1/upgrades", params={"project": PROJECT}).json()["items"]
    upgrades = {stack["run_id"]: stack for item in items for stack in item["stacks"]}
    app.state.engine.dispose()
    return Result(runs, ids, steady, verdicts, members, upgrades)


def _regressions(client: TestClient) -> Iterator[dict[str, Any]]:
    page, pages = 1, 1
    while page <= pages:
        answer = client.get("/api/v1/regressions", params={"page": page, "page_size": 100, "state": "any"})
        assert answer.status_code == 200, answer.text
        yield from answer.json()["items"]
        page, pages = page + 1, answer.json()["pages"]


# --- What the service showed to users.


def seen_at(result: Result, change: Mapping[str, str]) -> tuple[str, str]:
    """Return what the first run after a lasting change shows (a word of NOTICED, or `missed`), and the reason."""
    run_id = result.ids[change["after_run"]]
    verdict = result.verdicts[run_id]
    slower = change["direction"] == "slower"
    if compares_two_jobs(result, run_id):
        return "missed", f"{verdict['verdict']} against another job"
    if slower and (seen := _regression_at(result, run_id, change)):
        return seen
    if not slower and verdict["verdict"] == "improvement":
        return "improvement", ""
    decision = "regression" if slower else "improvement"
    if result.upgrades.get(run_id, {}).get("decision") == decision:
        return ("upgrade" if slower else "upgrade, faster"), "listed"
    if (verdict.get("contrast") or {}).get("decision") == decision:
        return "on its page", "both sides are in use, or a field is not stated"
    return "missed", _why_missed(verdict)


def _regression_at(result: Result, run_id: int, change: Mapping[str, str]) -> tuple[str, str] | None:
    """Return how a slower run relates to a regression of step time; None if it does not."""
    verdict = result.verdicts[run_id]
    own = [regression for regression, member in result.members if member["run_id"] == run_id]
    own = [regression for regression in own if regression["metric"] == "step_time_ms"]
    if own:
        return ("upgrade" if own[0]["kind"] == "upgrade" else "opened"), f"#{own[0]['id']}"
    if verdict["verdict"] == "regression":
        asks = bool(verdict.get("rerun"))
        return ("called", "requests a confirming rerun") if asks else ("joined", "covered by another regression")
    earlier = opened_since(result, change)
    return ("opened earlier", f"#{earlier}") if earlier else None


def opened_since(result: Result, change: Mapping[str, str]) -> int:
    """Return the regression of this history that began after the last run before the change; 0 without one.

    `observed-changes.csv` leaves out some runs, so the first slow run may be an earlier one.
    """
    before, after = (result.by_id[result.ids[change[name]]] for name in ("before_run", "after_run"))
    for regression, member in result.members:
        run = result.by_id[member["run_id"]]
        between = run.history == after.history and before.place < run.place <= after.place
        if between and regression["metric"] == "step_time_ms" and regression["state"] != "invalid":
            return int(regression["id"])
    return 0


def _why_missed(verdict: Mapping[str, Any]) -> str:
    contrast = verdict.get("contrast")
    if verdict["verdict"] == "no_baseline" and contrast:
        time = contrast.get("metrics", {}).get("step_time_ms") or {}
        shown = (
            "{delta_pct:+.1f} % ({ci_low_pct:+.1f} to {ci_high_pct:+.1f})".format(**time) if time else "no step time"
        )
        return f"no baseline; contrast {contrast['decision']}, {shown}: {contrast.get('reason', '')}"
    return f"{verdict['verdict']}: {verdict['reason'][:100]}"


def earlier_runs(result: Result, change: Mapping[str, str]) -> int:
    run = result.by_id[result.ids[change["after_run"]]]
    before = [other for other in result.runs if other.history == run.history and other.place < run.place]
    return sum(result.steady[result.ids[other.name]]["steady_state"] is not None for other in before)


def compares_two_jobs(result: Result, run_id: int) -> bool:
    """Return whether the baseline of a run belongs to another test, platform or environment."""
    history = result.by_id[run_id].history
    return any(result.by_id[other].history != history for other in result.compared_with(run_id))


def compares_two_tests(result: Result, run_id: int) -> bool:
    job = result.by_id[run_id].job
    return any(result.by_id[other].job != job for other in result.compared_with(run_id))


def is_side_by_side(result: Result, run_id: int) -> bool:
    """Return whether the old side of an upgrade still had runs of the job afterwards."""
    against, run = result.compared_with(run_id), result.by_id[run_id]
    old = {result.verdicts[other]["stack_key"] for other in against if "stack_key" in result.verdicts[other]}
    return any(
        other.history == run.history and other.place > run.place and result.verdicts[number].get("stack_key") in old
        for number, other in result.by_id.items()
    )


def report(result: Result, changes: Sequence[Mapping[str, str]], *, list_all: bool) -> None:
    n = len(result.runs)
    decisions = Counter(verdict["verdict"] for verdict in result.verdicts.values())
    print(f"{n} runs: " + ", ".join(f"{count} {name}" for name, count in decisions.most_common()))
    kinds = Counter(verdict["baseline"]["kind"] for verdict in result.verdicts.values())
    print("baseline: " + ", ".join(f"{count} {name}" for name, count in kinds.most_common()))
    long = [run["steady_state"] for run in result.steady.values() if run["steady_state"] and not _is_short(run)]
    unsteady = sum(not state["is_steady"] for state in long)
    share = f"{100 * unsteady / len(long):.0f} %"
    print(f"runs of 15 and more steady iterations: {len(long)}, not steady {unsteady} ({share})")
    states = Counter(
        (regression["kind"], regression["metric"], regression["state"])
        for regression in {regression["id"]: regression for regression, _ in result.members}.values()
    )
    print("regressions: " + ", ".join(f"{count} {' '.join(key)}" for key, count in sorted(states.items())))
    wrong = [member["run_id"] for _, member in result.members if compares_two_jobs(result, member["run_id"])]
    tests = [run_id for run_id in wrong if compares_two_tests(result, run_id)]
    elsewhere = f"{len(wrong) - len(tests)} one test on two platforms or environments"
    print(f"members: {len(result.members)}, of which {len(tests)} compare two tests, and {elsewhere}")
    for run_id in wrong if list_all else wrong[:5]:
        other = result.compared_with(run_id)[-1]
        print(f"    {result.by_id[run_id].name} <- {result.by_id[other].name}")
    upgrades = [member["run_id"] for regression, member in result.members if regression["kind"] == "upgrade"]
    false = [run_id for run_id in upgrades if is_side_by_side(result, run_id)]
    print(f"upgrades opened: {len(upgrades)}, of which {len(false)} while the old side still ran")
    print_changes(result, changes, list_all=list_all)


def _is_short(run: Mapping[str, Any]) -> bool:
    return bool(run["steady_state"]["n"] < 15)


def print_changes(result: Result, changes: Sequence[Mapping[str, str]], *, list_all: bool) -> None:
    seen: dict[tuple[str, bool], list[str]] = defaultdict(list)
    lines = []
    for change in changes:
        if change["after_run"] not in result.ids or change["persistence"] not in LASTING:
            continue
        word, why = seen_at(result, change)
        earlier = earlier_runs(result, change)
        seen[change["direction"], earlier >= 2].append(word)
        if word not in NOTICED or list_all:
            pct = 100 * (float(change["ratio"]) - 1)
            where = (
                f"{change['test_case'][:60]} {change['platform'][4:]} {change['environment']} {change['after_date']}"
            )
            image = "new image" if change["same_image"] == "0" else ""
            flags = "other flags" if change["same_launch_args"] == "0" else ""
            marks = ", ".join(filter(None, (change["persistence"], image, flags)))
            lines.append(f"  {pct:+6.1f} % {earlier:2} earlier  {word}: {why}\n             {where} ({marks})")
    print("lasting changes of step time of 10 % and more:")
    for (direction, enough), words in sorted(seen.items(), reverse=True):
        noticed = sum(word in NOTICED for word in words)
        label = f"{direction}, {'two or more earlier runs' if enough else 'fewer than two'}"
        counts = ", ".join(f"{count} {word}" for word, count in Counter(words).most_common())
        print(f"  {label:36} {noticed} of {len(words)} noticed ({counts})")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=DEFAULT_CORPUS)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--all", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["THREEWALLS_DATA_DIR"], os.environ["THREEWALLS_LOG_LEVEL"] = folder, "error"
        result = upload_all(options.corpus, options.every, options.only)
    report(result, observed_changes(options.corpus), list_all=options.all)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(f"{used.ru_utime + used.ru_stime:.0f} processor seconds")


if __name__ == "__main__":
    main()
