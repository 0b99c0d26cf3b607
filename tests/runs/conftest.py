"""The two teams of `tests/access`, to test what uploads reveal."""

from tests.access.conftest import teams

__all__ = ["teams"]
