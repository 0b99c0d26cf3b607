"""Brute force: guesses of a password are counted, and counted the same for names that nobody has."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from app.storage import users
from app.storage.database import transaction

RIGHT = "correct horse battery"


class House:
    """A service with one person, and clients of any address."""

    def __init__(self, settings: Settings) -> None:
        self.app = create_app(settings.model_copy(update={"login_attempts": 2}))
        with transaction(self.app.state.engine) as session:
            users.create_user(session, "ada", by="test", password=RIGHT)

    def try_once(self, name: str, password: str, address: str = "203.0.113.1") -> Response:
        client = TestClient(self.app, client=(address, 1), follow_redirects=False, raise_server_exceptions=False)
        return client.post("/login", data={"name": name, "password": password})


@pytest.fixture
def house(settings: Settings) -> Iterator[House]:
    house = House(settings)
    yield house
    house.app.state.engine.dispose()


def test_after_so_many_wrong_passwords_not_even_the_right_one_opens(house: House) -> None:
    assert [house.try_once("ada", "wrong").status_code for _ in range(2)] == [422, 422]
    answer = house.try_once("ada", RIGHT)
    assert answer.status_code == 429
    assert 0 < int(answer.headers["Retry-After"]) <= 600
    assert "Try again in 10 minutes" in answer.text
    assert "set-cookie" not in answer.headers


def test_a_name_that_nobody_has_hears_the_same(house: House) -> None:
    known = [house.try_once("ada", "wrong") for _ in range(3)]
    unknown = [house.try_once("bob", "wrong", "203.0.113.9") for _ in range(3)]
    assert [answer.status_code for answer in unknown] == [answer.status_code for answer in known] == [422, 422, 429]
    assert [answer.text.replace("bob", "ada") for answer in unknown] == [answer.text for answer in known]


def test_others_are_not_kept_out_from_one_place(house: House) -> None:
    for _ in range(25):  # of which two are guesses; what is refused is none
        house.try_once("ada", "wrong")
    assert house.try_once("ada", RIGHT, "203.0.113.2").status_code == 303


def test_a_right_password_forgets_the_mistakes_before_it(house: House) -> None:
    for password in ("wrong", RIGHT, "wrong", RIGHT):
        answer = house.try_once("ada", password)
    assert answer.status_code == 303


def test_whoever_has_the_right_password_is_no_guess_however_many_share_an_address(house: House) -> None:
    for _ in range(21):
        assert house.try_once("ada", RIGHT).status_code == 303
    guesses = house.app.state.guesses
    for n in range(19):
        assert guesses.begin(f"name {n}", "203.0.113.1") == 0
    assert house.try_once("ada", RIGHT).status_code == 303  # for the twentieth time from there it is looked at, too
    assert guesses.begin("name 19", "203.0.113.1") == 0
    assert house.try_once("ada", RIGHT).status_code == 429


def test_many_at_once_are_looked_at_no_more_often_than_one_after_another(house: House) -> None:
    """All of them have begun before the first is found to be right or wrong."""
    guesses = house.app.state.guesses
    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(lambda _: guesses.begin("ada", "203.0.113.1"), range(40)))
    assert waits.count(0) == 2
    guesses.right("ada", "203.0.113.1")
    assert [guesses.begin("ada", "203.0.113.1") > 0 for _ in range(3)] == [False, False, True]


def test_one_place_cannot_try_many_names(house: House) -> None:
    guesses = house.app.state.guesses
    waits = [guesses.begin(f"name {n}", f"2001:db8::{n:x}") for n in range(21)]
    assert waits[:20] == [0] * 20
    assert waits[20] > 0


def test_many_places_cannot_try_one_name(house: House) -> None:
    guesses = house.app.state.guesses
    waits = [guesses.begin("ADA ", f"198.51.100.{n}") for n in range(21)]
    assert waits[:20] == [0] * 20
    assert waits[20] > 0


def test_the_own_password_is_not_guessed_by_whoever_found_the_browser_open(house: House) -> None:
    client = TestClient(house.app, follow_redirects=False, headers={"Sec-Fetch-Site": "same-origin"})
    client.post("/login", data={"name": "ada", "password": RIGHT})
    form = {"old": "wrong", "new": "another horse battery", "again": "another horse battery"}
    right = form | {"old": RIGHT, "new": "short"}
    sent = [form, right, right, right, form, form, right]  # what is wrong with the new one is no guess of the old one
    statuses = [client.post("/account/password", data=one).status_code for one in sent]
    assert statuses == [422, 422, 422, 422, 422, 422, 429]
