"""Reads a job's environment: Slurm's allocation, and the variables that change results.

`env`, `export -p`, `declare -x`, `/proc/PID/environ` and JSON are understood. Only variables that this file names are
kept, and of those none that looks like a credential.
"""

import re
from collections.abc import Mapping

from app.domain.contract.fields.environment import PREFIX, VARIABLES
from app.domain.contract.values import read_value
from app.domain.documents.container_image import stated_by_image
from app.domain.documents.document import Document
from app.domain.documents.json_text import read_json
from app.domain.documents.nodelist import count_nodes
from app.domain.documents.secrets import is_secret
from app.domain.run import Stated
from app.domain.text import one_line

MAX_BYTES = 4 * 1024 * 1024
"""Linux limits a process's arguments and environment together to 2 MB by default."""
MAX_VARIABLES = 20_000
MAX_VALUE = 300

_LINE = re.compile(r"(?:export |declare -[a-zA-Z]+ )?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_REDACTED = "[REDACTED]"
_UNUSABLE = re.compile(r"\$[\w{(]")
"""A reference to another variable, in a script rather than in an environment."""
_WHOLE = ("PATH", "PWD")
"""Every process has them: a dump with both is the whole environment, one without is a selection (`env | grep`)."""

_FACTS = {
    "SLURM_JOB_ID": "slurm_job_id",
    "SLURM_JOBID": "slurm_job_id",
    "SLURM_ARRAY_JOB_ID": "slurm_array_job_id",
    "SLURM_ARRAY_TASK_ID": "slurm_array_task_id",
    "SLURM_JOB_NAME": "slurm_job_name",
    "SLURM_JOB_PARTITION": "slurm_partition",
    "SLURM_JOB_NODELIST": "slurm_nodelist",
    "SLURM_NODELIST": "slurm_nodelist",
    "SLURM_RESTART_COUNT": "slurm_restart_count",
    "SLURM_JOB_QOS": "slurm_qos",
}
_VERSIONS = {
    "CUDA_VERSION": "cuda_version",
    "CUDA_DRIVER_VERSION": "driver",
    "CUDNN_VERSION": "cudnn_version",
    "NCCL_VERSION": "nccl_version",
    "PYTORCH_VERSION": "pytorch_version",
    "TRANSFORMER_ENGINE_VERSION": "te_version",
}
"""Set by NVIDIA's container images."""
_IMAGES = ("MB_CONTAINER_IMAGE", "CONTAINER_IMAGE", "SLURM_CONTAINER_IMAGE")
_GPUS_PER_NODE = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "GPUS_PER_NODE", "LOCAL_WORLD_SIZE")
_NODES = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
_TYPED_COUNT = re.compile(r"(?:(?P<type>[A-Za-z][\w.-]*):)?(?P<count>\d{1,6})$")


