"""Uploads join by their tag or configuration; runs that do not count are listed with the reason."""

import re
from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.domain.experiments.values import ExperimentResult
from app.domain.numbers import step_time
from app.pipeline.experiments import refresh
from app.settings import Settings
from app.storage.database import read_session, transaction
from app.storage.experiments import ExperimentFilter, find_experiments
from app.storage.suspect_evidence import matched_abs
from app.storage.tables import RunRow
from app.storage.verdicts import stored_documents
from tests.builders import judge, stated_activity
from tests.experiments.planned import PROJECT, USUAL_MS, add_runs, change_run, make_baseline, make_history, plan, read
from tests.experiments.test_api import API
from tests.prepared import prepared
from tests.regressions.judging import judge_all
from tests.runs.uploading import upload
from tests.training_logs import training_log
from workers import tasks

FAST = [25_000.0, 25_100.0]


@pytest.fixture
def planned(engine: Engine) -> int:
    """Two runs per side; the first of the baseline exists."""

    def make() -> int:
        make_history(engine)
        return plan(engine, make_baseline(engine), runs_each=2)

    return prepared(engine, make)


def judge_again(engine: Engine, run: int) -> None:
    with transaction(engine) as session:
        judge(session, PROJECT, session.get_one(RunRow, run).stack_key)


def why_not(engine: Engine, experiment: int, run: int) -> str:
    (joined,) = (member for member in read(engine, experiment).runs if member.run_id == run)
    return joined.why_not


def test_uploads_with_the_tag_join_and_the_state_follows(client: TestClient, engine: Engine, planned: int) -> None:
    tag = read(engine, planned).tag
    candidates = add_runs(engine, tag, [31_000.0], fields={"ep_overlap": True})
    waiting = read(engine, planned)
    assert (waiting.state, waiting.result.finished) == ("waiting", False)
    assert [run.run_id for run in waiting.side("candidate")] == candidates
    assert "So far" in waiting.result.sentence
    result = client.get(f"/api/v1/experiments/{planned}").json()["result"]
    decisions = {change["decision"] for change in result["metrics"].values() if change}
    assert (result["decision"], result["reason"], decisions) == (None, "", {"not_judged"})
    verdict = client.get(f"/api/v1/runs/{candidates[0]}/verdict").json()
    assert (verdict["verdict"], verdict["metrics"]["step_time_ms"]["decision"]) == ("inconclusive", "not_judged")
    add_runs(engine, tag, [31_010.0], fields={"ep_overlap": True})
    add_runs(engine, tag, [31_300.0], side="baseline")
    done = read(engine, planned)
    assert (done.state, done.result.early) == ("done", False)
    assert {run.joined_by for run in done.runs} == {"plan", "tag"}
    assert done.counted == {"baseline": 2, "candidate": 2}


def test_uploads_without_the_tag_join_by_configuration(engine: Engine, planned: int) -> None:
    (fast,) = add_runs(engine, "", [25_000.0], fields={"ep_overlap": True}, side="")
    (usual,) = add_runs(engine, "", [31_300.0], side="")
    (other,) = add_runs(engine, "", [31_300.0], fields={"dispatcher": "deepep"}, side="")
    joined = {run.run_id: (run.side, run.joined_by) for run in read(engine, planned).runs}
    assert (joined[fast], joined[usual]) == (("candidate", "config"), ("baseline", "config"))
    assert other not in joined


def test_runs_of_two_experiments_are_not_judged_together_and_each_page_begins_with_its_own_side(
    client: TestClient, engine: Engine, planned: int
) -> None:
    other = plan(engine, read(engine, planned).baseline_run_id, knobs={"dispatcher": "deepep"}, runs_each=2)
    tags = [read(engine, number).tag for number in (planned, other)]
    first, again = add_runs(engine, tags[0], [31_300.0, 31_350.0], side="baseline")
    (elsewhere,) = add_runs(engine, tags[1], [31_900.0], side="baseline")
    for run, experiment in ((first, planned), (again, planned), (elsewhere, other)):
        with read_session(engine) as session:
            document, _ = stored_documents(session, [run])[run]
        assert document["candidates"] == ([str(elsewhere)] if run == elsewhere else [str(first), str(again)])
        lead = client.get(f"/runs/{run}").text.partition('data-side="A"')[2].partition("</p>")[0]
        assert f'href="/experiments/{experiment}"' in lead
        own = client.get(f"/api/v1/runs/{run}").json()["metrics"]["step_time_ms"]["value"]
        assert f": {step_time(own)}." in lead


def test_nightly_runs_of_the_same_configuration_do_not_join(engine: Engine, planned: int) -> None:
    nightly = add_runs(engine, "", [31_300.0], side="", purpose="ci", commit="another")
    assert not {run.run_id for run in read(engine, planned).runs} & set(nightly)


