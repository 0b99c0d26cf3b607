"""Reads a job's environment: Slurm's allocation and the variables that change results.

Reads `env`, `export -p`, `declare -x`, `/proc/PID/environ` and JSON. Only the variables named here are stored, and none
whose value looks like a credential.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from app.domain.contract.fields import PREFIX, VARIABLES
from app.domain.contract.values import read_value
from app.domain.documents.document import Document, is_secret, read_json
from app.domain.documents.slurm import stated_nodes
from app.domain.run import Stated
from app.domain.text import one_line

# --- Counts the nodes of a Slurm node list, for example `gb-nvl-[001-004,007],login1`.
#
# https://slurm.schedmd.com/scontrol.html#OPT_hostnames describes the notation.

MAX_NODELIST = 100_000
MAX_NODES = 1_000_000

_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def count_nodes(nodelist: str) -> int | None:
    """Return the number of nodes in the list; None when it is empty or malformed."""
    text = nodelist.strip()
    if not text or len(text) > MAX_NODELIST or text.startswith("("):
        return None
    total = 0
    for item in _split(text):
        count = 1
        for ranges in _BRACKET.findall(item):
            count *= _count_ranges(ranges)
        if not item or not count or total + count > MAX_NODES:
            return None
        total += count
    return total


def _split(text: str) -> list[str]:
    """Split at commas outside brackets."""
    items, depth, start = [], 0, 0
    for place, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:place])
            start = place + 1
    return [*items, text[start:]]


def _count_ranges(ranges: str) -> int:
    """Return the number of members of `001-004,007`; 0 for a malformed list."""
    total = 0
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part.strip())
        if not match:
            return 0
        size = int(match[2]) - int(match[1]) + 1 if match[2] else 1
        if size < 1:
            return 0
        total += size
    return total


# --- Reads the name of a container image: docker references, enroot URIs and enroot's .sqsh files.
#
# Reference grammar: https://github.com/distribution/reference (`reference.go`); enroot writes `#` between registry
# and repository, and names the file of `docker://nvcr.io#nvidia/nemo:26.06` `nvidia+nemo+26.06.sqsh` (`enroot
# import`).

MAX_IMAGE_NAME = 1000
SQUASHFS = ".sqsh"

_SCHEME = re.compile(r"^(docker|dockerd|podman|oci|enroot)://", re.IGNORECASE)
_TAG = re.compile(r"[\w][\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*:[0-9a-fA-F]{32,128}")
_PART = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*")
_REGISTRY = re.compile(r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Image:
    """An image name in parts; missing parts are empty. `nvidia+nemo+26.06.sqsh` has no registry."""

    registry: str = ""
    repository: str = ""
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Return `registry/repository:tag`, the contract's `container`."""
        path = f"{self.registry}/{self.repository}" if self.registry else self.repository
        return f"{path}:{self.tag}" if self.tag else path


def read_image(reference: str) -> Image:
    """Return the parts of `reference`, without folders before a .sqsh file or a user before the registry.

    Raises ValueError with a sentence when it is not an image name.
    """
    text = reference.strip().strip("\"'")
    if not text or len(text) > MAX_IMAGE_NAME:
        raise ValueError(f"An image name has 1 to {MAX_IMAGE_NAME} characters.")
    text = _SCHEME.sub("", text)
    if text.lower().endswith((SQUASHFS, ".squashfs")):
        return _squashfs(text)
    if "#" in text:
        registry, _, text = text.partition("#")
        registry = registry.rpartition("@")[2]
    else:
        registry = ""
    text, _, digest = text.partition("@")
    if digest and not _DIGEST.fullmatch(digest):
        raise ValueError("The digest of the image is invalid; expected, for example, sha256:...")
    path, tag = _split_tag(text)
    if not registry:
        registry, path = _split_registry(path)
    if registry and not _REGISTRY.fullmatch(registry):
        raise ValueError("The registry of the image is not a host name.")
    if not path or not all(_PART.fullmatch(part) for part in path.split("/")):
        raise ValueError("This is not an image name such as nvcr.io/nvidia/nemo:26.06.")
    return Image(registry, path, tag, digest.lower())


