"""In whose name access is changed: whoever is logged in, else the name that was stated, else nobody's."""

from app.domain.text import one_line
from app.storage.users import MAX_NAME
from app.web.access.acting import author

UNKNOWN = "nobody logged in"


def signed(stated: str = "") -> str:
    return author(one_line(stated)[:MAX_NAME]) or UNKNOWN
