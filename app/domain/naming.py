"""Names of stacks: a one-line title, and the fields that distinguish stacks with the same title."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.fields import STACK_FIELDS
from app.domain.contract.values import shown
from app.domain.numbers import contract_value
from app.domain.run import Stated, Value

SEPARATOR = " · "
_ALWAYS = ("seq_len", "gbs", "mbs")
"""Size of the work: shown wherever stacks of one title differ in it, even if one of the three would do."""
_WORDS = {"seq_len": "seq", "gbs": "GBS", "mbs": "MBS", "pp": "PP", "vpp": "VPP", "precision": "", "container": ""}
"""Label of a field in a name, where it is not the field's own name; "" when the value needs no label."""
_KEY_DIGITS = 8


@dataclass(frozen=True, slots=True)
class TitledStack:
    """A stack with its title. `fields`: the contract fields whose values are known."""

    stack_key: str
    title: str
    project: str
    fields: Mapping[str, Value]


def stack_names(stacks: Iterable[TitledStack]) -> dict[str, str]:
    """Return names by stack key. A stack with a unique title is called by it."""
    neighbours: dict[str, list[TitledStack]] = defaultdict(list)
    for stack in stacks:
        neighbours[stack.title].append(stack)
    return {key: name for own in neighbours.values() for key, name in _names(own).items()}


def _names(stacks: Sequence[TitledStack]) -> dict[str, str]:
    if len(stacks) == 1:
        return {stacks[0].stack_key: stacks[0].title}
    size = [name for name in _ALWAYS if _groups(stacks, [name]) > 1]
    alike: dict[tuple[str, ...], list[TitledStack]] = defaultdict(list)
    for stack in stacks:
        alike[tuple(_words(stack, name) for name in size)].append(stack)
    names = {}
    for words, own in alike.items():
        fields = _further_fields(own)
        for stack in own:
            names[stack.stack_key] = SEPARATOR.join([stack.title, *words, *(_words(stack, name) for name in fields)])
    several = Counter(names.values())
    return {key: name if several[name] == 1 else f"{name}{SEPARATOR}{key[:_KEY_DIGITS]}" for key, name in names.items()}


def _further_fields(stacks: Sequence[TitledStack]) -> list[str]:
    """Return the fields that distinguish stacks of one title and size."""
    fields: list[str] = []
    groups = 1
    for name in ("project", *STACK_FIELDS):
        # Most fields are equal in all stacks, which is cheap to check.
        if groups == len(stacks) or name in _ALWAYS or _groups(stacks, [name]) == 1:
            continue
        finer = _groups(stacks, [*fields, name])
        if finer > groups:
            fields.append(name)
            groups = finer
    return fields


def _groups(stacks: Sequence[TitledStack], fields: Sequence[str]) -> int:
    return len({tuple(_value(stack, name) for name in fields) for stack in stacks})


def _value(stack: TitledStack, name: str) -> str:
    if name == "project":
        return stack.project
    return contract_value(stack.fields[name]) if name in stack.fields else "unknown"


def common_parts(names: Sequence[str]) -> tuple[str, ...]:
    """Return the parts that all names share, in the order of the first; () for a single name."""
    parts = [name.split(SEPARATOR) for name in names]
    if len(parts) < 2:
        return ()
    common = set.intersection(*map(set, parts))
    return tuple(part for part in parts[0] if part in common)


def without_common(names: Sequence[str]) -> list[str]:
    """Return the names without their shared parts, to save space on phones."""
    common = common_parts(names)
    return [SEPARATOR.join(part for part in name.split(SEPARATOR) if part not in common) or name for name in names]


def distinct_names(names: Sequence[str]) -> list[str]:
    """Return the names without their shared parts, and without last parts that none needs to differ from the others.

    Such a part distinguishes it from a name that is not in the list: `seq 4096 · GBS 1024 · graph impl local`.
    """
    rows = [name.split(SEPARATOR) for name in without_common(names)]
    for most in range(min(map(len, rows), default=0), max(map(len, rows), default=0)):
        shortened = [SEPARATOR.join(row[:most]) for row in rows]
        if len(set(shortened)) == len(set(names)):
            return shortened
    return [SEPARATOR.join(row) for row in rows]


