"""A receiver is told in the order in which things happened, also when it was away meanwhile."""

import json

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.domain.notifications.messages import ATTEMPTS
from app.settings import Settings
from app.storage.database import transaction
from app.storage.tables import DeliveryRow
from tests.notifications.receiving import Receiver
from tests.notifications.sent import (
    API,
    a_day_later,
    add,
    deliveries,
    later,
    listen,
    project,
    put_news,
    put_trial,
    states,
    work_off,
)


def told(engine: Engine, receiver_id: int, *events: str, number: int = 7) -> list[int]:
    with transaction(engine) as session:
        return [put_news(session, receiver_id, event, number) for event in events]


def heard(receiver: Receiver) -> list[str]:
    return [json.loads(one.body)["type"].partition(".")[2] for one in receiver.got]


def test_what_waits_is_not_overtaken_by_what_came_after_it(
    engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    one = listen(engine, receiver.address)
    receiver.answers = [500]
    told(engine, one, "fixed")
    assert work_off(engine, settings) == [False]
    # News of the same are a reason to try again, the older first. Those of another regression are nobody's business.
    told(engine, one, "reopened")
    told(engine, one, "opened", number=8)
    assert work_off(engine, settings) == [True, True]
    assert work_off(engine, settings) == [True]
    assert heard(receiver) == ["fixed", "fixed", "opened", "reopened"]
    assert {state for _, state, _ in states(engine)} == {"delivered"}


def test_what_was_given_up_stands_in_nobody_s_way(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    one = listen(engine, receiver.address)
    receiver.answers = [410]
    told(engine, one, "opened", "fixed")
    assert work_off(engine, settings) == [False]
    assert work_off(engine, settings) == [True]
    assert heard(receiver) == ["opened", "fixed"]


def test_all_that_waits_goes_when_the_receiver_is_back(engine: Engine, settings: Settings, receiver: Receiver) -> None:
    one = listen(engine, receiver.address)
    receiver.answers = [500, 500]
    told(engine, one, "opened")
    work_off(engine, settings)
    told(engine, one, "opened", number=8)  # finds out for itself, and so does not wait
    work_off(engine, settings)
    assert work_off(engine, settings) == []
    with transaction(engine) as session:
        put_trial(session, one)
    assert work_off(engine, settings) == [True]
    assert work_off(engine, settings) == [True, True]


def test_a_message_that_is_not_taken_keeps_no_other_waiting(
    engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    one = listen(engine, receiver.address)
    receiver.answers = [400, 200, 400]
    told(engine, one, "opened")
    work_off(engine, settings)
    told(engine, one, "opened", number=8)
    assert work_off(engine, settings) == [True]
    told(engine, one, "opened", number=9)
    # The receiver took one meanwhile, so that it refuses the first says nothing of the third.
    assert work_off(engine, settings) == [False, True]


def test_a_message_that_is_refused_again_and_again_is_not_tried_with_every_other(
    engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    one = listen(engine, receiver.address)
    receiver.refuses = b'"id":7,'
    told(engine, one, "opened")
    for number in range(ATTEMPTS + 4):
        told(engine, one, "opened", number=100 + number)
        while work_off(engine, settings):
            pass
    bad, *others = deliveries(engine)
    assert (bad.state, bad.attempts) == ("waiting", ATTEMPTS)
    assert {(other.state, other.attempts) for other in others} <= {("delivered", 1)}
    a_day_later(engine)
    later(engine)
    assert work_off(engine, settings) == [False]
    assert deliveries(engine)[0].state == "failed"


def test_what_waits_is_sent_now_when_somebody_asks(
    client: TestClient, engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    project(engine)
    one = add(client, receiver.address)["id"]
    receiver.answers = [500]
    first, second = told(engine, one, "fixed", "reopened")
    work_off(engine, settings)
    assert work_off(engine, settings) == []
    listed = {entry["id"]: entry for entry in client.get(f"{API}/deliveries").json()["items"]}
    assert (listed[first]["behind"], listed[second]["behind"]) == (None, first)
    page = client.get(f"/settings/projects/moe-lab/notifications/{one}").text
    assert f"after #{first}" in page
    assert page.count("Send now") == 2
    # What goes first is tried with it, or nothing would happen.
    answer = client.post(f"{API}/deliveries/{second}/replay", json={"author": "Ada"})
    assert (answer.status_code, answer.json()) == (202, {"delivery": second})
    assert deliveries(engine)[0].work == "rung"
    later(engine)
    assert work_off(engine, settings) == [True]
    assert work_off(engine, settings) == [True]
    assert heard(receiver) == ["fixed", "fixed", "reopened"]


@pytest.mark.parametrize("settled_by", ["replay", "dismiss"])
def test_what_was_given_up_is_sent_again_as_a_whole_or_dismissed(
    client: TestClient, engine: Engine, settings: Settings, receiver: Receiver, settled_by: str
) -> None:
    project(engine)
    one = add(client, receiver.address)["id"]
    receiver.answers = [410, 410, 410]
    given_up = told(engine, one, "opened", "recovered", "fixed")
    with transaction(engine) as session:
        session.add(DeliveryRow(receiver_id=one, event="test", cause="old", state="failed", work="", payload={"v": 0}))
    for _ in given_up:
        work_off(engine, settings)
    at = "/settings/projects/moe-lab/notifications"
    assert client.get(f"{API}/receivers/{one}").json()["failed"] == 4
    assert "4 messages were not delivered" in client.get(f"{at}/{one}").text
    answer = client.post(f"{API}/receivers/{one}/{settled_by}", json={"author": "Ada"})
    if settled_by == "replay":
        made = answer.json()["deliveries"]
        for _ in given_up:
            assert work_off(engine, settings) == [True]
        assert heard(receiver)[3:] == ["opened", "recovered", "fixed"]
        assert [row.replay_of for row in deliveries(engine) if row.id in made] == given_up
        # What this version cannot read is left, and says so.
        assert client.get(f"{API}/receivers/{one}").json()["failed"] == 1
        bad = client.post(f"{API}/deliveries/{given_up[-1] + 1}/replay", json={"author": "Ada"})
        assert (bad.status_code, "another version stored it" in bad.text) == (422, True)
        assert "Dismissed." in client.post(f"{at}/{one}/dismiss", data={"author": "Ada"}).text
    else:
        assert answer.json() == {"dismissed": 4}
        assert "Queued." in client.post(f"{at}/{one}/replay", data={"author": "Ada"}).text  # there is none left
        assert len(deliveries(engine)) == 4
    assert client.get(f"{API}/receivers/{one}").json()["failed"] == 0
    assert "not delivered" not in client.get(at).text


def test_what_cannot_be_read_any_more_is_given_up_with_its_reason(
    engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    one = listen(engine, receiver.address)
    with transaction(engine) as session:
        session.add(DeliveryRow(receiver_id=one, event="test", cause="old", payload={"title": "of version 0"}))
    assert work_off(engine, settings) == [False]
    (row,) = deliveries(engine)
    assert (row.state, row.error) == ("failed", "The stored message cannot be read.")
    assert receiver.got == []
