"""No account's name passes for another's, or for what the record calls others than people."""

import pytest

from app.errors import InvalidChange
from app.storage import users
from app.storage.database import transaction
from tests.access.people import Teams

ALIKE = (
    "Viewer",
    "VIEWER",
    "v\u0456ewer",
    "viewer\u200b",
    "token ci",
    "Command Line",
    "nobody logged in",
    "threewalls",
)


@pytest.mark.parametrize("name", ALIKE)
def test_a_name_that_passes_for_another_is_none(teams: Teams, name: str) -> None:
    with pytest.raises((InvalidChange, users.NameTaken)), transaction(teams.engine) as session:
        users.create_user(session, name, by="test")


@pytest.mark.parametrize(
    ("said", "name"),
    [("Zoë Müller", "Zoe Muller"), ("r\u043e\u043et", "rt"), ("token ci", "account token ci"), ("\u200b", "somebody")],
)
def test_what_a_provider_says_becomes_such_a_name(said: str, name: str) -> None:
    assert users.plain_name(said) == name
    assert users.checked_name(name) == name


def test_names_are_compared_as_one_letter_forms() -> None:
    assert users.checked_name("\uff41\uff44\uff41") == "ada"
