"""Reads Slurm's information about a job: its accounting (`sacct --json`), and lists of nodes in any notation.

The shapes of https://slurm.schedmd.com/rest_api.html changed between versions: a state is a text or a list, and a
number may be `{"set": true, "infinite": false, "number": 4}`.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from app.domain.contract.values import read_value
from app.domain.documents.document import Document, read_json
from app.domain.run import Stated
from app.domain.text import one_line

MAX_VALUE = 300
MAX_EXPANDED = 10_000
"""Nodes of a list; longer lists are not expanded."""

_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,250}[A-Za-z0-9])?")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_NUMBERED = re.compile(r"(.*?)(\d{1,9})")
_ENDINGS = {
    "TIMEOUT": "TIME LIMIT",
    "DEADLINE": "TIME LIMIT",
    "PREEMPTED": "PREEMPTED",
    "NODE_FAIL": "NODE FAILURE",
    "OUT_OF_MEMORY": "OUT_OF_MEMORY",
    "CANCELLED": "CANCELLED",
}
"""States that explain why a job ended, as in Slurm's own messages in logs (`performance/failures.py`)."""


def expand_nodes(nodelist: str, most: int = MAX_EXPANDED) -> tuple[str, ...]:
    """Return the names in a list such as `gb-nvl-[001-004,007],login1`; empty if it is malformed, or if its ranges have
    more than `most` names.
    """
    text = nodelist.strip()
    names: list[str] = []
    if re.search(r"[\[\]]", _BRACKET.sub("", text)):  # an unmatched bracket
        return ()
    for item in re.findall(r"(?:[^,\[\]\s]|\[[^\[\]]*\])+", text):
        expanded = [item]
        while match := _BRACKET.search(expanded[0]):
            numbers = _numbers(match[1])
            if not numbers or len(numbers) * len(expanded) + len(names) > most:
                return ()
            expanded = [_BRACKET.sub(number, name, count=1) for name in expanded for number in numbers]
        names += expanded
    return tuple(dict.fromkeys(names)) if all(_HOST.fullmatch(name) for name in names) else ()


def _numbers(ranges: str) -> list[str]:
    """Return the numbers of `001-004,007` with their zeros; empty for a malformed range."""
    numbers: list[str] = []
    for part in ranges.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        if match is None:
            return []
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < first + MAX_EXPANDED:
            return []
        numbers += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return numbers


def fold_nodes(names: Iterable[str]) -> str:
    """Return a list in Slurm's notation, sorted: `gb-nvl-[001-004,007],login1`."""
    groups: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        key = (match[1], len(match[2])) if match else (name, 0)
        groups.setdefault(key, []).extend([int(match[2])] if match else [])
    return ",".join(_folded(prefix, width, sorted(numbers)) for (prefix, width), numbers in groups.items())


def _folded(prefix: str, width: int, numbers: Sequence[int]) -> str:
    if not width:
        return prefix
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    if len(numbers) == 1:
        return f"{prefix}{numbers[0]:0{width}d}"
    parts = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in spans]
    return f"{prefix}[{','.join(parts)}]"


def stated_nodes(nodelist: str, where: str) -> dict[str, Stated]:
    """Return the contract field `nodes`; empty for a list that is malformed or too long to store."""
    names = expand_nodes(nodelist)
    try:
        return {"nodes": Stated(read_value("nodes", fold_nodes(names)), "metadata", where)} if names else {}
    except ValueError:
        return {}


def read_node_list(text: str | bytes) -> Document:
    """Read names of nodes, one per line (also MPI's `host slots=8`), or one list in Slurm's notation.

    Raises ValueError with a sentence when it is not such a list.
    """
    decoded = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    lines = [line.split("#", 1)[0].split() for line in decoded[: 64 * MAX_EXPANDED].splitlines()]
    names = tuple(dict.fromkeys(name for words in lines if words for name in expand_nodes(words[0])))
    if not names or sum(bool(words) for words in lines) > MAX_EXPANDED:
        raise ValueError("This is not a list of nodes: write one name per line, or a list such as gb-nvl-[001-004].")
    stated = stated_nodes(fold_nodes(names), f"node list: {len(names)} nodes")
    return Document("node list", stated, facts={"slurm_nodelist": fold_nodes(names)[:MAX_VALUE]})