def test_reading_a_run_again_changes_nothing(engine: Engine, planned: int) -> None:
    runs = add_runs(engine, read(engine, planned).tag, FAST)
    before = read(engine, planned)
    judge_again(engine, runs[0])
    with transaction(engine) as session:
        refresh(session, planned, runs)
    assert read(engine, planned) == before


def test_a_run_that_is_corrected_leaves_or_joins(engine: Engine, planned: int) -> None:
    (run,) = add_runs(engine, "", [25_000.0], fields={"ep_overlap": True}, side="")
    key = read(engine, planned).candidate_key
    assert len(read(engine, planned).runs) == 2
    change_run(engine, run, config_key="0" * 64)
    judge_again(engine, run)
    assert len(read(engine, planned).runs) == 1
    change_run(engine, run, config_key=key)
    judge_again(engine, run)
    assert len(read(engine, planned).runs) == 2


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"outcome": "failed"}, "the job failed"),
        ({"outcome": "out_of_memory"}, "out of memory"),
        ({"quarantine": "a bad node"}, "quarantined: a bad node"),
        ({"is_steady": False}, "not steady"),
        ({"not_finite": 3}, "not finite in 3 iterations"),
        ({"fair_for_timing": False}, "timers"),
        ({"semantic_class": "training_equivalent"}, "its class is training equivalent"),
    ],
)
def test_ineligible_runs_are_listed_and_do_not_count(
    engine: Engine, planned: int, columns: dict[str, Any], words: str
) -> None:
    (run,) = add_runs(engine, read(engine, planned).tag, [25_000.0], **columns)
    assert words in why_not(engine, planned, run)
    assert read(engine, planned).result.candidate == ()


def test_a_run_that_did_not_activate_the_knob_does_not_count(engine: Engine) -> None:
    planned = plan(engine, make_baseline(engine), knobs={"dispatcher": "deepep"}, runs_each=1)
    tag = read(engine, planned).tag
    (fell_back,) = add_runs(engine, tag, [31_300.0], side="", activity=stated_activity("deepep", "alltoall"))
    experiment = read(engine, planned)
    assert [run.run_id for run in experiment.side("candidate")] == [fell_back]
    assert "`dispatcher` = deepep" in why_not(engine, planned, fell_back)
    assert experiment.state == "waiting"


def test_a_run_of_another_configuration_does_not_count(engine: Engine, planned: int) -> None:
    fields = {"ep_overlap": True, "recompute_modules": ("moe_act",)}
    (run,) = add_runs(engine, read(engine, planned).tag, [25_000.0], fields=fields)
    assert "`recompute_modules`" in why_not(engine, planned, run)
    (unchanged,) = add_runs(engine, read(engine, planned).tag, [25_000.0], fields={})
    assert "`ep_overlap` is off" in why_not(engine, planned, unchanged)


def test_quarantine_removes_a_run_from_the_result_and_release_restores_it(engine: Engine, planned: int) -> None:
    tag = read(engine, planned).tag
    runs = add_runs(engine, tag, FAST)
    add_runs(engine, tag, [31_300.0], side="baseline")
    assert read(engine, planned).state == "done"
    change_run(engine, runs[1], quarantine="a bad node")
    judge_again(engine, runs[1])
    experiment = read(engine, planned)
    assert experiment.counted["candidate"] == 1
    assert experiment.result.candidate == (str(runs[0]),)
    change_run(engine, runs[1], quarantine="")
    judge_again(engine, runs[1])
    assert read(engine, planned).counted["candidate"] == 2


def test_runs_of_a_commit_that_ran_on_one_side_only_do_not_count(engine: Engine, planned: int) -> None:
    experiment = read(engine, planned)
    add_runs(engine, experiment.tag, [25_000.0], commit="newer")
    different = read(engine, planned)
    assert any("different commits" in text for text in different.result.warnings)
    assert (different.result.attributed_to, different.result.evidence_level) == ("", "screen")
    add_runs(engine, experiment.tag, [31_300.0], side="baseline", commit="newer")
    assert "no run" in why_not(engine, planned, experiment.baseline_run_id)
    assert read(engine, planned).result.attributed_to == "ep_overlap"


def test_what_comes_after_the_planned_runs_does_not_count(engine: Engine, planned: int) -> None:
    tag = read(engine, planned).tag
    add_runs(engine, tag, [31_300.0], side="baseline")
    late = add_runs(engine, tag, [31_000.0, 31_020.0, 20_000.0])[-1]
    assert "2 planned runs" in why_not(engine, planned, late)


