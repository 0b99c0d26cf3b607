"""Limits: requests, password guesses, concurrent log-ins."""

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from anyio import to_thread
from httpx2 import Response
from limits import RateLimitItemPerMinute
from starlette.testclient import TestClient

from app.access.limits import Counting, RequestLimits, network_of
from app.main import create_app
from app.settings import Settings
from app.storage import users
from app.storage.database import transaction
from tests.access.people import SAME_ORIGIN, Teams, make_teams
from tests.services.redis_server import free_port

FEW = {"requests_per_minute": 3, "uploads_per_minute": 1}
READ = "/api/v1/projects/alpha/defaults"


@pytest.fixture
def few(settings: Settings) -> Iterator[Teams]:
    app = create_app(settings.model_copy(update=FEW))
    yield make_teams(app)
    app.state.engine.dispose()


def test_a_token_learns_when_to_retry(few: Teams) -> None:
    client = few.client("token:read")
    answers = [client.get(READ) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].headers["Content-Type"] == "application/problem+json"
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 60
    assert "3 requests per minute" in answers[-1].json()["detail"]
    assert few.client("token:all").get(READ).status_code == 200  # another token of the same place


def test_a_user_counts_once_across_browsers(few: Teams) -> None:
    statuses = [few.client("viewer").get(READ).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]


def test_invalid_tokens_count_for_the_address_and_valid_ones_do_not(few: Teams) -> None:
    nobody = few.client("anonymous")
    statuses = [nobody.get(READ, headers={"Authorization": f"Bearer tw_{n:043d}"}).status_code for n in range(4)]
    assert statuses == [401, 401, 401, 429]
    assert few.client("token:read").get(READ).status_code == 200


def test_uploads_have_their_own_limit_before_a_byte_is_read(few: Teams) -> None:
    client = few.client("token:upload")

    def body() -> Iterator[bytes]:
        yield b"x"
        raise AssertionError("the body is read")

    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert client.post("/api/v1/runs", content=b"--b--\r\n", headers=headers).status_code == 422
    answer = client.post("/api/v1/runs", content=b"--b--\r\n", headers=headers)
    assert answer.status_code == 429
    assert "1 uploads per minute" in answer.json()["detail"]
    assert client.get(READ).status_code == 403


def test_files_of_pages_and_health_are_not_counted(few: Teams) -> None:
    client = few.client("anonymous")
    assert {client.get("/healthz").status_code for _ in range(9)} == {200}


def test_a_service_without_log_ins_has_no_rate_limits(settings: Settings) -> None:
    app = create_app(settings.model_copy(update=FEW), open_to=("testserver",))
    client = TestClient(app)
    assert {client.get("/api/v1/runs").status_code for _ in range(9)} == {200}
    app.state.engine.dispose()


def test_zero_is_not_a_limit(settings: Settings) -> None:
    limits = RequestLimits(settings.model_copy(update={"requests_per_minute": 0}), Counting(settings))
    assert limits._requests is None


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_ipv6_addresses_are_counted_by_network(address: str, network: str) -> None:
    assert network_of(address) == network


def test_processes_count_together_in_redis(settings: Settings, redis_server: str) -> None:
    limit = RateLimitItemPerMinute(2)
    scaled = settings.model_copy(update={"broker_url": redis_server})
    first, other = Counting(scaled), Counting(scaled)
    assert [first.hit(limit, "a"), other.hit(limit, "a")] == [0, 0]
    assert 0 < first.hit(limit, "a") <= 60
    assert other.hit(limit, "b") == 0
    other.forget(limit, "a")
    assert first.hit(limit, "a") == 0


def test_without_redis_each_process_counts_for_itself(settings: Settings) -> None:
    limit = RateLimitItemPerMinute(1)
    alone = Counting(settings.model_copy(update={"broker_url": f"redis://127.0.0.1:{free_port()}/0"}))
    assert alone.waits
    assert alone.hit(limit, "a") == 0
    assert alone.hit(limit, "a") > 0


RIGHT = "correct horse battery"


class House:
    """A service with one user, and clients at any address."""

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


def test_after_too_many_wrong_passwords_the_right_one_is_refused_as_well(house: House) -> None:
    assert [house.try_once("ada", "wrong").status_code for _ in range(2)] == [422, 422]
    answer = house.try_once("ada", RIGHT)
    assert answer.status_code == 429
    assert 0 < int(answer.headers["Retry-After"]) <= 600
    assert "Try again in 10 minutes" in answer.text
    assert "set-cookie" not in answer.headers


