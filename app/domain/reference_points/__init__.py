"""Published figures beside our own: what others measured, what differs, and what the gap may be made of.

published() -> tuple[ReferencePoint, ...]            the figures that come with the service
read_reference(values) -> ReferencePoint             a team's own, checked
nearest_reference(contract, figures, points)         the closest one to a stack, with the claim check
why_farther(contract, point, nearer)                 why another point is the closest one
"""

from app.domain.reference_points.catalogue import published
from app.domain.reference_points.claims import Cause, ReferenceDifference
from app.domain.reference_points.nearest import Nearest, OurFigures, nearest_reference, why_farther
from app.domain.reference_points.point import FIGURES, LABEL, InvalidReference, ReferencePoint, read_reference

__all__ = [
    "FIGURES",
    "LABEL",
    "Cause",
    "InvalidReference",
    "Nearest",
    "OurFigures",
    "ReferenceDifference",
    "ReferencePoint",
    "nearest_reference",
    "published",
    "read_reference",
    "why_farther",
]
