"""What somebody may not see and what is not there are the same, in the answer and in the work that it takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, event

from app.storage.database import transaction
from tests.access.belongings import make_belongings
from tests.access.people import THEIRS, Teams

MISSING = {"project": "nosuch", "run": "999999", "regression": "999999", "experiment": "999999", "stack": "f" * 64}


@contextmanager
def statements(engine: Engine) -> Iterator[list[str]]:
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield asked
    event.remove(engine, "before_cursor_execute", note)


@pytest.mark.parametrize("who", ["viewer", "token:all", "anonymous"])
def test_the_database_is_asked_as_much_for_what_is_not_there(teams: Teams, who: str) -> None:
    with transaction(teams.engine) as session:
        theirs = make_belongings(session, THEIRS)
    addresses = {
        "project": ("/api/v1/projects/{}/rules", THEIRS),
        "run": ("/api/v1/runs/{}", theirs.run),
        "regression": ("/api/v1/regressions/{}", theirs.regression),
        "experiment": ("/api/v1/experiments/{}", theirs.experiment),
        "stack": ("/history/{}/pin", theirs.stack),
    }
    team, stranger = teams.client("outsider"), teams.client(who)
    for what, (address, name) in addresses.items():
        method = "POST" if what == "stack" else "GET"
        if method == "POST" and who.startswith("token"):
            continue
        team.request(method, address.format(name), data={} if method == "POST" else None)  # they know, and so may we
        stranger.request(method, address.format("0"))
        asked = []
        for named in (name, MISSING[what]):
            with statements(teams.engine) as made:
                answer = stranger.request(method, address.format(named))
            assert answer.status_code == (401 if who == "anonymous" else 404)
            asked.append(made)
        assert asked[0] == asked[1] != [], what