def test_an_unknown_name_gets_the_same_answer(house: House) -> None:
    existing = [house.try_once("ada", "wrong") for _ in range(3)]
    unknown = [house.try_once("bob", "wrong", "203.0.113.9") for _ in range(3)]
    assert [answer.status_code for answer in unknown] == [answer.status_code for answer in existing] == [422, 422, 429]
    assert [re.sub(r"\bbob\b", "ada", answer.text) for answer in unknown] == [answer.text for answer in existing]


def test_one_address_cannot_lock_out_others(house: House) -> None:
    for _ in range(25):  # of which two are guesses; a refused one does not count
        house.try_once("ada", "wrong")
    assert house.try_once("ada", RIGHT, "203.0.113.2").status_code == 303


def test_a_right_password_forgets_the_mistakes_before_it(house: House) -> None:
    for password in ("wrong", RIGHT, "wrong", RIGHT):
        answer = house.try_once("ada", password)
    assert answer.status_code == 303


def test_right_passwords_do_not_count_as_guesses_even_at_a_shared_address(house: House) -> None:
    for _ in range(21):
        assert house.try_once("ada", RIGHT).status_code == 303
    guesses = house.app.state.guesses
    for n in range(19):
        assert guesses.begin(f"name {n}", "203.0.113.1") == 0
    assert house.try_once("ada", RIGHT).status_code == 303  # the twentieth attempt from there is checked as well
    assert guesses.begin("name 19", "203.0.113.1") == 0
    assert house.try_once("ada", RIGHT).status_code == 429


def test_parallel_attempts_are_not_checked_more_often_than_sequential_ones(house: House) -> None:
    """All of them started before the first was checked."""
    guesses = house.app.state.guesses
    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(lambda _: guesses.begin("ada", "203.0.113.1"), range(40)))
    assert waits.count(0) == 2
    guesses.right("ada", "203.0.113.1")
    assert [guesses.begin("ada", "203.0.113.1") > 0 for _ in range(3)] == [False, False, True]


def test_one_address_cannot_guess_many_users(house: House) -> None:
    guesses = house.app.state.guesses
    waits = [guesses.begin(f"name {n}", f"2001:db8::{n:x}") for n in range(21)]
    assert waits[:20] == [0] * 20
    assert waits[20] > 0


def test_many_addresses_cannot_guess_one_user(house: House) -> None:
    guesses = house.app.state.guesses
    waits = [guesses.begin("ADA ", f"198.51.100.{n}") for n in range(21)]
    assert waits[:20] == [0] * 20
    assert waits[20] > 0


def test_an_open_browser_does_not_allow_guessing_the_password(house: House) -> None:
    client = TestClient(house.app, follow_redirects=False, headers={"Sec-Fetch-Site": "same-origin"})
    client.post("/login", data={"name": "ada", "password": RIGHT})
    form = {"old": "wrong", "new": "another horse battery", "again": "another horse battery"}
    right = form | {"old": RIGHT, "new": "short"}
    sent = [form, right, right, right, form, form, right]  # an invalid new password is not a guess of the old one
    statuses = [client.post("/account/password", data=item).status_code for item in sent]
    assert statuses == [422, 422, 422, 422, 422, 422, 429]


THREADS = 3
LOG_INS = 12  # more than the threads that requests share


def test_readers_do_not_wait_for_log_ins(teams: Teams, settings: Settings) -> None:
    teams.app.state.settings = settings.model_copy(update={"password_memory_mib": 64})  # as expensive as it comes

    async def waiting_once_it_was_read() -> int:
        to_thread.current_default_thread_limiter().total_tokens = THREADS
        transport = httpx2.ASGITransport(teams.app, client=("192.0.2.7", 4711))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            token = {"Authorization": f"Bearer {teams.tokens['token:read']}"}
            await client.get("/api/v1/runs", headers=token)  # which is determined only once
            log_ins = [
                asyncio.create_task(
                    client.post(
                        "/login", data={"name": f"somebody-{n}", "password": "wrong horse"}, headers=SAME_ORIGIN
                    )
                )
                for n in range(LOG_INS)
            ]
            await asyncio.wait(log_ins, return_when=asyncio.FIRST_COMPLETED)
            read = await client.get("/api/v1/runs", headers=token)
            waiting = sum(not item.done() for item in log_ins)
            answers = await asyncio.gather(*log_ins)
        assert read.status_code == 200
        assert {answer.status_code for answer in answers} == {422}
        return waiting

    assert asyncio.run(waiting_once_it_was_read()) > THREADS
