"""What the check of a request answers, before any handler does."""

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from app.domain.access.principal import Role, Scope
from app.domain.references.published import published
from app.storage import tokens, users
from app.storage.database import transaction
from app.storage.json_text import to_json
from app.storage.tables import ReferencePointRow, utc_now
from tests.access.belongings import make_belongings
from tests.access.people import THEIRS, Teams
from tests.builders import make_run

PAGE = {"Accept": "text/html"}


def test_nobody_is_asked_to_log_in_and_comes_back_to_the_page(teams: Teams) -> None:
    answer = teams.client("anonymous").get("/runs/7?x=1", headers=PAGE)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login?next=%2Fruns%2F7%3Fx%3D1")


def test_a_machine_hears_401_and_how_to_say_who_it_is(teams: Teams) -> None:
    answer = teams.client("anonymous").get("/api/v1/projects/alpha/defaults")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_a_part_of_a_page_sends_the_browser_to_the_log_in(teams: Teams) -> None:
    headers = PAGE | {"HX-Request": "true", "HX-Current-URL": "http://testserver/runs/1?q=a"}
    answer = teams.client("anonymous").get("/runs/1/chart", headers=headers)
    assert (answer.status_code, answer.headers["HX-Redirect"]) == (401, "/login?next=%2Fruns%2F1%3Fq%3Da")


@pytest.mark.parametrize("who", ["anonymous", "outsider"])
def test_what_one_may_not_see_looks_like_what_there_is_not(teams: Teams, who: str) -> None:
    with transaction(teams.engine) as session:
        run = make_run(session, project="alpha")
    client = teams.client(who)
    seen, missing = client.get(f"/api/v1/runs/{run}"), client.get("/api/v1/runs/99")
    assert seen.status_code == missing.status_code == (401 if who == "anonymous" else 404)
    assert seen.text.replace(f"run {run}", "run N") == missing.text.replace("run 99", "run N")


def test_who_may_read_but_not_write_hears_which_role_is_missing(teams: Teams) -> None:
    answer = teams.client("viewer").put("/api/v1/projects/alpha/defaults", json={"fields": {}, "author": "me"})
    assert answer.status_code == 403
    assert "maintainer" in answer.json()["detail"]


def test_a_token_hears_which_scope_is_missing(teams: Teams) -> None:
    answer = teams.client("token:upload").get("/api/v1/projects/alpha/defaults")
    assert answer.status_code == 403
    assert "needs read" in answer.json()["detail"]


