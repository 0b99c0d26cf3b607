"""All published figures that come with the service, each with its source."""

from functools import cache

from app.domain.reference_points import bridge_releases, guides, model_zoo, verification_cards
from app.domain.reference_points.point import ReferencePoint


@cache
def published() -> tuple[ReferencePoint, ...]:
    """Newest first."""
    parts = (bridge_releases, verification_cards, model_zoo, guides)
    found = [point for part in parts for point in part.points()]
    return tuple(sorted(found, key=lambda point: (point.date, point.key), reverse=True))
