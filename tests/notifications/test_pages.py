"""Receivers in the browser: added, paused, tested, deleted; hostile names; what contributors see."""

import re

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.settings import Settings
from app.storage.database import transaction
from tests.notifications.receiving import Receiver
from tests.notifications.sent import PROJECT, deliveries, listen, project, put_trial, work_off

AT = f"/settings/projects/{PROJECT}/notifications"
FORM = {
    "name": "ops",
    "kind": "webhook",
    "target": "https://ci.example/hook",
    "events": ["run.failed"],
    "author": "Ada",
}


@pytest.fixture(autouse=True)
def _project(engine: Engine) -> None:
    project(engine)


def test_a_receiver_is_added_and_its_secret_shown_once(client: TestClient) -> None:
    assert "No receivers yet" in client.get(AT).text
    added = client.post(AT, data=FORM)
    assert added.status_code == 200
    assert added.headers["Cache-Control"] == "no-store"
    (secret,) = re.findall(r"whsec_[A-Za-z0-9+/=]{44}", added.text)
    assert secret not in client.get(f"{AT}/1").text
    assert "1 receiver gets notifications" in client.get(AT).text


def test_a_form_that_is_wrong_keeps_what_was_typed(client: TestClient) -> None:
    answer = client.post(AT, data=FORM | {"target": "http://10.0.0.1/", "stacks": "zz"})
    assert answer.status_code == 422
    assert 'value="http://10.0.0.1/"' in answer.text
    assert "is not an address of the public internet" in answer.text
    assert "is not the key of a stack" in answer.text


def test_a_receiver_is_changed_paused_tested_and_deleted(
    client: TestClient, engine: Engine, settings: Settings, receiver: Receiver
) -> None:
    client.post(AT, data=FORM | {"target": receiver.address})
    saved = client.post(f"{AT}/1", data=FORM | {"target": "", "name": "night watch"})
    assert "Saved." in saved.text
    assert "night watch" in saved.text
    assert "It gets no notifications" in client.post(f"{AT}/1/pause", data={"author": ""}).text
    assert "Resumed." in client.post(f"{AT}/1/resume", data={}).text
    assert "is queued" in client.post(f"{AT}/1/test", data={"author": "Ada"}).text
    assert work_off(engine, settings) == [True]
    page = client.get(f"{AT}/1").text
    assert "HTTP 200" in page
    assert "Test message for night watch" in page
    assert "Queued." in client.post(f"{AT}/deliveries/1/replay", data={"author": "Ada"}).text
    assert [one.replay_of for one in deliveries(engine)] == [None, 1]
    assert re.findall(r"whsec_\S{44}", client.post(f"{AT}/1/secret", data={"author": "Ada"}).text)
    assert "Deleted with its log" in client.post(f"{AT}/1/delete", data={"author": "Ada"}).text
    assert client.get(f"{AT}/1").status_code == 404


def test_names_and_errors_are_text_on_the_page(client: TestClient, engine: Engine) -> None:
    hostile = "<script>alert(1)</script>"
    client.post(AT, data=FORM | {"name": hostile})
    client.post(f"{AT}/1/test", data={"author": hostile})
    for page in (AT, f"{AT}/1", f"{AT}?state=waiting"):
        text = client.get(page).text
        assert hostile not in text
        assert "&lt;script&gt;" in text


def test_the_log_pages(client: TestClient, engine: Engine) -> None:
    receiver_id = listen(engine, "https://ci.example/", "run.failed")
    with transaction(engine) as session:
        for number in range(30):
            put_trial(session, receiver_id, f"test:{number}")
    assert "1–25 of 30" in client.get(AT).text
    assert "26–30 of 30" in client.get(f"{AT}?page=2").text
    assert "past the end" in client.get(f"{AT}/{receiver_id}?page=9").text
    assert "Show all" in client.get(f"{AT}?state=failed").text
    assert client.get(f"{AT}?state=lost").status_code == 422


def test_the_settings_of_the_project_lead_there(client: TestClient) -> None:
    assert f'href="{AT}"' in client.get(f"/settings/projects/{PROJECT}").text
