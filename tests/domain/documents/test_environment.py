""""""

import json
import re
from typing import Any

import pytest

from app.domain.documents.document import is_secret
from app.domain.documents.environment import (
    complete_image,
    count_nodes,
    read_container_image,
    read_image,
    read_job_environment,
    stated_by_image,
)
from app.domain.documents.read import recognise
from app.domain.documents.slurm import ending_of, expand_nodes, fold_nodes, read_node_list, read_slurm_accounting
from app.domain.logs import parse_log
from app.domain.performance.summary import summarise, with_documents
from app.domain.run import Metadata

ENVIRONMENT = """\
PATH=/usr/bin:/bin
PWD=/opt/training
SLURM_JOB_ID=1234567
SLURM_JOB_NODELIST=pool0-[0001-0003,0007]
SLURM_JOB_NUM_NODES=4
SLURM_GPUS_ON_NODE=8
SLURM_CLUSTER_NAME=eos
SLURM_RESTART_COUNT=1
CUDA_DEVICE_MAX_CONNECTIONS=1
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
NVTE_FWD_LAYERNORM_SM_MARGIN=16
NUM_OF_TOKENS_PER_CHUNK_COMBINE_API=128
CUDA_VERSION=13.0.1.012
NCCL_VERSION=2.28.3
HF_TOKEN=hf_abcdefghijklmnopqrstuv
WANDB_API_KEY=0123456789abcdef
BASH_FUNC_module%%=() {  eval `modulecmd bash $*`
}
LESSOPEN=|lesspipe %s
"""


def values(text: str | bytes) -> dict[str, object]:
    return {name: stated.value for name, stated in read_job_environment(text).stated.items()}


def test_an_env_dump():
    fields = values(ENVIRONMENT)
    assert fields["gpus"] == 32
    assert fields["gpus_per_node"] == 8
    assert fields["cluster"] == "eos"
    assert fields["cuda_version"] == "13.0.1.012"
    assert fields["nccl_version"] == "2.28.3"
    assert fields["env.CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert fields["env.PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert fields["env.NUM_OF_TOKENS_PER_CHUNK_COMBINE_API"] == "128"


def test_a_complete_environment_shows_which_variables_are_unset():
    assert values(ENVIRONMENT)["env.NCCL_NVLS_ENABLE"] is None
    assert "env.NCCL_NVLS_ENABLE" not in values(ENVIRONMENT.replace("PATH=/usr/bin:/bin\n", ""))


def test_details_and_facts():
    document = read_job_environment(ENVIRONMENT)
    assert "4 nodes x 8 GPUs" in document.stated["gpus"].detail
    assert document.stated["env.CUDA_DEVICE_MAX_CONNECTIONS"].detail == "environment: CUDA_DEVICE_MAX_CONNECTIONS = 1"
    assert document.facts == {
        "slurm_job_id": "1234567",
        "slurm_nodelist": "pool0-[0001-0003,0007]",
        "slurm_restart_count": "1",
    }


def test_secrets_are_never_kept():
    shown = str(read_job_environment(ENVIRONMENT))
    assert "hf_abc" not in shown
    assert "0123456789abcdef" not in shown


@pytest.mark.parametrize(
    "text",
    [
        "export SLURM_GPUS_PER_NODE='h100:8'\nexport SLURM_NNODES=2\n",
        'declare -x SLURM_GPUS_PER_NODE="h100:8"\ndeclare -x SLURM_NNODES="2"\n',
        "SLURM_GPUS_PER_NODE=h100:8\0SLURM_NNODES=2\0",
        json.dumps({"SLURM_GPUS_PER_NODE": "h100:8", "SLURM_NNODES": 2}),
        "SLURM_GPUS_PER_NODE=h100:8\nSLURM_JOB_NODELIST=n[1-2]\n",
    ],
)
def test_every_way_to_write_it(text):
    fields = values(text)
    assert (fields["gpus"], fields["gpus_per_node"], fields["gpu"]) == (16, 8, "H100")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("WORLD_SIZE=64\nSLURM_NNODES=2\nSLURM_GPUS_ON_NODE=8\n", "gpus", 64),
        ("SLURM_GPUS_PER_NODE=gpu:4\nX=1\n", "gpus_per_node", 4),
        ("MB_CONTAINER_IMAGE=/images/nvidia+nemo+26.06.sqsh\nX=1\n", "container", "nvidia/nemo:26.06"),
        ("NCCL_NVLS_ENABLE=0\nX=1\n", "env.NCCL_NVLS_ENABLE", "0"),
        ("NCCL_NVLS_ENABLE=${NVLS:-0}\nX=1\n", "env.NCCL_NVLS_ENABLE", "not stated"),
        ("NCCL_NVLS_ENABLE=[REDACTED]\nX=1\n", "env.NCCL_NVLS_ENABLE", "not stated"),
        ("WORLD_SIZE=many\nX=1\n", "gpus", "not stated"),
        ("WORLD_SIZE=0\nX=1\n", "gpus", "not stated"),
    ],
)
def test_single_variables(text, name, value):
    assert values(text).get(name, "not stated") == value


def test_a_contradicting_node_list_gets_a_warning():
    problems = read_job_environment("SLURM_NNODES=4\nSLURM_JOB_NODELIST=n[1-2]\n").problems
    (problem,) = problems
    assert re.findall(r"\d+", problem) == ["4", "2"]


