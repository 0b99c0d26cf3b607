"""All published figures that come with the service, each with its source."""

from functools import cache

from app.domain.reference_points import bridge_releases, guides, model_zoo, verification_cards
from app.domain.reference_points.point import ReferencePoint


@cache
def published() -> tuple[ReferencePoint, ...]:
    """Newest first."""
    points = (*bridge_releases.points(), *verification_cards.points(), *model_zoo.points(), *guides.points())
    return tuple(sorted(points, key=lambda point: (point.date, point.key), reverse=True))
