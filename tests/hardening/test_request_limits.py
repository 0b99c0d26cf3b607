"""How often somebody may ask, in memory and in Redis."""

from collections.abc import Iterator

import pytest
from limits import RateLimitItemPerMinute
from starlette.testclient import TestClient

from app.access.limits import Counting, RequestLimits, network_of
from app.main import create_app
from app.settings import Settings
from tests.access.people import Teams, make_teams
from tests.services.redis_server import free_port

FEW = {"requests_per_minute": 3, "uploads_per_minute": 1}
READ = "/api/v1/projects/alpha/defaults"


@pytest.fixture
def few(settings: Settings) -> Iterator[Teams]:
    app = create_app(settings.model_copy(update=FEW))
    yield make_teams(app)
    app.state.engine.dispose()


def test_a_token_hears_when_to_come_back(few: Teams) -> None:
    client = few.client("token:read")
    answers = [client.get(READ) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[-1].headers["Content-Type"] == "application/problem+json"
    assert 0 < int(answers[-1].headers["Retry-After"]) <= 60
    assert "3 requests per minute" in answers[-1].json()["detail"]
    assert few.client("token:all").get(READ).status_code == 200  # another token of the same place


def test_a_person_counts_once_in_however_many_browsers(few: Teams) -> None:
    statuses = [few.client("viewer").get(READ).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]


def test_wrong_tokens_count_for_the_address_and_right_ones_do_not(few: Teams) -> None:
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


def test_a_service_without_log_ins_counts_nobody(settings: Settings) -> None:
    app = create_app(settings.model_copy(update=FEW), open_to=("testserver",))
    client = TestClient(app)
    assert {client.get("/api/v1/runs").status_code for _ in range(9)} == {200}
    app.state.engine.dispose()


def test_zero_is_no_limit(settings: Settings) -> None:
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
def test_an_address_is_counted_by_what_one_client_can_have(address: str, network: str) -> None:
    assert network_of(address) == network


def test_processes_count_together_in_redis(settings: Settings, redis_server: str) -> None:
    limit = RateLimitItemPerMinute(2)
    scaled = settings.model_copy(update={"broker_url": redis_server})
    one, other = Counting(scaled), Counting(scaled)
    assert [one.hit(limit, "a"), other.hit(limit, "a")] == [0, 0]
    assert 0 < one.hit(limit, "a") <= 60
    assert other.hit(limit, "b") == 0
    other.forget(limit, "a")
    assert one.hit(limit, "a") == 0


def test_without_redis_each_process_counts_for_itself(settings: Settings) -> None:
    limit = RateLimitItemPerMinute(1)
    alone = Counting(settings.model_copy(update={"broker_url": f"redis://127.0.0.1:{free_port()}/0"}))
    assert alone.waits
    assert alone.hit(limit, "a") == 0
    assert alone.hit(limit, "a") > 0