def test_a_run_is_never_on_two_sides(engine: Engine, planned: int) -> None:
    tag = read(engine, planned).tag
    (run,) = add_runs(engine, tag, [25_000.0], tags=[tag, "baseline", "candidate"])
    experiment = read(engine, planned)
    assert [member.side for member in experiment.runs if member.run_id == run] == ["candidate"]
    assert not set(experiment.result.baseline) & set(experiment.result.candidate)


def test_other_projects_and_earlier_runs_are_not_evaluated(engine: Engine) -> None:
    (earlier,) = add_runs(engine, "", [25_000.0], fields={"ep_overlap": True}, side="")
    planned = plan(engine, make_baseline(engine), runs_each=2)
    judge_again(engine, earlier)
    experiment = read(engine, planned)
    assert len(experiment.runs) == 1
    assert any("ran before" in text for text in experiment.plan.warnings)


def test_an_empty_result_reads_as_one(engine: Engine, planned: int) -> None:
    experiment = read(engine, planned)
    assert experiment.result.verdict is None
    assert isinstance(experiment.result, ExperimentResult)
    assert "2 per side" in experiment.result.sentence
    assert experiment.winner_run_id is None
    with read_session(engine) as session:
        assert session.get_one(RunRow, experiment.baseline_run_id).step_time_ms == pytest.approx(USUAL_MS, rel=0.01)


# --- An experiment as a client meets it: a run, a plan, the uploads that the plan writes, the A/B; on both databases.


META = {
    "project": "door", "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "commit": "c0ffee", "purpose": "experiment",
    "container": "train:26.06", "ep_overlap": False,
}  # fmt: skip


def processed(client: TestClient, step_time_ms: float, meta: dict[str, Any]) -> int:
    answer = upload(client, training_log(step_time_ms=step_time_ms), meta=meta)
    assert answer.status_code == 202, answer.text
    run_id: int = answer.json()["id"]
    tasks.process_run(run_id)
    return run_id


def test_the_uploads_that_a_plan_writes_are_its_ab(client: TestClient, engine: Engine, settings: Settings) -> None:
    run = processed(client, 400.0, META)
    sent = {"run": run, "knobs": {"ep_overlap": True}, "runs_each": 2, "author": "mara"}
    planned = client.post("/api/v1/experiments", json=sent)
    assert planned.status_code == 201, planned.text
    metas = {planned_upload["side"]: planned_upload["meta"] for planned_upload in planned.json()["plan"]["uploads"]}
    address = f"/api/v1/experiments/{planned.json()['id']}"
    runs = [processed(client, 300.0, metas["candidate"]), processed(client, 301.0, metas["candidate"])]
    early = client.get(address).json()
    assert (early["state"], early["result"]["early"]) == ("done", True)
    runs.append(processed(client, 401.0, metas["baseline"]))
    body = client.get(address).json()
    assert [run["why_not"] for run in body["runs"]] == [""] * 4
    assert [run["run_id"] for run in body["runs"]] == [run, *runs]
    assert (body["state"], body["result"]["winner"], body["result"]["early"]) == ("done", "candidate", False)
    assert body["result"]["gain"]["pct"] == pytest.approx(33.3, abs=0.5)
    assert body["result"]["attributed_to"] == "ep_overlap"
    quarantine = {"author": "kai", "note": "a bad node"}
    assert client.post(f"/api/v1/runs/{runs[0]}/quarantine", json=quarantine).status_code == 200
    judge_all(engine, settings)
    after = client.get(address).json()
    assert after["result"]["candidate"] == [runs[1]]
    assert "quarantined: a bad node" in next(run["why_not"] for run in after["runs"] if run["run_id"] == runs[0])


def test_a_configuration_that_cannot_start_is_planned_with_the_rule_that_says_so(client: TestClient) -> None:
    run = processed(client, 400.0, META | {"num_experts": 128, "ep": 8, "tp": 1, "pp": 1, "cp": 1, "etp": 1})
    page = client.get(f"/runs/{run}/experiments/new?field=ep&value=3").text
    before_cautions = page.partition('id="plan-cautions"')[0]
    assert {"scale-expert-divisible", "scale-world-identity"} <= set(
        re.findall(r'data-blocker="(\S+)"', before_cautions)
    )
    button = re.compile(r'<button class="button( primary)?"\s+type="submit">Plan this')
    assert button.findall(page) == [""], "a job that cannot start is not recommended"
    assert button.findall(client.get(f"/runs/{run}/experiments/new?field=ep&value=4").text) == [" primary"]
    sent = {"run": run, "knobs": {"ep": 3}, "runs_each": 1, "author": "mara"}
    planned = client.post("/api/v1/experiments", json=sent)
    assert planned.status_code == 201, planned.text
    warnings = " ".join(planned.json()["plan"]["warnings"])
    assert "scale-expert-divisible" in warnings
    assert "scale-world-identity" in warnings


