"""Badges through the public interface: content, visibility, and keys that open nothing else."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select
from starlette.testclient import TestClient

from app.storage.database import read_session, transaction
from app.storage.tables import AuditEventRow, ProjectRow, RunRow
from tests.access.people import OURS, SAME_ORIGIN, Teams
from tests.builders import FIRST_PLACE, make_run, make_stack
from tests.reports.judged import Lab, nightly

KEY, OTHER = "1a" * 32, "2b" * 32


def test_without_log_ins_renewing_requires_a_name(client: TestClient, lab: Lab) -> None:
    shown = stack_of(lab, lab.run())
    assert client.post(f"/badges/{shown}/renew", data={"author": " "}).status_code == 422
    answer = client.post(f"/badges/{shown}/renew", data={"author": "lena"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/history/{shown}#badges")
    assert client.post(f"/badges/{'0' * 64}/renew", data={"author": "lena"}).status_code == 404


@dataclass
class Stack:
    key: str
    run: int


@pytest.fixture
def lab(client: TestClient, engine: Engine) -> Iterator[Lab]:
    with Session(engine, expire_on_commit=False) as session:
        yield Lab(session)


def words(client: TestClient, address: str) -> str:
    answer = client.get(address)
    assert answer.headers["content-type"] == "image/svg+xml"
    return ET.fromstring(answer.text).get("aria-label", "")  # noqa: S314


def stack_of(lab: Lab, run_id: int) -> str:
    lab.session.commit()
    return lab.session.get_one(RunRow, run_id).stack_key


def test_the_newest_verdict_of_the_baseline_branch_is_shown(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    slow = lab.run(slower=0.09)
    lab.judge(slow)
    row = lab.session.get_one(RunRow, slow)
    assert row.verdict == "regression"
    row.branch, shown = "main", stack_of(lab, slow)
    of_change = lab.run(slower=-0.2)
    lab.session.get_one(RunRow, of_change).verdict = "improvement"
    lab.session.get_one(RunRow, of_change).branch = "feature"
    lab.session.commit()
    badge = words(client, f"/badges/{shown}/verdict.svg")
    assert badge == f"threewalls: regression: step time +{row.verdict_delta_pct:.1f} %"


def test_a_regression_of_memory_tells_its_own_change(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_stack(session, [1000.0 + k % 3 for k in range(8)])
        [heavy] = make_stack(session, [1001.0], started=FIRST_PLACE + timedelta(days=8), peak_memory_gib=70.0)
        row = session.get_one(RunRow, heavy)
        assert row.verdict == "regression"
        shown = row.stack_key
    (run,) = (item for item in client.get("/api/v1/runs").json()["items"] if item["id"] == heavy)
    badge = words(client, f"/badges/{shown}/verdict.svg")
    assert badge == f"threewalls: regression: peak memory +{run['memory_pct']:.1f} %"


def test_a_run_that_was_left_out_is_not_shown(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    same = lab.run()
    lab.judge(same)
    shown, bad = stack_of(lab, same), lab.run()
    row = lab.session.get_one(RunRow, bad)
    row.verdict, row.quarantine = "regression", "bad node"
    lab.session.commit()
    assert "regression" not in words(client, f"/badges/{shown}/verdict.svg")


def test_the_newest_step_time_is_shown(client: TestClient, lab: Lab) -> None:
    runs = nightly(lab, 3)
    shown = stack_of(lab, runs[-1])
    newest = lab.session.get_one(RunRow, runs[-1]).step_time_ms or 0
    assert words(client, f"/badges/{shown}/step-time.svg") == f"step time: {newest:.1f} ms"


def test_a_stack_without_a_verdict_says_so_and_an_unknown_stack_is_not_found(client: TestClient, lab: Lab) -> None:
    shown = stack_of(lab, lab.run())
    assert words(client, f"/badges/{shown}/verdict.svg") == "threewalls: not judged"
    answer = client.get(f"/badges/{'0' * 64}/verdict.svg")
    assert (answer.status_code, "no such badge" in answer.text) == (404, True)


def test_it_is_kept_for_two_minutes_and_not_sent_again_when_it_is_the_same(client: TestClient, lab: Lab) -> None:
    address = f"/badges/{stack_of(lab, lab.run())}/verdict.svg"
    first = client.get(address)
    assert "max-age=120" in first.headers["cache-control"]
    assert first.headers["cross-origin-resource-policy"] == "cross-origin"
    again = client.get(address, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_of_the_stack_offers_both_as_markdown(client: TestClient, lab: Lab) -> None:
    page = client.get(f"/history/{(shown := stack_of(lab, nightly(lab)[-1]))}").text
    assert page.count(f"![Verdict](http://testserver/badges/{shown}/verdict.svg?key=") == 1
    assert page.count(f"![Step time](http://testserver/badges/{shown}/step-time.svg?key=") == 1


@pytest.fixture
def stack(teams: Teams) -> Stack:
    with transaction(teams.engine) as session:
        return Stack(KEY, make_run(session, project=OURS, stack_key=KEY))


def address_on_page(teams: Teams, stack: Stack) -> str:
    """As a viewer copies it."""
    page = teams.client("viewer").get(f"/history/{stack.key}").text
    address = urlsplit(page.split("![Verdict](")[1].split(")")[0])
    return f"{address.path}?{address.query}" if address.query else address.path


def test_a_private_badge_needs_its_key_or_a_user_who_may_read_the_project(teams: Teams, stack: Stack) -> None:
    plain, keyed = f"/badges/{stack.key}/verdict.svg", address_on_page(teams, stack)
    assert {who: teams.client(who).get(plain).status_code for who in ("anonymous", "outsider", "viewer")} == {
        "anonymous": 404, "outsider": 404, "viewer": 200,
    }  # fmt: skip
    shown = teams.client("anonymous").get(keyed)
    assert (shown.status_code, shown.headers["cache-control"]) == (200, "public, max-age=120")
    assert teams.client("anonymous").get(plain + "?key=" + "0" * 32).status_code == 404


def test_a_key_opens_the_badges_of_its_stack_and_nothing_else(teams: Teams, stack: Stack) -> None:
    with transaction(teams.engine) as session:
        make_run(session, project=OURS, stack_key=OTHER)
    query = address_on_page(teams, stack).partition("?")[2]
    anonymous = teams.client("anonymous")
    assert anonymous.get(f"/badges/{OTHER}/verdict.svg?{query}").status_code == 404
    assert anonymous.get(f"/badges/{stack.key}/step-time.svg?{query}").status_code == 200
    for path in (f"/history/{stack.key}", f"/api/v1/runs/{stack.run}", f"/runs/{stack.run}"):
        assert anonymous.get(f"{path}?{query}").status_code in (303, 401, 404), path
    assert anonymous.get(f"/api/v1/runs?{query}").status_code == 422  # no filter of runs has this name
    assert anonymous.get("/api/v1/runs").json()["total"] == 0


def test_a_public_project_needs_no_key(teams: Teams, stack: Stack) -> None:
    with transaction(teams.engine) as session:
        project = session.get_one(ProjectRow, teams.ours)
        project.public = True
    address = address_on_page(teams, stack)
    assert "key" not in address


def test_a_maintainer_ends_the_addresses_that_were_given_out(teams: Teams, stack: Stack) -> None:
    before = address_on_page(teams, stack)
    renew = f"/badges/{stack.key}/renew"
    tried = {
        who: teams.client(who).post(renew, data={}, headers=SAME_ORIGIN).status_code
        for who in ("anonymous", "outsider", "viewer", "contributor", "maintainer")
    }
    assert tried == {"anonymous": 401, "outsider": 404, "viewer": 403, "contributor": 403, "maintainer": 303}
    assert teams.client("anonymous").get(before).status_code == 404
    assert teams.client("anonymous").get(address_on_page(teams, stack)).status_code == 200
    with read_session(teams.engine) as session:
        events = [row for row in session.exec(select(AuditEventRow)) if row.action == "renew_badges"]
    assert [(row.who, row.project_id) for row in events][-1] == ("maintainer", teams.ours)
