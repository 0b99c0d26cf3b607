"""Which answers are asked for again, after how long, and what is told of the others. The server is a real one."""

from datetime import UTC, datetime

import pytest

from app.client.errors import Refused, Unreachable, UsageError
from app.client.service import ClientSettings, Service, pauses, read_settings, retry_after_seconds
from tests.client.answering import Answer, Answering, answering

TOKEN = "tw_" + "s3cret" * 7
FINE = Answer(200, {"fine": True})


def asked(house: Answering, retries: int = 3, token: str = "") -> tuple[object, list[float], list[str]]:
    """What came of it, the pauses that were made, and what was told meanwhile."""
    slept: list[float] = []
    told: list[str] = []
    settings = ClientSettings(house.url, token=token, retries=retries)
    with Service(settings, say=told.append, sleep=slept.append) as service:
        try:
            return service.get("/api/v1/runs").json(), slept, told
        except (Refused, Unreachable) as error:
            return error, slept, told


@pytest.mark.parametrize("first", [Answer(503), Answer(500), Answer(502), Answer(0)], ids=lambda one: str(one.status))
def test_what_may_pass_is_tried_again(first: Answer) -> None:
    with answering(first, first, FINE) as house:
        found, slept, told = asked(house)
    assert found == {"fine": True}
    assert len(slept) == len(told) == 2
    assert 0.5 <= slept[0] <= 1 <= slept[1] <= 2


def test_retry_after_is_obeyed() -> None:
    with answering(Answer(429, headers={"Retry-After": "7"}), FINE) as house:
        found, slept, _ = asked(house)
    assert (found, slept) == ({"fine": True}, [7.0])


def test_a_service_that_asks_for_an_hour_is_away() -> None:
    with answering(Answer(503, headers={"Retry-After": "3600"})) as house:
        found, slept, _ = asked(house)
    assert isinstance(found, Unreachable)
    assert slept == []


def test_after_all_attempts_it_is_unreachable() -> None:
    with answering(Answer(503, {"detail": "The disk is full."})) as house:
        found, slept, _ = asked(house, retries=2)
        assert len(house.asked) == 3
    assert isinstance(found, Unreachable)
    assert "The disk is full." in found.detail
    assert len(slept) == 2


def test_a_refusal_is_told_and_not_repeated() -> None:
    body = {"detail": "No \x1b[31mred.", "errors": [{"field": "meta.gpus", "message": "a number"}], "offset": 5}
    with answering(Answer(409, body)) as house:
        found, slept, _ = asked(house)
    assert isinstance(found, Refused)
    assert (found.status, found.offset, slept) == (409, 5, [])
    assert "\x1b" not in found.detail
    assert found.errors[0].field == "meta.gpus"


def test_no_redirect_is_followed_with_the_token() -> None:
    with answering(FINE) as other, answering(Answer(302, headers={"Location": other.url})) as house:
        found, _, _ = asked(house, token=TOKEN)
        assert isinstance(found, Refused)
        assert other.asked == []


def test_the_token_is_sent_and_never_told() -> None:
    with answering(Answer(401, {"detail": "The token is over."})) as house:
        found, _, told = asked(house, token=TOKEN)
        assert house.asked[0][2]["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in f"{found!r} {found} {told} {ClientSettings('http://x', token=TOKEN)!r}"


def test_pauses_grow_and_differ_between_jobs() -> None:
    longest = list(pauses(7, lambda: 1.0))
    assert longest == [1, 2, 4, 8, 16, 30, 30]
    assert list(pauses(3, lambda: 0.0)) == [0.5, 1, 2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120", 120.0), ("Sat, 21 Nov 2026 04:00:30 GMT", 30.0), ("Sat, 21 Nov 2026 03:00:00 GMT", 0.0), ("soon", None)],
)
def test_retry_after_is_a_number_or_a_date(text: str, seconds: float | None) -> None:
    assert retry_after_seconds(text, datetime(2026, 11, 21, 4, 0, tzinfo=UTC)) == seconds


def test_options_win_over_variables() -> None:
    env = {"THREEWALLS_URL": "https://a.example.org/", "THREEWALLS_PROJECT": "moe", "THREEWALLS_TOKEN": f" {TOKEN}\n"}
    assert read_settings(env) == ClientSettings("https://a.example.org", "moe", TOKEN)
    assert read_settings(env, url="https://b.example.org", project="other").project == "other"


@pytest.mark.parametrize(
    "url", ["ftp://a", "a.example.org", "https://", "https://a:99999", "https://u:pw@a", "http://a?b"]
)
def test_an_address_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_settings({"THREEWALLS_URL": url})
    assert "pw" not in refused.value.detail.replace("password", "")


def test_a_token_with_a_line_break_inside_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError) as refused:
        read_settings({"THREEWALLS_TOKEN": f"{TOKEN}\nX-Other: 1"})
    assert TOKEN not in refused.value.detail