def short_names(names: Sequence[str]) -> list[str]:
    """Return the names without the pieces that all values of a part share: `8e-top1 · H100`."""
    rows = [name.split(SEPARATOR) for name in names]
    if len(rows) < 2 or len({len(row) for row in rows}) > 1:
        return list(names)
    columns = [_without_shared(_without_shared(column, " × "), "-") for column in zip(*rows, strict=True)]
    return [SEPARATOR.join(parts) for parts in zip(*columns, strict=True)]


def _without_shared(values: Sequence[str], separator: str) -> Sequence[str]:
    pieces = [value.split(separator) for value in values]
    if len(set(values)) == 1 or len({len(own) for own in pieces}) > 1:
        return values
    differs = [len(set(column)) > 1 for column in zip(*pieces, strict=True)]
    return [
        separator.join(piece for piece, is_distinct in zip(own, differs, strict=True) if is_distinct) for own in pieces
    ]


def short_job(job: str, jobs: Iterable[str]) -> str:
    """Return the part of a job's name that distinguishes it from the others: `4experts2parallel_dp_last`."""
    parts = [name.split("/") for name in {job, *jobs}]
    differing = [place for place in range(min(map(len, parts))) if len({own[place] for own in parts}) > 1]
    if not differing:
        return job or "no job"
    place = differing[0]
    words = [own[place].split("_") for own in parts]
    shared = 0
    while all(len(own) > shared for own in words) and len({own[shared] for own in words}) == 1:
        shared += 1
    # The last shared word stays, so that no name is empty.
    return "_".join(job.split("/")[place].split("_")[max(shared - 1, 0) :])


def field_words(name: str, value: Value) -> str:
    """Return label and value: `seq 4096`, `PP 4`, `graph impl none`."""
    word = _WORDS.get(name, name.replace("_", " "))
    return f"{word} {contract_value(value)}".strip()


def _words(stack: TitledStack, name: str) -> str:
    if name == "project":
        return f"project {stack.project}"
    if name not in stack.fields:
        return f"{_WORDS.get(name) or name.replace('_', ' ')} unknown"
    return field_words(name, stack.fields[name])


# --- The title: `Qwen3-30B-A3B · 16 × H100 · hybridep · forced balance · nemo:26.06`.


def container_tag(contract: Mapping[str, Stated]) -> str:
    """Return the container without registry and digest: `train:2026.10`; empty when it is unknown."""
    return stated_text(contract, "container").partition("@")[0].rpartition("/")[2]


def stack_title(contract: Mapping[str, Stated], *, dispatcher: bool = True) -> str:
    """Return the title of a stack. Leave out the dispatcher, which is a knob, where a stack has several."""
    parts = [
        stated_text(contract, "model") or "unknown model",
        _hardware(contract),
        stated_text(contract, "dispatcher") if dispatcher else "",
        stated_text(contract, "routing_mode").replace("-", " ").replace("_", " "),
        container_tag(contract),
    ]
    return SEPARATOR.join(part for part in parts if part)


def _hardware(contract: Mapping[str, Stated]) -> str:
    gpu, gpus = stated_text(contract, "gpu"), stated_text(contract, "gpus")
    return f"{gpus} × {gpu or 'unknown GPU'}" if gpus else gpu or "unknown GPU"


def stated_text(contract: Mapping[str, Stated], name: str) -> str:
    stated = contract.get(name)
    return "" if stated is None or stated.value is None else shown(stated.value)


def comparison_title(a: Sequence[object], b: Sequence[object]) -> str:
    """Return `#187 against baseline #188` or `2 runs against baseline of 3 runs`. `a`: runs of the baseline."""
    of, (before, after) = "of " if len(a) > 1 else "", (f"#{s[0]}" if len(s) == 1 else f"{len(s)} runs" for s in (a, b))
    return f"{after} against baseline {of}{before}"
