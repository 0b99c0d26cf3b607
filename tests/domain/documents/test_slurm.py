"""Slurm's accounting in the shapes of two versions, lists of nodes, and what they say about a log that stops."""

import json
import re
from typing import Any

import pytest

from app.domain.documents.read import recognise
from app.domain.documents.slurm import ending_of, expand_nodes, fold_nodes, read_node_list, read_slurm_accounting
from app.domain.logs import parse_log
from app.domain.performance.summary import summarise, with_documents
from app.domain.run import Metadata

LINE = (
    " [2026-11-20 10:00:{0:02d}] iteration {0:8d}/     100 | consumed samples: {0} | elapsed time per iteration (ms): "
    "1000.0 | learning rate: 1.0E-04 | global batch size: 128 | lm loss: 2.0E+00 | grad norm: 1.0 |\n"
)


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


def job(state: Any, *, new: bool = True, **more: Any) -> dict[str, Any]:
    """A job as Slurm 25 (`new`) or Slurm 22 prints it, without the parts that no reader needs."""
    tres = [{"type": "gres", "name": "gpu", "id": 1001, "count": 16}, {"type": "node", "name": "", "count": 4}]
    return {
        "account": "perf",
        "allocation_nodes": 4,
        "array": {"job_id": 0, "task_id": {"set": False, "infinite": False, "number": 0} if new else None},
        "cluster": "eos",
        "derived_exit_code": {"status": ["SUCCESS"] if new else "SUCCESS", "return_code": number(0) if new else 0},
        "failed_node": "",
        "job_id": 4711,
        "name": "moe-nightly",
        "nodes": "gb-nvl-[001-003,007]",
        "partition": "batch",
        "qos": "normal",
        "restart_cnt": 0,
        "state": {"current": [state] if new else state, "reason": "None"},
        "time": {"elapsed": 3600, "submission": 1_700_000_000, "start": 1_700_000_120, "end": 1_700_003_720},
        "tres": {"allocated": tres},
        **more,
    }


def sacct(*jobs: dict[str, Any]) -> bytes:
    return json.dumps({"jobs": jobs, "meta": {"slurm": {"version": {"major": "25"}}}, "errors": []}, indent=2).encode()


@pytest.mark.parametrize("new", [True, False])
def test_accounting_states_the_allocation(new: bool) -> None:
    document = read_slurm_accounting(sacct(job("COMPLETED", new=new)))
    stated = {name: value.value for name, value in document.stated.items()}
    assert stated == {"gpus": 16, "gpus_per_node": 4, "cluster": "eos", "nodes": "gb-nvl-[001-003,007]"}
    assert document.facts["slurm_job_id"] == "4711"
    assert (document.facts["slurm_queued_s"], document.facts["slurm_restart_count"]) == ("120", "0")
    assert "slurm_reason" not in document.facts
    assert ending_of(document) == ""


def test_requeues_count_and_another_job_is_said() -> None:
    first = job("NODE_FAIL", time={"start": 5, "submission": 1}, failed_node="gb-nvl-007")
    document = read_slurm_accounting(sacct(job("COMPLETED"), first))
    assert (document.facts["slurm_restart_count"], document.facts["slurm_state"]) == ("1", "COMPLETED")
    assert not document.problems
    assert read_slurm_accounting(sacct(job("COMPLETED"), job("TIMEOUT", job_id=4712))).problems
    for broken in (b"[]", b'{"jobs": []}', b'{"jobs": [1]}', b"{"):
        with pytest.raises(ValueError, match=r"\."):
            read_slurm_accounting(broken)


@pytest.mark.parametrize(
    ("state", "kind"),
    [("TIMEOUT", "time_limit"), ("NODE_FAIL", "node_failure"), ("PREEMPTED", "preempted"),
     ("CANCELLED by 1000", "cancelled"), ("OUT_OF_MEMORY", "host_out_of_memory"), ("COMPLETED", "truncated")],
)  # fmt: skip
def test_a_log_that_stops_gets_slurm_s_reason(state: str, kind: str) -> None:
    log = parse_log([LINE.format(number).encode() for number in range(1, 31)])
    document = read_slurm_accounting(sacct(job(state)))
    summary = summarise(with_documents(log, [document]), Metadata(), [document])
    assert [failure.kind for failure in summary.failures] == [kind]
    done = parse_log([LINE.format(number).encode() for number in range(71, 101)])
    assert not summarise(with_documents(done, [document]), Metadata(), [document]).failures


def test_the_world_size_of_the_log_wins_over_an_allocation() -> None:
    document = read_slurm_accounting(sacct(job("COMPLETED")))
    world = b"using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1\n"
    lines = [LINE.format(number).encode() for number in range(1, 31)]
    summary = summarise(parse_log([world, *lines]), Metadata(), [document])
    assert summary.contract["gpus"].value == 8
    (warning,) = [text for text in summary.warnings if text.startswith("`gpus`")]
    assert {"8", "16"} <= set(re.findall(r"\d+", warning))
    assert "using world size" in warning
    assert "Slurm accounting: 16 GPUs allocated" in warning
    silent = summarise(parse_log(lines), Metadata(), [document])
    assert silent.contract["gpus"].value == 16
    assert not [text for text in silent.warnings if text.startswith("`gpus`")]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gb-nvl-[001-003,007],login1", ("gb-nvl-001", "gb-nvl-002", "gb-nvl-003", "gb-nvl-007", "login1")),
        ("r[1-2]n[08-09]", ("r1n08", "r1n09", "r2n08", "r2n09")),
        ("a[1-999999]", ()),
        ("a[3-1]", ()),
        ("a[", ()),
        ("None assigned", ("None", "assigned")),
        ("", ()),
    ],
)
def test_lists_of_nodes(text: str, names: tuple[str, ...]) -> None:
    assert expand_nodes(text) == names
    assert expand_nodes(fold_nodes(names)) == tuple(sorted(names))


def test_a_file_of_names_is_a_node_list_by_its_name_and_content() -> None:
    text = b"# rack 7\ngb-nvl-001 slots=4\ngb-nvl-002 slots=4\n"
    assert recognise("hostfile", text) == "node list"
    assert recognise("train.log", text) is None
    assert recognise("nodes.txt", b"error: no such file/or directory\n") is None
    assert read_node_list(text).stated["nodes"].value == "gb-nvl-[001-002]"
    assert recognise("sacct.json", sacct(job("COMPLETED"))) == "slurm accounting"
    with pytest.raises(ValueError, match="list of nodes"):
        read_node_list(b"a[3-1]\n")