def _split_tag(text: str) -> tuple[str, str]:
    path, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        return text, ""
    if not _TAG.fullmatch(tag):
        raise ValueError("The tag of the image is invalid.")
    return path, tag


def _split_registry(path: str) -> tuple[str, str]:
    """Split off the registry: a first part with a dot or a port, or localhost."""
    first, slash, rest = path.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return first, rest
    return "", path


def _squashfs(path: str) -> Image:
    """Read the name of an image file: enroot joins parts and tag with `+`; others become repositories."""
    file = path.replace("\\", "/").rpartition("/")[2]
    stem = file.rpartition(".")[0]
    parts = [part for part in stem.split("+") if part]
    if not parts or not all(_TAG.fullmatch(part) for part in parts):
        raise ValueError("The name of the image file is invalid.")
    if len(parts) == 1:
        return Image(repository=parts[0])
    return Image(_sqsh_registry(parts), "/".join(parts[1 if _sqsh_registry(parts) else 0 : -1]), parts[-1])


def _sqsh_registry(parts: list[str]) -> str:
    """Return the registry that some sites keep in the file name: nvcr.io+nvidia+nemo+26.06.sqsh."""
    return parts[0] if len(parts) > 2 and "." in parts[0] else ""


def complete_image(image: Image, default: str) -> Image:
    """Return `image` with missing parts from a project's `default`, for example `nvcr.io/nvidia/nemo`.

    A bare tag (`26.06`, read as a repository without a tag) becomes the default's image with that tag. The default's
    repository gets its registry. Other images stay unchanged. Raises ValueError for an invalid default.
    """
    rule = read_image(default)
    if not image.registry and not image.tag and "/" not in image.repository and image.repository[:1].isdigit():
        return Image(rule.registry, rule.repository, image.repository, image.digest)
    if not image.registry and image.repository == rule.repository:
        return Image(rule.registry, image.repository, image.tag, image.digest)
    return image


def stated_by_image(reference: str, where: str, default: str = "") -> dict[str, Stated]:
    """Return `container` and `container_digest` of a reference; empty when it is invalid. `where`: its source."""
    try:
        image = read_image(reference)
        image = complete_image(image, default) if default else image
    except ValueError:
        return {}
    stated = {"container": Stated(image.name, "metadata", f"{where}: {image.name}")}
    if image.digest:
        stated["container_digest"] = Stated(image.digest, "metadata", f"{where}: {image.digest}")
    return stated


def read_container_image(text: str | bytes, default: str = "") -> Document:
    """Read a one-line image reference. Raises ValueError with a sentence when it is invalid."""
    if len(text) > 2 * MAX_IMAGE_NAME:
        raise ValueError(f"An image name has 1 to {MAX_IMAGE_NAME} characters.")
    name = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    read_image(name)
    return Document("container image", stated_by_image(name, "container image", default))


MAX_BYTES = 4 * 1024 * 1024
"""Linux limits a process's arguments and environment together to 2 MB by default."""
MAX_VARIABLES = 20_000
MAX_VALUE = 300

_LINE = re.compile(r"(?:export |declare -[a-zA-Z]+ )?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_REDACTED = "[REDACTED]"
_UNUSABLE = re.compile(r"\$[\w{(]")
"""A reference to another variable, in a script rather than in an environment."""
_WHOLE = ("PATH", "PWD")
"""Variables that every process has: a dump with both is complete, one without is a selection (`env | grep`)."""

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
    """Read an environment dump. Raises ValueError with a sentence when it is too large or has no variable."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"The environment is larger than {MAX_BYTES // 1024**2} MB.")
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    variables = _read_variables(decoded)
    if not variables:
        raise ValueError("This is not an environment: no line has the form NAME=value.")
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
    """Return True for a complete environment, in which a missing variable was unset, and False for a selection."""
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
    """Return the contract fields of environment variables. `where` names the document that contains them."""
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
    nodes = usable.get("SLURM_JOB_NODELIST", "") or usable.get("SLURM_NODELIST", "")
    stated |= stated_nodes(nodes, f"{where}: SLURM_JOB_NODELIST")
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
    """State the GPUs of the job: WORLD_SIZE where the launcher sets it, else nodes times GPUs per node."""
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
        return (f"Slurm reports {one_line(nodes)[:20]} nodes, but its node list has {listed}.",)
    return ()
