"""Where what no key holds changed along a history: versions of libraries, the digest of the container, the driver."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.fields import FIELDS
from app.domain.matching.differences import Difference, differing_beside
from app.domain.run import Stated

WATCHED = tuple(name for name, field in FIELDS.items() if field.group == "Software" or name == "driver")
"""Fields of the contract among which versions stand; those of the keys cannot change within a stack."""


@dataclass(frozen=True, slots=True)
class VersionProbe:
    """The contract of the run at `place`, as far as versions go."""

    place: int
    contract: Mapping[str, Stated]


@dataclass(frozen=True, slots=True)
class VersionChange:
    """Between the runs at `before` and `run`, which are neighbours unless `before + 1 < run`."""

    run: int
    before: int
    differences: tuple[Difference, ...]


def changed_versions(probes: Sequence[VersionProbe]) -> tuple[VersionChange, ...]:
    """`probes` in the order of their places. A field that a run does not state is as it was last stated."""
    found = []
    known: dict[str, Stated] = {}
    for number, probe in enumerate(probes):
        differences = tuple(differing_beside(known, probe.contract))
        if differences:
            found.append(VersionChange(probe.place, probes[number - 1].place, differences))
        known |= probe.contract
    return tuple(found)
