"""The decision examples of the founding papers as complete uploads: log, metadata, and facts stated through the API."""

from collections.abc import Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient

from app.domain.contract.fields import FIELDS, VARIABLES
from app.domain.rules.stated import STATEABLE
from tests.domain.rules.test_acceptance import CASES, CORRECTED, OFF, RENAMED, cases
from tests.runs.uploading import upload
from tests.training_logs import LINE
from workers.tasks import process_run

MEMORY_GIB = {"H100": 80.0, "GB300": 279.0}
STEPS = 20
"""Iterations of a case that ran and does not say how many."""
MEMORY = (
    "[Rank 0] (after {at} iterations) memory (MB) | allocated: {peak} | max allocated: {peak} | "
    "reserved: {reserved} | max reserved: {reserved}\n"
)
OUT_OF_MEMORY = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 1.02 GiB is free.\n"
)
IMPORT_FAILED = "[rank0]: ImportError: DeepEP is not installed. Please install DeepEP package.\n"
START = "building GPT model ...\n"
ARGUMENTS = """using world size: {gpus}, data-parallel size: {gpus}, tensor-model-parallel size: 1
------------------------ arguments ------------------------
  world_size ...................................... {gpus}
-------------------- end of arguments ---------------------
"""
DURING_START, ITS_FIRST_STEPS = ("F01", "F02", "F04", "F08", "F09", "F14"), ("F10", "F11")
"""Cases of jobs that made no step, and of jobs that made two: the others made steady steps."""


def log_of(name: str, run: Mapping[str, Any], facts: Mapping[str, Any]) -> bytes:
    """Return the output of the job of a case."""
    lines = [ARGUMENTS.format(gpus=run["gpus"]) if run.get("dispatcher") == "unset" else START]
    usual = 0 if name.startswith(DURING_START) else 2 if name.startswith(ITS_FIRST_STEPS) else STEPS
    steps = facts.get("steps_done", usual)
    for iteration in range(1, steps + 1):
        lines.append(
            LINE.format(
                minute=iteration // 60,
                second=iteration % 60,
                iteration=iteration,
                total=max(steps, 3),
                samples=iteration,
                step_time_ms=1000 * facts.get("step_s", facts.get("unprofiled_step_s", 20.0)) + iteration % 3,
                tflops=facts.get("tflops_gpu", 100.0),
                loss=11 - iteration / 100,
            )
        )
        if iteration <= 2 and (peak := peak_gb(run, facts)):
            mib = peak * 1e9 / 2**20
            lines.append(MEMORY.format(at=iteration, peak=mib, reserved=mib * 1.15))
    if facts.get("import_error"):
        lines.append(IMPORT_FAILED)
    if facts.get("oom"):
        lines.append(OUT_OF_MEMORY)
    return "".join(lines).encode()


def peak_gb(run: Mapping[str, Any], facts: Mapping[str, Any]) -> float:
    if "headroom_frac" in facts:
        return (1 - float(facts["headroom_frac"])) * MEMORY_GIB[run["sku"]] * 2**30 / 1e9
    return float(facts.get("mem_alloc_peak_gb", 0.0))


def upload_case(client: TestClient, name: str, run: Mapping[str, Any], facts: Mapping[str, Any]) -> int:
    """Upload one run of a case, and state what its log does not show."""
    contract_facts = {field: value for field, value in facts.items() if field in FIELDS}
    stated: dict[str, Any] = OFF | {
        RENAMED.get(field, field): value for field, value in {**run, **contract_facts}.items() if field != "id"
    }
    if "env" in stated:
        stated["env"] = dict.fromkeys(VARIABLES) | stated["env"]
    if stated.get("dispatcher") == "unset":
        stated["dispatcher"] = None
    meta = {name: value for name, value in stated.items() if name in FIELDS or name == "env"}
    first, _, last = str(facts.get("window", "")).partition("-")
    window = {"steady_window": [int(first), int(last)]} if last else {}
    answer = upload(client, log_of(name, run, facts), meta={"project": "cases", **meta, **window})
    assert answer.status_code in (200, 202), answer.text
    run_id = int(answer.json()["id"])
    process_run(run_id)
    beside = {RENAMED.get(name, name): value for name, value in {**stated, **facts}.items()}
    unseen = {
        name: value
        for name, value in beside.items()
        if name in STATEABLE and name not in FIELDS and STATEABLE[name].section != "log"
    }
    if unseen:
        answer = client.patch(f"/api/v1/runs/{run_id}/facts", json={"facts": unseen, "author": "Ada"})
        assert answer.status_code == 200, answer.text
    return run_id


def answer_case(client: TestClient, name: str) -> tuple[dict[str, list[str]], Mapping[str, Any]]:
    """Return the API's answer as rule ids; for a case with two runs, also those of the comparison."""
    case = cases()[name]
    runs = case.get("runs", [case.get("run", {"gpus": 16})])
    ids = [upload_case(client, name, run, case.get("facts", {})) for run in runs]
    if "compare_with" in case:
        other = {key: value for key, value in case["run"].items() if key not in ("dispatcher_type", "flex_backend")}
        fallback = {**other, **case["compare_with"]}
        ids.insert(0, upload_case(client, name, fallback, {"steps_done": 5, "step_s": 45.65, "tflops_gpu": 132.9}))
    answer = client.get(f"/api/v1/runs/{ids[-1]}/suggestions").json()
    beside = [] if len(ids) == 1 else client.get(f"/api/v1/compare?a={ids[0]}&b={ids[-1]}").json()["rules"]
    rows = [*answer["suggestions"], *(row for row in beside if row["kind"] not in ("blocker", "warning"))]
    return {
        "blockers": [row["rule"] for row in answer["suggestions"] if row["kind"] == "blocker"],
        "warnings": [row["rule"] for row in (*answer["warnings"], *beside)],
        "suggestions": list(dict.fromkeys(rule for row in rows for rule in (row["rule"], *also(row)))),
        "tried": [
            row["rule"] for row in answer["suggestions"] if row["kind"] == "candidate" and row["phase"] != "profile"
        ],
    }, case["expect"]


def also(row: Mapping[str, Any]) -> list[str]:
    return [other["rule"] for other in row.get("also", ())]


@pytest.mark.parametrize("name", CASES)
def test_a_complete_upload_is_answered_as_the_papers_expect(client: TestClient, name: str) -> None:
    answer, expected = answer_case(client, name)
    assert set(expected["blockers"]) <= set(answer["blockers"])
    assert expected["blockers"] or answer["blockers"] == []
    assert set(expected.get("warnings", ())) - CORRECTED.get(name, set()) <= set(answer["warnings"])
    ranked = expected.get("ranked", [])
    assert [rule for rule in answer["suggestions"] if rule in ranked] == ranked
    assert not {*answer["blockers"], *answer["warnings"], *answer["suggestions"]} & set(expected.get("absent", ()))
    assert answer["tried"][:1] == [rule for rule in ranked if rule in answer["tried"]][:1]


def test_overlap_with_its_matched_ab_on_this_model_and_gpu_comes_first(client: TestClient) -> None:
    case = cases()["F03-isolate-ep-overlap"]
    run_id = upload_case(client, "F03", case["run"], case["facts"])
    first = client.get(f"/api/v1/runs/{run_id}/suggestions").json()["suggestions"][0]
    assert (first["rule"], first["place"]["group"]) == ("eo-enable", "evidence")
    gain = first["place"]["expected_gain"]
    assert (gain["pct"], gain["likeness"] > 0.8) == (pytest.approx(31.7), True)
