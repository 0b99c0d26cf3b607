"""Availability as a table: a row a container, a column a dispatcher, in each cell what the runs prove."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.storage.availability import ContainerDispatcher
from app.web.numbers import counted

DISPATCHERS = ("alltoall", "deepep", "hybridep", "ncclep", "allgather")


@dataclass(frozen=True, slots=True)
class AvailabilityTable:
    """`rows` hold one cell a dispatcher: None where no run says anything."""

    dispatchers: tuple[str, ...]
    rows: tuple[tuple[str | None, tuple[ContainerDispatcher | None, ...]], ...]


def availability_table(found: Sequence[ContainerDispatcher]) -> AvailabilityTable:
    seen = {item.dispatcher for item in found}
    columns = (*(name for name in DISPATCHERS if name in seen), *sorted(seen - set(DISPATCHERS)))
    cells = {(item.container, item.dispatcher): item for item in found}
    containers = dict.fromkeys(item.container for item in found)
    rows = tuple((container, tuple(cells.get((container, name)) for name in columns)) for container in containers)
    return AvailabilityTable(columns, rows)


def told(found: Sequence[ContainerDispatcher]) -> str:
    """What the table comes to, in plain words."""
    if not found:
        return "No log has shown yet which dispatchers a container has."
    missing = [item for item in found if not item.available]
    if not missing:
        containers = counted(len({item.container for item in found}), "container")
        return f"In {containers}, every dispatcher that was tried works."
    named = sorted({f"{item.dispatcher} in {item.container or 'a container that nobody states'}" for item in missing})
    return f"Not available: {', '.join(named[:4])}{' and others' if len(named) > 4 else ''}."