def read_slurm_accounting(text: str | bytes) -> Document:
    """Read one job, with its requeues, from `sacct --json`. Raises ValueError with a sentence."""
    document = read_json(text)
    jobs = document.get("jobs") if isinstance(document, Mapping) else None
    jobs = [job for job in jobs if isinstance(job, Mapping)] if isinstance(jobs, list) else []
    if not jobs:
        raise ValueError("This is not the output of sacct --json: it has no jobs.")
    jobs.sort(key=lambda job: _number(_at(job, "time", "start")) or 0)
    ids = list(dict.fromkeys(_number(job.get("job_id")) for job in jobs))
    last = jobs[-1]
    starts = [job for job in jobs if job.get("job_id") == last.get("job_id")]
    requeues = max(len(starts) - 1, int(_number(last.get("restart_cnt")) or 0))
    state = _text(_first(_at(last, "state", "current"))).upper()
    nodes = expand_nodes(_text(last.get("nodes")))
    problems = []
    if len(ids) > 1:
        problems.append(f"sacct lists {len(ids)} jobs; only the last one, {ids[-1]:.0f}, was read. Export one job.")
    facts = {
        "slurm_job_id": _shown(last.get("job_id")),
        "slurm_array_task_id": _shown(_at(last, "array", "task_id")),
        "slurm_job_name": _text(last.get("name")),
        "slurm_partition": _text(last.get("partition")),
        "slurm_qos": _text(last.get("qos")),
        "slurm_nodelist": _text(last.get("nodes")),
        "slurm_restart_count": str(requeues),
        "slurm_state": state,
        "slurm_reason": _text(_at(last, "state", "reason")),
        "slurm_failed_node": _text(last.get("failed_node")),
        "slurm_elapsed_s": _shown(_at(last, "time", "elapsed")),
        "slurm_queued_s": _queued(last),
    }
    stated = _gpus(last, len(nodes))
    if cluster := _text(last.get("cluster")):
        stated["cluster"] = Stated(cluster, "metadata", "Slurm accounting: cluster")
    stated |= stated_nodes(_text(last.get("nodes")), f"Slurm accounting: {_text(last.get('nodes'))[:MAX_VALUE]}")
    facts = {name: value for name, value in facts.items() if value and value != "None"}
    return Document("slurm accounting", stated, facts=facts, problems=tuple(problems))


def ending_of(document: Document) -> str:
    """Return how Slurm ended the job, in the words of its messages in logs; empty when it ended normally."""
    ending = _ENDINGS.get(document.facts.get("slurm_state", "").partition(" ")[0], "")
    if not ending:
        return ""
    failed = document.facts.get("slurm_failed_node", "")
    node = f", node {failed}" if failed else ""
    return f"Slurm accounting: job {document.facts.get('slurm_job_id', '')} ended by {ending}{node}"


def _gpus(job: Mapping[str, Any], nodes: int) -> dict[str, Stated]:
    allocated = _at(job, "tres", "allocated")
    entries = [entry for entry in allocated if isinstance(entry, Mapping)] if isinstance(allocated, list) else []
    counts = {
        _text(entry.get("name")): int(_number(entry.get("count")) or 0)
        for entry in entries
        if entry.get("type") == "gres" and _text(entry.get("name")).partition(":")[0] == "gpu"
    }
    gpus = counts.get("gpu") or max(counts.values(), default=0)
    if not gpus:
        return {}
    where = f"Slurm accounting: {gpus} GPUs allocated"
    stated = {"gpus": Stated(gpus, "metadata", where)}
    nodes = nodes or int(_number(job.get("allocation_nodes")) or 0)
    if nodes and gpus % nodes == 0:
        stated["gpus_per_node"] = Stated(gpus // nodes, "metadata", f"{where} on {nodes} nodes")
    model = next((name.partition(":")[2] for name in counts if ":" in name), "")
    if model:
        try:
            stated["gpu"] = Stated(read_value("gpu", model), "metadata", f"Slurm accounting: gres/{model}")
        except ValueError:
            return stated
    return stated


def _queued(job: Mapping[str, Any]) -> str:
    start, submitted = _number(_at(job, "time", "start")), _number(_at(job, "time", "submission"))
    return f"{start - submitted:.0f}" if start and submitted and start >= submitted else ""


def _at(job: Mapping[str, Any], group: str, name: str) -> Any:
    value = job.get(group)
    return value.get(name) if isinstance(value, Mapping) else None


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value


def _number(value: Any) -> float | None:
    """Return a number of either shape; None when it is not set."""
    if isinstance(value, Mapping):
        value = value.get("number") if value.get("set") else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53 else None


def _shown(value: Any) -> str:
    number = _number(value)
    return f"{number:.0f}" if number is not None else ""


def _text(value: Any) -> str:
    return one_line(value)[:MAX_VALUE] if isinstance(value, str) else ""
