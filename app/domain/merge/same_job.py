"""Whether the files of a run belong to one job: what they state about it must agree."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from app.domain.contract.values import shown
from app.domain.merge.order import Part
from app.domain.run import Problem, Stated, Value

_ONE_JOB = ("world_size", "train_iters", "seed", "num_layers", "hidden_size")
"""Settings that two slices of one job share. A seed is never changed on a resume, the others hardly ever."""


def contradictions(files: Sequence[Part]) -> Iterator[Problem]:
    """Sentences on files that state different jobs. `files` are in the order of the run."""
    facts = [(part, _facts(part)) for part in files]
    for name in _ONE_JOB:
        told = [(part, fact[name]) for part, fact in facts if fact.get(name) is not None]
        other = next(((part, value) for part, value in told[1:] if value != told[0][1]), None)
        if other is not None:
            (one, first), (two, second) = told[0], other
            yield Problem(
                "different jobs",
                f"{one.name} and {two.name} look like two different jobs: {name} is {shown(first)} in one and "
                f"{shown(second)} in the other. Upload them as two runs if they are.",
                file=two.file,
            )


def _facts(part: Part) -> dict[str, Value]:
    facts: dict[str, Value] = {name: part.log.arguments.get(name) for name in _ONE_JOB}
    if facts["train_iters"] is None:
        facts["train_iters"] = part.log.total_iterations
    if facts["world_size"] is None and "gpus" in part.log.stated:
        facts["world_size"] = part.log.stated["gpus"].value
    return facts


def merged_fields(files: Sequence[Part]) -> tuple[dict[str, Stated], list[Problem]]:
    """Contract fields of all files; the last file that states one in its arguments wins, and what changed is told."""
    found: dict[str, tuple[Part, Stated]] = {}
    problems = []
    for part in files:
        changed = []
        for name, stated in part.log.stated.items():
            known = found.get(name)
            if known is None or stated.source != "log line" or known[1].source == "log line":
                if known and known[1].source == stated.source == "arguments" and known[1].value != stated.value:
                    changed.append(f"`{name}` {shown(known[1].value)} -> {shown(stated.value)}")
                found[name] = (part, stated)
        if changed:
            problems.append(
                Problem(
                    "changed settings",
                    f"{part.name} sets {len(changed)} fields differently than the file before it: "
                    f"{', '.join(changed[:10])}. Its values are used.",
                    file=part.file,
                )
            )
    return {name: replace(stated, file=part.file) for name, (part, stated) in found.items()}, problems
