"""What the claim check says first, in plain words."""

from app.references.nearest import Held, Ours


def summary(held: Held) -> str:
    """`7.8 % less tokens/s/GPU than another lab's measurement (...); it differs in ...`"""
    if held.nearest is not None:
        return held.nearest.sentence
    missing = [name for name, value in (("model", held.ours.model), ("GPU", held.ours.gpu)) if not value]
    if missing:
        return f"Nobody states its {' and '.join(missing)}, so no published figure can be held against it."
    return f"No published figure of {held.ours.family} on {held.ours.gpu} is known here."


def whose(ours: Ours) -> str:
    """What was held against it: `run #12`, `alltoall, the fastest result of the stack`."""
    if not ours.of_stack:
        return f"run #{ours.run_id}"
    if ours.figures.step_time_ms is None:
        return "the stack, of which nothing may be ranked"
    name = f"{ours.dispatcher}, " if ours.dispatcher else ""
    return f"{name}the fastest result of the stack"
