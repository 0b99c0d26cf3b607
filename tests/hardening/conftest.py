"""Two teams, as the tests of access have them, and the browser of the tests of pages."""

from tests.access.conftest import teams
from tests.browser.conftest import chromium

__all__ = ["chromium", "teams"]