@pytest.mark.parametrize(
    ("nodelist", "count"),
    [
        ("login1", 1),
        ("n[1-2]", 2),
        ("gb-nvl-[001-004,007],login1", 6),
        ("r[1-2]n[01-16]", 32),
        ("a,b,c", 3),
        ("n[0001-1024]", 1024),
        ("", None),
        ("(null)", None),
        ("n[2-1]", None),
        ("n[a-b]", None),
        ("n[1-999999999]", None),
        ("a,,b", None),
    ],
)
def test_node_lists(nodelist, count):
    assert count_nodes(nodelist) == count


@pytest.mark.parametrize("text", ["", "no variables here", "{}", "[1]", "x" * 5_000_000])
def test_an_invalid_environment_is_refused(text):
    with pytest.raises(ValueError, match=r"\w+ .*\."):
        read_job_environment(text)


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "x", True),
        ("NGC_API_KEY", "x", True),
        ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("DB_PASSWORD", "x", True),
        ("--hf_token", "x", True),
        ("--wandb-key", "x", True),
        ("SSH_AUTH_SOCK", "x", True),
        ("ANYTHING", "hf_abcdefghijklmnop", True),
        ("PROXY", "http://me:word@proxy:80", True),
        ("NUM_OF_TOKENS_PER_CHUNK_COMBINE_API", "128", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("MONKEY", "x", False),
        ("CUDA_DEVICE_MAX_CONNECTIONS", "1", False),
    ],
)
def test_secret_names(name, value, secret):
    assert is_secret(name, value) is secret


# --- container_image


DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("reference", "name", "digest"),
    [
        ("nvcr.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("nvcr.io/nvidia/nemo:26.08.rc5", "nvcr.io/nvidia/nemo:26.08.rc5", ""),
        ("nvcr.io/nvidia/pytorch:26.04-py3", "nvcr.io/nvidia/pytorch:26.04-py3", ""),
        (f"nvcr.io/nvidia/nemo:26.06@{DIGEST}", "nvcr.io/nvidia/nemo:26.06", DIGEST),
        (f"nvcr.io/nvidia/nemo@{DIGEST}", "nvcr.io/nvidia/nemo", DIGEST),
        ("nvcr.io#nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("docker://nvcr.io#nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("docker://$oauthtoken@nvcr.io#nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("docker://nvcr.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo:26.06", ""),
        ("/lustre/images/nvidia+nemo+26.06.sqsh", "nvidia/nemo:26.06", ""),
        ("nvcr.io+nvidia+nemo+26.06.sqsh", "nvcr.io/nvidia/nemo:26.06", ""),
        ("ubuntu+22.04.sqsh", "ubuntu:22.04", ""),
        ("my-build_7.sqsh", "my-build_7", ""),
        ("localhost:5000/team/image:dev", "localhost:5000/team/image:dev", ""),
        ("registry.example.com:443/a/b/c", "registry.example.com:443/a/b/c", ""),
        ("rocm/megatron-lm:v25.9_gfx950", "rocm/megatron-lm:v25.9_gfx950", ""),
        ('"nvcr.io/nvidia/nemo:26.06"', "nvcr.io/nvidia/nemo:26.06", ""),
        ("ubuntu", "ubuntu", ""),
    ],
)
def test_names(reference, name, digest):
    image = read_image(reference)
    assert (image.name, image.digest) == (name, digest)


@pytest.mark.parametrize(
    "reference",
    [
        "",
        "two words",
        "UPPER/case:1",
        "a/b:",
        "a:b:c d",
        "nvcr.io/nvidia/nemo@sha256:12",
        "..//x",
        ".sqsh",
        "+.sqsh",
        "x" * 2000,
    ],
)
def test_an_invalid_name_is_rejected(reference):
    with pytest.raises(ValueError, match=r"\."):
        read_image(reference)
    assert stated_by_image(reference, "test") == {}


@pytest.mark.parametrize(
    ("reference", "default", "name"),
    [
        ("26.06", "nvcr.io/nvidia/nemo", "nvcr.io/nvidia/nemo:26.06"),
        ("nvidia+nemo+26.06.sqsh", "nvcr.io/nvidia/nemo", "nvcr.io/nvidia/nemo:26.06"),
        ("nvidia/pytorch:26.04-py3", "nvcr.io/nvidia/nemo", "nvidia/pytorch:26.04-py3"),
        ("other.io/nvidia/nemo:26.06", "nvcr.io/nvidia/nemo", "other.io/nvidia/nemo:26.06"),
    ],
)
def test_a_project_default_completes_a_name(reference, default, name):
    assert complete_image(read_image(reference), default).name == name


def test_fields_and_their_detail():
    document = read_container_image(f"nvcr.io/nvidia/nemo:26.06@{DIGEST}\n".encode())
    assert document.stated["container"].value == "nvcr.io/nvidia/nemo:26.06"
    assert document.stated["container_digest"].value == DIGEST
    assert document.stated["container"].detail == "container image: nvcr.io/nvidia/nemo:26.06"


# --- Slurm's accounting and lists of nodes.

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


def test_requeues_count_and_another_job_is_reported() -> None:
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
