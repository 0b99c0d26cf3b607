"""The demo, end to end: the command starts, runs are uploaded and read, and a second start keeps them."""

import csv
import io
import json
import signal
import threading
import urllib.request
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import expect
from sqlalchemy import Engine
from sqlmodel import select

from app.demo.seed import propose_closing
from app.demo.story import SIZES, SUITES, story, trials
from app.demo.studies import PUBLIC_PROJECT, REPOSITORY, STUDIES, TAG, journey, studies
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.tables import RegressionRow, StackWorkRow, utc_now
from tests.browser.budget import leads_over_budget, over_budget
from tests.browser.conftest import running_chromium
from tests.browser.looks import LATE_PARTS
from tests.browser.pages import PAGES, RECORDS, ROWS
from tests.embedded.processes import processes_of_session, running, wait_for, worker_of
from tests.regressions.triaged import make_regression, make_slow_stack

pytestmark = pytest.mark.server

STORY = [job.name for job in story()]
TRIED = [job.name for trial in (*trials(), *journey()) for _, job in trial.jobs]
STUDIED = [job.name for job in studies()]
EXPERIMENTS = {trial.title: trial.decision for trial in (*trials(), *journey())}
CAUSES = ("Code", "Upgrade of the container")
LEAST_CHANGES = 50
"""Changes by upgrades: most are of the public CI."""


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}/api/v1/{path}", timeout=300) as answer:
        return json.load(answer)


def demo_runs(address: str) -> list[dict[str, Any]]:
    return list(get(address, "runs?project=demo&page_size=200")["items"])


def are_done(address: str, names: list[str]) -> bool:
    runs = {run["name"]: run for run in demo_runs(address)}
    result = [runs[name] for name in names if name in runs]
    return len(result) == len(names) and all(
        run["status"] in ("ready", "failed") and (run["verdict"] or run["experiment_id"]) for run in result
    )


def test_the_demo_seeds_itself_once(tmp_path: Path) -> None:
    with running("demo", tmp_path / "data", "--generated-only") as house:
        wait_for(lambda: are_done(house.address, STORY), "the story to be read")
        wait_for(lambda: are_done(house.address, [*STUDIED, *TRIED]), "the studies and the runs of the experiments")
        runs = {run["name"]: run for run in demo_runs(house.address)}
        ids = {run["id"] for run in runs.values()}
        assert Counter(run["status"] for run in runs.values()) == {"ready": 197, "failed": 3}
        detail = get(house.address, f"runs/{runs['dispatcher smoke, alltoall fallback']['id']}")
        assert detail["metrics"]["step_time_ms"]["value"] == pytest.approx(45_650, rel=0.005)
        assert_the_service_tells_the_story(house.address, {name: run["id"] for name, run in runs.items()})
        assert_the_leaderboard_reads_as_the_founding_documents(
            house.address, {name: run["id"] for name, run in runs.items()}
        )
        assert_scaling_is_as_it_was_made(house.address)
        assert_runs_stand_before_different_walls(house.address, {name: run["id"] for name, run in runs.items()})
        assert_slow_runs_are_told_the_cause(house.address, {name: run["id"] for name, run in runs.items()})
        assert_every_experiment_is_in_its_state(house.address)
        assert_the_studies_rank_their_dispatchers(house.address)
        assert_every_page_keeps_the_word_budget(house.address, {name: run["id"] for name, run in runs.items()})
        assert house.stop() == 0

    with running("demo", tmp_path / "data") as again:
        wait_for(lambda: are_done(again.address, [*STORY, *STUDIED, *TRIED]), "the story to be there still")
        assert {run["id"] for run in demo_runs(again.address)} == ids
        assert_public_runs_follow(again.address)
        wait_for(lambda: badges_agree(again.address), "the badges of runs to follow their regressions")
        wait_for(lambda: upgrades_agree(again.address), "lists and reports of upgrades to state the same changes")
        worker = worker_of(again)
        assert again.stop(signal.SIGINT) == 0
        assert processes_of_session(worker) == []
        assert "Traceback" not in again.output


