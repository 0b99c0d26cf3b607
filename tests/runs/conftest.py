"""The two teams of `tests/access`, for what uploads tell whom."""

from tests.access.conftest import teams

__all__ = ["teams"]
