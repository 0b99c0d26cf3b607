"""Reads a TensorBoard event file of Megatron-LM or Megatron-Bridge: series, and the arguments written as texts."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from app.domain.documents.document import Document
from app.domain.documents.event_proto import ScalarEvent, read_event
from app.domain.documents.scalars import column_of, columns_from_points
from app.domain.documents.tfrecord import Damage, read_records
from app.domain.logs.arguments import contract_fields
from app.domain.logs.literals import read_literal
from app.domain.logs.setting import Setting
from app.domain.run import Stated

MAX_TAGS = 500
"""Four MoE metrics of 61 layers each are 244 tags."""
MAX_POINTS = 4_000_000
"""64 MB of steps and values."""
MAX_ARGUMENTS = 3000
_TEXT_SUFFIX = "/text_summary"
"""`SummaryWriter.add_text` appends it to the tag; Megatron-LM writes each argument so (`write_args_to_tensorboard`)."""
_WORLD_SIZE = "world-size"


@dataclass(slots=True)
class _Collected:
    points: "dict[str, tuple[array[int], array[float]]]" = field(default_factory=dict)
    arguments: dict[str, Setting] = field(default_factory=dict)
    count: int = 0
    dropped_tags: set[str] = field(default_factory=set)
    broken: int = 0


def read_tensorboard(chunks: Iterable[bytes]) -> Document:
    """The series and arguments of one event file, given in pieces of any size; memory is bounded.

    A record that is cut at the end is normal (the file was copied while the run went on); a damaged one is skipped.
    """
    damage = Damage()
    collected = _Collected()
    for record in read_records(chunks, damage):
        try:
            events = read_event(record)
        except ValueError:
            collected.broken += 1
            continue
        for event in events:
            _collect(collected, event)
        if collected.count >= MAX_POINTS:
            break
    gpus = collected.points.pop(_WORLD_SIZE, None)
    columns, left_out = columns_from_points(collected.points)
    found, refused = contract_fields(collected.arguments)
    stated = {name: replace(one, detail=f"TensorBoard text: {one.detail}") for name, one in found.items()}
    if gpus and gpus[1][-1] >= 1:
        detail = f"TensorBoard scalar {_WORLD_SIZE} = {int(gpus[1][-1])}"
        stated.setdefault("gpus", Stated(int(gpus[1][-1]), "arguments", detail))
    return Document("tensorboard", stated, columns, problems=(*_problems(collected, damage), *left_out, *refused))


def _collect(collected: _Collected, event: ScalarEvent) -> None:
    if isinstance(event.value, str):
        name, suffix, rest = event.tag.partition(_TEXT_SUFFIX)
        if suffix and not rest and len(collected.arguments) < MAX_ARGUMENTS:
            collected.arguments[name] = Setting(name, read_literal(event.value), "arguments")
        return
    if column_of(event.tag) is None:
        return
    if event.tag not in collected.points:
        if len(collected.points) >= MAX_TAGS:
            if len(collected.dropped_tags) < MAX_TAGS:
                collected.dropped_tags.add(event.tag)
            return
        collected.points[event.tag] = (array("q"), array("d"))
    steps, values = collected.points[event.tag]
    steps.append(event.step)
    values.append(event.value)
    collected.count += 1


def _problems(collected: _Collected, damage: Damage) -> list[str]:
    problems = []
    if damage.corrupt_records:
        problems.append(f"{damage.corrupt_records} records were skipped: their checksum does not fit.")
    if damage.damaged_places:
        problems.append(f"The file is damaged in {damage.damaged_places} places; reading went on behind them.")
    if damage.gave_up:
        problems.append("Reading stopped early: the file is damaged in too many places.")
    if collected.broken:
        problems.append(f"{collected.broken} records were skipped: they are no TensorBoard events.")
    if collected.dropped_tags:
        problems.append(f"Scalars beyond the first {MAX_TAGS} names were left out.")
    if collected.count >= MAX_POINTS:
        problems.append(f"Reading stopped after {MAX_POINTS} values.")
    if not collected.points and not problems:
        problems.append("The event file holds no scalars.")
    return problems