def test_idle_regressions_are_proposed_when_the_last_stack_is_judged(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.demo.seed.utc_now", lambda: utc_now() + timedelta(days=60))
    with transaction(engine) as session:
        slow = make_slow_stack(session)
        number = make_regression(session, slow)
        session.add(StackWorkRow(project_id=slow.project_id, stack_key=slow.stack_key, work="waiting"))
    stopped = threading.Event()
    stopped.set()
    proposals = []
    for work in ("waiting", ""):
        with transaction(engine) as session:
            session.exec(select(StackWorkRow)).one().work = work
        propose_closing(settings, stopped)
        with read_session(engine) as session:
            proposals.append(session.get_one(RegressionRow, number).proposal)
    assert proposals == ["", "stale"]


def badges_agree(address: str) -> bool:
    """Return whether the filter by verdict finds the runs that are shown so, also those that an upgrade made slower."""
    filtered = get(address, "runs?page_size=200&verdict=regression")["items"]
    assert "no_baseline" in {run["verdict"] for run in filtered}
    shown = {run["id"] for run in get(address, "runs?page_size=200")["items"] if run["badge"] == "regression"}
    return shown <= {run["id"] for run in filtered} and {run["badge"] for run in filtered} == {"regression"}


def upgrades_agree(address: str) -> bool:
    """Return whether every change has one result: in the list, in the report and in the table of the page."""
    upgrades = get(address, "upgrades")["items"]
    names = ("delta_pct", "ci_low_pct", "ci_high_pct")
    for upgrade in upgrades:
        sides = {"project": upgrade["project"], "field": upgrade["field"]}
        query = urlencode(sides | {"from": upgrade["from_value"], "to": upgrade["to_value"]})
        rows = [row for row in get(address, f"upgrade?{query}")["stacks"] if row["step_time"]]
        with urllib.request.urlopen(f"{address}/upgrade.csv?{query}", timeout=300) as answer:
            table = [row for row in csv.DictReader(io.TextIOWrapper(answer, "utf-8")) if row["delta_pct"]]
        listed = Counter(
            (item["stack_key"], item["job"], *(item[name] for name in (*names, "runs", "from_runs")), item["decision"])
            for item in upgrade["stacks"]
        )
        reported: Counter[tuple[Any, ...]] = Counter()
        for row in rows:
            figures = (*(row["step_time"][name] for name in names), len(row["to_runs"]), len(row["from_runs"]))
            reported[row["stack_key"], row["job"], *figures, row["step_time"]["decision"]] += 1
        exported = Counter(
            (*(float(row[name]) for name in names), len(row["to_runs"].split()), len(row["from_runs"].split()))
            for row in table
        )
        if listed - reported or exported != Counter(change[2:-1] for change in reported.elements()):
            return False
    return sum(len(upgrade["stacks"]) for upgrade in upgrades) > LEAST_CHANGES


def assert_the_service_tells_the_story(address: str, ids: dict[str, int]) -> None:
    """The events of `app/demo/story.py`, as the service reports them."""
    regressions = {regression["cause"]: regression for regression in get(address, "regressions?project=demo")["items"]}
    code, upgrade = (next(regressions[cause] for cause in regressions if cause.startswith(begin)) for begin in CAUSES)
    assert len(regressions) == len(CAUSES)
    assert members(code) == {ids["nightly 2026-09-14"], ids["nightly 2026-09-14, sequence 8192"]}
    assert code["proposal"] == "fixed"
    assert members(upgrade) == {ids[f"nightly 2026-09-22{suite.suffix}"] for suite in SUITES}
    assert upgrade["gpu_hours_per_day"] > 0
    assert code["gpu_hours_per_day"] == 0  # a stack that is back at its usual level costs nothing any more

    def decision(name: str) -> str:
        return str(get(address, f"runs/{ids[name]}/verdict")["verdict"])

    assert decision("nightly 2026-09-10, sequence 2048") == "improvement"
    assert decision("nightly 2026-09-28, sequence 8192") == "no_change"  # with its reruns; alone it was inconclusive
    turned = get(address, f"runs/{ids['nightly 2026-09-27, sequence 2048']}/verdict")  # an A/B opens no regression
    assert turned["suspects"][0]["field"] == "permute_fusion"
    quiet = [name for name in ids if name.startswith("nightly 2026-09-0")]
    assert {decision(name) for name in quiet} <= {"no_change", "inconclusive", "no_baseline"}
    turned_off = {name: decision(name) for name in ids if name.startswith("A/B")}
    assert turned_off.pop("A/B: CUDA graphs off") == "no_baseline"  # it is a separate stack
    assert {*turned_off.values()} == {"regression"}
    assert {decision(f"nightly 2026-09-22{suite.suffix}") for suite in SUITES} == {"no_baseline"}


def members(regression: dict[str, Any]) -> set[int]:
    return {member["run_id"] for member in regression["members"]}


def assert_the_leaderboard_reads_as_the_founding_documents(address: str, ids: dict[str, int]) -> None:
    """The fallback is the only measurement; overlap is directional; neither is a ranking."""
    stacks = {item["stack_key"]: item for item in get(address, "leaderboards?evidence=smoke&page_size=200")["items"]}

    def stack_of(name: str) -> dict[str, Any]:
        stack: dict[str, Any] = stacks[get(address, f"runs/{ids[name]}")["stack_key"]]
        return stack

    dispatchers = stack_of("dispatcher smoke, alltoall fallback")
    assert [item["dispatcher"] for item in dispatchers["missing"]] == ["deepep", "hybridep"]
    (board,) = dispatchers["boards"]
    assert (board["reading"], board["leaders"], board["entries"]) == ("only_measurement", [], [])
    for part in ("alltoall is the only measured fallback", "not a ranking", "says nothing about their speed"):
        assert part in board["sentence"]

    (board,) = stack_of("overlap smoke, EP overlap on")["boards"]
    (alltoall,) = board["entries"]
    assert (board["reading"], alltoall["directional"], alltoall["place"]) == ("only_measurement", True, None)
    delayed, on, off = (
        configuration["comparison"] and configuration["comparison"]["outcome"]
        for configuration in alltoall["configurations"]
    )
    assert (delayed, on in ("undecided", "equal"), off) == (None, True, "second")
    assert "Direction only" in board["sentence"]


def assert_every_experiment_is_in_its_state(address: str) -> None:
    """Two experiments on the nightly job, and a journey of three accepted steps with a profile at two of them."""

    def states() -> dict[str, str]:
        return {item["title"]: item["state"] for item in get(address, "experiments?project=demo")["items"]}

    undecided = {"Is permute fusion still worth it?": "waiting", "Delay weight gradients": "done"}
    expected = {title: decision or undecided.get(title, "planned") for title, decision in EXPERIMENTS.items()}
    wait_for(lambda: states() == expected, f"the experiments to be {expected}")
    assert set(expected.values()) == {"planned", "waiting", "done", "accepted", "rejected", "withdrawn"}
    runs = {run["name"]: run["id"] for run in demo_runs(address)}
    edges = get(address, f"journeys/{runs[STUDIED[-1]]}")["edges"]
    assert sorted(edge["state"] for edge in edges) == sorted(expected[trial.title] for trial in journey())
    profiled = {job.name: job.profile for trial in journey() for _, job in trial.jobs if job.profile}
    assert len(profiled) == 2
    for name, stated in profiled.items():
        wait_for(
            lambda name=name: get(address, f"runs/{runs[name]}/profiles")["items"][0]["status"] == "ready", "a profile"
        )
        facts = get(address, f"runs/{runs[name]}/profiles")["items"][0]["facts"]
        assert facts["exposed_comm_frac"] == pytest.approx(stated.exposed, abs=0.005)
        assert facts["gpu_idle_frac"] == pytest.approx(stated.idle, abs=0.005)


def assert_the_studies_rank_their_dispatchers(address: str) -> None:
    """Three model families on two GPU types; the leader is the fastest variant of the study."""
    boards = {}
    for item in get(address, "leaderboards?project=demo&page_size=200")["items"]:
        for board in item["boards"]:
            if len(board["entries"]) > 1:
                boards[item["family"], item["hardware"]] = [entry["dispatcher"] for entry in board["entries"]]
    fastest = {
        (workload.model.name, workload.gpu): max(study.variants.values(), key=lambda variant: variant[1])[0].dispatcher
        for study in STUDIES
        for workload, _ in study.variants.values()
        if study.tag != "long context"
    }
    assert len({family for family, _ in fastest}) == 3
    assert {key: boards[key][0] for key in fastest} == fastest
    assert {name for names in boards.values() for name in names} == {"alltoall", "allgather", "deepep", "hybridep"}


def assert_public_runs_follow(address: str) -> None:
    """Real runs in a separate project: not generated, with the CI's commit and a link to the file with the values."""
    project = quote(PUBLIC_PROJECT)
    wait_for(lambda: get(address, f"runs?project={project}&status=ready")["total"], "a run of the public CI")
    (run,) = get(address, f"runs?project={project}&status=ready&page_size=1")["items"]
    detail = get(address, f"runs/{run['id']}")
    assert (detail["generated"], detail["purpose"], TAG in detail["tags"]) == (False, "ci", True)
    assert detail["ci_url"].startswith(f"{REPOSITORY}/blob/{detail['commit']}/tests/functional_tests/")


def assert_every_page_keeps_the_word_budget(address: str, ids: dict[str, int]) -> None:
    """On a first screen of 1440x900 and of 390x844, with the rows of the demo; every page answers, every lead fits."""
    slow = ids["nightly 2026-09-27, sequence 2048"]
    profiled = ids["Overlap expert communication with compute, candidate 1"]
    other_profiled = ids["DeepEP in place of alltoall, candidate 1"]
    places = {
        "slow": slow,
        "good": ids["nightly 2026-09-30"],
        "oom": ids["micro-batch of 2"],
        "failed": next(run["id"] for run in demo_runs(address) if run["status"] == "failed"),
        "stack": get(address, f"runs/{slow}")["stack_key"],
        "profiled": profiled,
        "profile": get(address, f"runs/{profiled}/profiles")["items"][0]["id"],
        "other_profile": get(address, f"runs/{other_profiled}/profiles")["items"][0]["id"],
    }
    wrong = []
    with running_chromium() as browser:
        page = browser.new_page(base_url=address)
        for template in (template for templates in PAGES.values() for template in templates):
            page.set_viewport_size({"width": 1440, "height": 900})
            answer = page.goto(template.format(**places))
            expect(page.locator(LATE_PARTS)).to_have_count(0)
            wrong += [f"{template}: {answer.status}"] if answer and answer.status >= 400 else []
            if template not in RECORDS:
                wrong += over_budget(page, rows_count=template not in ROWS)
                page.set_viewport_size({"width": 390, "height": 844})
                wrong += over_budget(page, rows_count=template not in ROWS)
        wrong += leads_over_budget(page, [f"/runs/{run['id']}" for run in demo_runs(address)])
    assert not wrong, "\n".join(wrong)


FASTER_WORK = ("own-faster-run", "published-faster")
"""Rules that name another run or a record, whatever the wall."""


def assert_runs_stand_before_different_walls(address: str, ids: dict[str, int]) -> None:
    """Communication and host from a profile, memory from the log; each gets suggestions for its wall."""
    for name, wall, first in (
        ("overlap smoke, EP overlap off", "communication", "eo-enable"),
        ("overlap smoke, EP overlap on", "host", "host-affinity"),
        ("nightly 2026-08-29, sequence 65536", "memory", "fit-selective-first"),
    ):
        advice = get(address, f"runs/{ids[name]}/suggestions")
        assert (advice["wall"]["wall"], advice["wall"]["certainty"]) == (wall, "measured")
        rules = [item["rule"] for item in advice["suggestions"] if item["kind"] == "candidate"]
        assert [rule for rule in rules if rule not in FASTER_WORK][:1] == [first]


def assert_slow_runs_are_told_the_cause(address: str, ids: dict[str, int]) -> None:
    """First runs of an open regression, and runs that continue it; a failed import is told nothing about speed."""
    for name, cause in (
        ("nightly 2026-09-22", "container"),
        ("nightly 2026-09-24", "container"),
        ("nightly 2026-09-30", "container"),
        ("A/B: permute fusion off", "permute_fusion"),
    ):
        first = get(address, f"runs/{ids[name]}/suggestions")["suggestions"][0]
        assert (name, first["rule"]) == (name, "val-regression-cause")
        if name == "nightly 2026-09-30":  # as fast as its own baseline: only the open regression asks for a change
            assert first["title"].startswith("Test regression ")
        if cause == "container":  # the code changed in the same jobs
            assert "Possible causes, none proven: container " in first["why"]
        else:
            assert f"Most likely cause: {cause} " in first["why"]
        assert " 0.0 % longer" not in first["why"]
    failed = get(address, f"runs/{ids['nightly with DeepEP']}/report")
    assert {item["field"]: item["evidence"] for item in failed["verdict"]["suspects"]}["dispatcher"] == []
    assert failed["next_step"]["rule"] == "disp-package-missing"
    assert "%" not in failed["next_step"]["place"]


def assert_scaling_is_as_it_was_made(address: str) -> None:
    """Weak and strong scaling of the nightly job, and longer sequences."""
    result = get(address, "scaling?project=demo&family=qwen3-30b-a3b&hardware=h100")
    series = {item["kind"]: item for item in result["series"] if item["differs_in"].get("permute_fusion", "on") == "on"}
    assert {kind: len(item["points"]) for kind, item in series.items()} == {
        "weak": 4,
        "strong": 3,
        "sequence_tokens": 9,
    }
    for size in SIZES:
        (point,) = (item for item in series[size.kind]["points"] if item["size"] == size.gpus)
        assert point["efficiency_pct"]["value"] == pytest.approx(100 * size.efficiency, rel=0.02)
        assert (point["compared"], point["changed_at"], point["days_apart"]) == (True, [], 0)  # of one commit
    assert series["sequence_tokens"]["points"][-1]["cp"] == 2
