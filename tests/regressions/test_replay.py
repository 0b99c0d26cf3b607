"""A real history, uploaded through the API in commit order, and the service's answers after each run.

The 14 runs are golden values of one of Megatron-LM's tests (four experts' worth of scoped CUDA graphs on 8 H100), from
2025-10-31 to 2026-07-25, as NVIDIA committed them. Four things happened that are known to be real: the container went
from 25.09 to 25.11 and the job became slower, which `observed-changes.csv` has; it went on to 26.02 and it became
faster; within 26.02, with the same flags, the run of 2026-04-03 took 999 ms where 673 to 686 were usual, and the next
one was back; and with 26.06 the last run was so restless that it has no steady state at all.

What is stated beside the values, and why:

* `container`: the image that the CI declared at that commit. The corpus infers it, so a run may be older than its
  image; without it the three containers would be one stack and their differences would read as those of the code.
* `branch`: main for all. Five of the runs were committed on branches; whoever replays golden values judges them by
  one line, and leaving those five out would leave out the slow run.
* `cluster`: the platform that the file was named after. `purpose` ci, `commit_time` the date of the commit.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.shared_papers import shared_folder
from workers.tasks import process_run, sweep

TEST, PLATFORM = "gpt3_moe_mcore_te_tp4_ep2_etp2_pp2_scoped_cudagraph", "dgx_h100"
SLOW = "2bb0d38e"
FIRST_OF_25_11 = "de866fa5"

VERDICTS = [
    # 25.09: step times show no difference; memory is 3.2 % higher in the second run and 7.5 % in the fourth.
    ("no_baseline", ""), ("regression", ""), ("inconclusive", ""), ("regression", ""),
    # 25.11: slower than 25.09. Then memory is 4 % higher than in the previous run, and also in the third run.
    ("no_baseline", "regression"), ("regression", ""), ("inconclusive", ""),
    # 26.02: faster than 25.11, by too little for three runs; then the slow run, and the return.
    ("no_baseline", "inconclusive"), ("inconclusive", ""), ("inconclusive", ""),
    ("regression", ""), ("inconclusive", ""), ("inconclusive", ""),
    # 26.06: 65 % slower; it drifts, but the wider interval is clear of no change.
    ("no_baseline", "regression"),
]  # fmt: skip
"""Of each run in the order of commits, and of its contrast to the container before."""


@dataclass(frozen=True)
class Golden:
    """One run: its stated metadata and its document."""

    commit: str
    meta: dict[str, Any]
    document: bytes


@lru_cache
def history() -> tuple[Golden, ...]:
    corpus = shared_folder("corpus")
    rows = map(json.loads, (corpus / "golden" / "index.jsonl").read_text().splitlines())
    chosen = [row for row in rows if (row["test_base"], row["platform"]) == (TEST, PLATFORM) and row["perf_usable"]]
    return tuple(
        Golden(
            row["commit"][:8],
            {
                "name": row["run_id"].rpartition("--dev--")[2],
                "project": "golden",
                "purpose": "ci",
                "branch": "main",
                "commit": row["commit"],
                "commit_time": row["commit_date"],
                "container": row["container_image"],
                "gpu": row["gpu"],
                "gpus": row["world_size"],
                "cluster": row["platform"],
            },
            (corpus / row["file"]).read_bytes(),
        )
        for row in sorted(chosen, key=lambda row: datetime.fromisoformat(row["commit_date"]))
    )


def upload(client: TestClient, run: Golden) -> int:
    parts: list[Any] = [("config", ("golden.json", run.document)), ("meta", (None, json.dumps(run.meta)))]
    answer = client.post("/api/v1/runs", files=parts)
    assert answer.status_code == 202, answer.text
    run_id = int(answer.json()["id"])
    process_run(run_id)
    sweep()
    return run_id


def regressions(client: TestClient, metric: str = "step_time_ms") -> list[dict[str, Any]]:
    items = client.get("/api/v1/regressions?project=golden").json()["items"]
    return [item for item in items if item["metric"] == metric]


def said_of(client: TestClient, run_id: int) -> dict[str, Any]:
    body: dict[str, Any] = client.get(f"/api/v1/runs/{run_id}/verdict").json()
    return body


def decisions(client: TestClient, ids: Iterable[int]) -> list[tuple[str, str]]:
    """Return the current verdict of each run, and its contrast with the container before."""
    sentences = [said_of(client, run_id) for run_id in ids]
    return [(item["verdict"], (item["contrast"] or {}).get("decision", "")) for item in sentences]


def test_the_history_is_there_whole() -> None:
    runs = history()
    assert [run.meta["container"][-9:] for run in runs] == (
        ["25.09-py3"] * 4 + ["25.11-py3"] * 3 + ["26.02-py3"] * 6 + ["26.06-py3"]
    )
    assert [run.commit for run in runs].index(SLOW) == 10


def test_each_lasting_slow_down_opens_its_regression_at_its_run_and_a_slow_night_none(client: TestClient) -> None:
    opened: dict[int, str] = {}
    for run in history():
        upload(client, run)
        for regression in regressions(client):
            opened.setdefault(regression["id"], run.commit)
    result = {opened[item["id"]]: item for item in regressions(client)}
    assert set(result) == {FIRST_OF_25_11}, "the only run of 26.06 drifts by 12 %, so another one must confirm it"

    upgrade = result[FIRST_OF_25_11]
    # 9.4 % in its first run, 10.4 % over the three that the container ran, the odd second one clipped.
    assert (upgrade["kind"], upgrade["worst_delta_pct"]) == ("upgrade", pytest.approx(10.4, abs=0.1))
    assert upgrade["members"][0]["first_delta_pct"] == pytest.approx(9.4, abs=0.1)
    assert "pytorch:25.11-py3" in upgrade["cause"]


def test_every_verdict_says_no_more_than_the_history_shows(client: TestClient) -> None:
    ids = [upload(client, run) for run in history()]
    assert decisions(client, ids) == VERDICTS
    memory = [members(regression) for regression in regressions(client, "peak_memory_gib")]
    # The second one continues in 25.11, whose second run needs no more than it did.
    assert sorted(slow[0] for slow in memory) == [ids[1], ids[3]]


def test_a_slow_night_is_detected_and_cleared_by_the_requested_rerun(client: TestClient) -> None:
    runs = history()
    slow = [upload(client, run) for run in runs[:11]][-1]
    verdict = said_of(client, slow)
    assert (verdict["verdict"], verdict["rerun"]["runs"]) == ("regression", 1)
    again = runs[11]  # the next run was back: here as a rerun of the slow commit
    same = {"name": "again"} | {name: runs[10].meta[name] for name in ("commit", "commit_time")}
    upload(client, Golden(runs[10].commit, again.meta | same, again.document))
    assert said_of(client, slow)["verdict"] == "inconclusive"
    assert [item["kind"] for item in regressions(client)] == ["upgrade"]


def test_the_arrival_order_of_the_runs_of_a_container_does_not_matter(client: TestClient) -> None:
    in_order = history()
    stacks = [[run for run in in_order if run.meta["container"] == image] for image in images(in_order)]
    ids = {run.commit: upload(client, run) for stack in stacks for run in reversed(stack)}
    assert decisions(client, (ids[run.commit] for run in in_order)) == VERDICTS
    unresolved = [item for item in regressions(client) if item["state"] == "open"]
    began = {min(item["members"], key=lambda member: member["ordered_at"])["run_id"] for item in unresolved}
    assert began == {ids[FIRST_OF_25_11]}


def images(runs: Iterable[Golden]) -> list[str]:
    return list(dict.fromkeys(run.meta["container"] for run in runs))


def members(regression: dict[str, Any]) -> tuple[int, ...]:
    return tuple(member["run_id"] for member in regression["members"])
