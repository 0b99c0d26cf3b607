"""Two teams, as the tests of access have them."""

from tests.access.conftest import teams

__all__ = ["teams"]