LAYOUT: dict[str, Any] = {"num_experts": 128, "ep": 8, "tp": 1, "pp": 1, "cp": 1, "etp": 1}


@pytest.mark.parametrize(
    ("layout", "change", "blockers"),
    [
        (LAYOUT, "field=ep&value=16", set()),
        (LAYOUT, "field=ep&value=32", {"scale-gpus-below-min", "scale-world-identity"}),
        # The run completed although two rules forbid its EP, so they do not block another EP.
        (LAYOUT | {"ep": 3}, "field=ep&value=5", set()),
        (LAYOUT | {"ep": 3}, "field=ep&value=32", {"scale-gpus-below-min"}),
    ],
)
def test_a_plan_names_the_blockers_that_its_run_on_16_gpus_does_not_have(
    client: TestClient, layout: dict[str, Any], change: str, blockers: set[str]
) -> None:
    run = processed(client, 400.0, META | layout)
    assert client.get(f"/api/v1/runs/{run}").json()["contract"]["gpus"]["value"] == 16
    page = client.get(f"/runs/{run}/experiments/new?{change}").text
    assert set(re.findall(r'data-blocker="(\S+)"', page.partition('id="plan-cautions"')[0])) == blockers


def test_both_databases_plan_join_and_measure(either_engine: Engine) -> None:
    make_history(either_engine)
    experiment = plan(either_engine, make_baseline(either_engine), runs_each=2)
    tag = read(either_engine, experiment).tag
    runs = add_runs(either_engine, tag, [25_000.0, 25_050.0])
    add_runs(either_engine, tag, [31_280.0], side="baseline")
    assert (read(either_engine, experiment).state, read(either_engine, experiment).winner_run_id) == ("done", runs[-1])
    with read_session(either_engine) as session:
        (result,) = matched_abs(session, ["ep_overlap"], gpu="H100")
        assert matched_abs(session, ["ep_overlap"], gpu="GB200") == []
        assert find_experiments(session, ExperimentFilter(run_id=runs[0])).total == 1
    assert (result.experiment_id, result.run_id) == (experiment, runs[-1])


# --- The result of an experiment counts as measured here, once, and outranks published results.


def evidence(client: TestClient, run: int) -> list[dict[str, Any]]:
    body = client.get(f"/api/v1/runs/{run}/suggestions").json()
    (overlap,) = (suggestion for suggestion in body["suggestions"] if suggestion["rule"] == "eo-enable")
    return [result for result in overlap["evidence"] if result["measured_here"]]


@pytest.fixture
def waiting(engine: Engine) -> int:
    """A run a side short of its plan."""
    make_history(engine)
    experiment = plan(engine, make_baseline(engine), runs_each=3)
    tag = read(engine, experiment).tag
    add_runs(engine, tag, [30_900.0, 25_050.0, 25_000.0])
    add_runs(engine, tag, [31_280.0], side="baseline")
    return experiment


def test_a_finished_experiment_is_one_result_and_its_runs_are_not_counted_again(
    client: TestClient, engine: Engine, waiting: int
) -> None:
    experiment = read(engine, waiting)
    with read_session(engine) as session:
        (verdict,) = matched_abs(session, ["ep_overlap"])
    assert verdict.experiment_id is None
    add_runs(engine, experiment.tag, [31_290.0], side="baseline")
    with read_session(engine) as session:
        (result,) = matched_abs(session, ["ep_overlap"])
        assert matched_abs(session, ["dispatcher"]) == []
    assert (result.experiment_id, result.from_value, result.to_value) == (waiting, "false", "true")
    time = read(engine, waiting).result.verdict
    assert time is not None
    assert time.step_time is not None
    assert result.delta_pct == pytest.approx(time.step_time.delta_pct)
    (measured,) = evidence(client, experiment.baseline_run_id)
    assert (measured["level"], measured["measured_here"]["n"], measured["measured_here"]["runs"]) == (
        2,
        1,
        [result.run_id],
    )
    assert measured["measured_here"]["experiments"] == [waiting]
    for path in (f"/runs/{experiment.baseline_run_id}/next/eo-enable", "/playbook/eo-enable"):
        page = client.get(path).text
        assert f'<a href="/experiments/{waiting}">experiment #{waiting}</a>' in page


def test_an_experiment_that_is_withdrawn_leaves_the_verdicts_of_its_runs(
    client: TestClient, engine: Engine, waiting: int
) -> None:
    add_runs(engine, read(engine, waiting).tag, [31_290.0], side="baseline")
    client.patch(f"{API}/{waiting}", json={"author": "kai", "state": "withdrawn"})
    with read_session(engine) as session:
        assert [pair.experiment_id for pair in matched_abs(session, ["ep_overlap"])] == [None]