@pytest.mark.parametrize("token", ["tw_" + "a" * 43, "nonsense", ""])
def test_a_wrong_token_is_refused_also_where_nobody_needs_one(teams: Teams, token: str) -> None:
    client = teams.client("anonymous")
    assert client.get("/docs", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_a_revoked_token_opens_nothing_at_once(teams: Teams) -> None:
    client = teams.client("token:read")
    assert client.get("/api/v1/projects/alpha/defaults").status_code == 200
    with transaction(teams.engine) as session:
        row = next(row for row in tokens.tokens_of(session, teams.ours, first=0, limit=100) if row.name == "token:read")
        tokens.revoke_token(session, row.id or 0, by="test")
    assert client.get("/api/v1/projects/alpha/defaults").status_code == 401


def test_an_expired_token_opens_nothing(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        row, token = tokens.make_token(session, project_id=teams.ours, name="old", scopes=[Scope.READ], by="test")
        row.expires_at = utc_now()
    answer = teams.client("anonymous").get(
        "/api/v1/projects/alpha/defaults", headers={"Authorization": f"Bearer {token}"}
    )
    assert answer.status_code == 401


def test_who_is_disabled_or_no_member_any_more_is_out_at_once(teams: Teams) -> None:
    maintainer, viewer = teams.client("maintainer"), teams.client("viewer")
    assert (
        maintainer.get("/settings/projects/alpha").status_code
        == viewer.get("/settings/projects/alpha").status_code
        == 200
    )
    with transaction(teams.engine) as session:
        users.disable(session, users.get_user(session, teams.users["maintainer"]), by="test")
        users.set_role(session, project_id=teams.ours, user_id=teams.users["viewer"], role=None, by="test")
    assert maintainer.get("/settings/projects/alpha", headers=PAGE).status_code == 303
    assert viewer.get("/settings/projects/alpha", headers=PAGE).status_code == 404


def test_a_new_role_counts_at_once(teams: Teams) -> None:
    outsider = teams.client("outsider")
    assert outsider.get("/settings/projects/alpha").status_code == 404
    with transaction(teams.engine) as session:
        users.set_role(session, project_id=teams.ours, user_id=teams.users["outsider"], role=Role.VIEWER, by="test")
    assert outsider.get("/settings/projects/alpha").status_code == 200


def test_a_public_project_is_read_by_anybody_and_written_by_nobody_else(teams: Teams) -> None:
    nobody = teams.client("anonymous")
    assert nobody.get("/api/v1/projects/window/defaults").status_code == 200
    assert nobody.put("/api/v1/projects/window/defaults", json={}).status_code == 401
    assert teams.client("outsider").put("/api/v1/projects/window/defaults", json={}).status_code == 403


def test_a_browser_that_is_logged_in_must_say_whose_page_writes(teams: Teams) -> None:
    client = teams.client("maintainer")
    assert client.post("/logout").status_code == 303
    client = teams.client("maintainer")
    del client.headers["Sec-Fetch-Site"]
    assert client.post("/settings/projects/alpha", data={}).status_code == 403
    assert client.post("/settings/projects/alpha", data={}, headers={"Origin": "http://testserver"}).status_code == 422


def test_whoever_must_change_the_password_does_so_first(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        users.get_user(session, teams.users["viewer"]).must_change_password = True
    client = teams.client("viewer")
    assert client.get("/runs?q=a", headers=PAGE).headers["Location"] == "/account/password?next=%2Fruns%3Fq%3Da"
    assert client.get("/api/v1/runs").status_code == 403
    assert client.get("/account/password").status_code == 200


@pytest.mark.parametrize(
    ("who", "status"), [("anonymous", 401), ("maintainer", 403), ("token:all", 403), ("administrator", 200)]
)
def test_the_totals_of_all_projects_are_an_administrators(teams: Teams, who: str, status: int) -> None:
    assert teams.client(who).get("/metrics").status_code == status


def test_answers_to_somebody_are_kept_by_no_shared_cache(teams: Teams) -> None:
    headers = teams.client("viewer").get("/runs").headers
    assert headers["Cache-Control"] in ("private, no-cache", "no-store")
    assert "Cookie, Authorization" in headers["Vary"]


def test_without_log_ins_only_this_machine_is_answered(client: TestClient) -> None:
    assert client.get("/runs").status_code == 200
    for host in ("localhost:8000", "127.0.0.1", "[::1]:8000"):
        assert client.get("/runs", headers={"Host": host}).status_code == 200
    answer = client.get("/runs", headers={"Host": "evil.example"})
    assert answer.status_code == 403
    assert "threewalls admin create" in answer.text


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "Via", "X-Real-IP"])
def test_without_log_ins_nobody_is_answered_through_a_proxy(client: TestClient, header: str) -> None:
    answer = client.get("/api/v1/projects", headers={header: "203.0.113.66"})
    assert answer.status_code == 403
    assert "threewalls admin create" in answer.json()["detail"]


def test_the_first_administrator_ends_the_time_without_log_ins(client: TestClient) -> None:
    assert "Local mode, no accounts" in client.get("/").text
    with transaction(client.app.state.engine) as session:  # type: ignore[attr-defined]
        users.create_user(session, "root", by="test", administrator=True)
    assert client.get("/", headers=PAGE, follow_redirects=False).status_code == 303


@pytest.mark.parametrize("spelled", ["{}", "%2B{}", "{}.0", "%20{}", "0{}"])
@pytest.mark.parametrize("address", ["/api/v1/runs/{}/facts", "/api/v1/regressions/{}", "/api/v1/references/{}"])
def test_a_number_spelled_otherwise_is_the_same_thing(teams: Teams, address: str, spelled: str) -> None:
    with transaction(teams.engine) as session:
        theirs = make_belongings(session, THEIRS)
    number = {"runs": theirs.run, "regressions": theirs.regression}.get(address.split("/")[3], theirs.reference)
    answer = teams.client("token:all").patch(address.format(spelled.format(number)), json={})
    assert answer.status_code == 404


@pytest.mark.parametrize("spelled", ["{}", "%2B{}", "{}.0"])
def test_a_figure_for_all_is_withdrawn_by_administrators_only(teams: Teams, spelled: str) -> None:
    number = _figure(teams, None)
    assert teams.client("token:all").delete(f"/api/v1/references/{spelled.format(number)}").status_code == 403


def test_a_figure_that_is_offered_to_all_is_its_team_s_no_more(teams: Teams) -> None:
    number, team = _figure(teams, teams.ours), teams.client("contributor")
    assert team.patch(f"/api/v1/references/{number}", json={}).status_code == 200
    with transaction(teams.engine) as session:
        row = session.get_one(ReferencePointRow, number)
        row.project_id = None
        session.add(row)
    assert team.patch(f"/api/v1/references/{number}", json={}).status_code == 403


def _figure(teams: Teams, project: int | None) -> int:
    with transaction(teams.engine) as session:
        point = replace(published()[0], measured_by="a lab", source="a slide")
        row = ReferencePointRow(project_id=project, point=to_json(point), added_by="somebody")
        session.add(row)
        session.flush()
        return row.id or 0