def read_job_environment(text: str | bytes) -> Document:
    """What an environment dump says. Raises ValueError with a sentence when it is too large or holds no variable."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"The environment is larger than {MAX_BYTES // 1024**2} MB.")
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    variables = _read_variables(decoded)
    if not variables:
        raise ValueError("No line of the form NAME=value was found: this is no environment.")
    stated = stated_by_variables(variables, "environment")
    if is_whole_environment(variables):
        for name in VARIABLES:
            unset = Stated(None, "metadata", f"environment: {name} is not set")
            stated.setdefault(PREFIX + name, unset)
    facts = {
        fact: one_line(variables[name])[:MAX_VALUE]
        for name, fact in _FACTS.items()
        if variables.get(name) and not is_secret(name, variables[name])
    }
    return Document("job environment", stated, facts=facts, problems=_problems(variables))


def is_whole_environment(variables: Mapping[str, object]) -> bool:
    """True for all that a process had: what is not in it was unset. A selection says nothing of other variables."""
    return all(name in variables for name in _WHOLE)


def _read_variables(text: str) -> dict[str, str]:
    if text.lstrip()[:1] == "{":
        document = read_json(text)
        items = document.items() if isinstance(document, Mapping) else ()
        return {str(name): str(value) for name, value in list(items)[:MAX_VARIABLES] if isinstance(value, str | int)}
    lines = text.split("\0") if "\0" in text else text.splitlines()
    variables: dict[str, str] = {}
    for line in lines:
        match = _LINE.match(line.strip())  # continuation lines of functions and certificates match rarely, and harmless
        if match and len(variables) < MAX_VARIABLES:
            variables[match[1]] = _unquoted(match[2])
    return variables


def _unquoted(value: str) -> str:
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


def stated_by_variables(variables: Mapping[str, str], where: str) -> dict[str, Stated]:
    """Contract fields of environment variables; `where` says which document they stood in."""
    usable = {
        name: value
        for name, value in variables.items()
        if value.strip() and value != _REDACTED and not _UNUSABLE.search(value) and not is_secret(name, value)
    }
    stated: dict[str, Stated] = {}
    for name in VARIABLES:
        if name in usable:
            _state(stated, PREFIX + name, usable[name], f"{where}: {name} = {one_line(usable[name])[:MAX_VALUE]}")
    for name, field in _VERSIONS.items():
        if name in usable:
            _state(stated, field, usable[name], f"{where}: {name} = {one_line(usable[name])[:MAX_VALUE]}")
    if "SLURM_CLUSTER_NAME" in usable:
        _state(stated, "cluster", usable["SLURM_CLUSTER_NAME"], f"{where}: SLURM_CLUSTER_NAME")
    for name in _IMAGES:
        if name in usable and "container" not in stated:
            stated |= stated_by_image(usable[name], f"{where}: {name}")
    _state_gpus(stated, usable, where)
    return stated


def _state(stated: dict[str, Stated], field: str, raw: object, detail: str) -> None:
    try:
        stated[field] = Stated(read_value(field, raw), "metadata", detail)
    except ValueError:
        return


def _state_gpus(stated: dict[str, Stated], usable: Mapping[str, str], where: str) -> None:
    """GPUs of the job: WORLD_SIZE where torchrun or the launcher set it, else nodes times GPUs per node."""
    per_node = None
    for name in _GPUS_PER_NODE:
        match = _TYPED_COUNT.match(usable.get(name, "").strip())
        if match and int(match["count"]):
            per_node = per_node or int(match["count"])
            stated.setdefault("gpus_per_node", Stated(per_node, "metadata", f"{where}: {name} = {usable[name]}"))
            if match["type"] and "gpu" not in stated and match["type"].lower() != "gpu":
                _state(stated, "gpu", match["type"], f"{where}: {name} = {usable[name]}")
    if "WORLD_SIZE" in usable:
        _state(stated, "gpus", usable["WORLD_SIZE"], f"{where}: WORLD_SIZE = {usable['WORLD_SIZE']}")
    nodes = _node_count(usable)
    if "gpus" not in stated and nodes and per_node:
        _state(stated, "gpus", nodes * per_node, f"{where}: {nodes} nodes x {per_node} GPUs of a node")


def _node_count(usable: Mapping[str, str]) -> int | None:
    for name in _NODES:
        text = usable.get(name, "").strip()
        if text.isascii() and text.isdigit() and int(text[:7]) > 0:
            return int(text[:7])
    return count_nodes(usable.get("SLURM_JOB_NODELIST", "") or usable.get("SLURM_NODELIST", ""))


def _problems(variables: Mapping[str, str]) -> tuple[str, ...]:
    nodes = next((variables[name] for name in _NODES if name in variables), None)
    listed = count_nodes(variables.get("SLURM_JOB_NODELIST", ""))
    if nodes and listed and nodes.strip() != str(listed):
        return (f"Slurm says {one_line(nodes)[:20]} nodes, its node list names {listed}.",)
    return ()
