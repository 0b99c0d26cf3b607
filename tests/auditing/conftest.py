from tests.access.conftest import teams

__all__ = ["teams"]
