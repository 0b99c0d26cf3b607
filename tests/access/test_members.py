"""Members of a project, its visibility, and the users of the service."""

import re

import pytest
from starlette.testclient import TestClient

from app.storage import audit, users
from app.storage.database import read_session, transaction
from tests.access.people import OURS, PUBLIC, THEIRS, Teams, new_browser

MEMBERS = f"/api/v1/projects/{OURS}/members"
MEMBERS_PAGE = f"/settings/projects/{OURS}/members"


def roles(teams: Teams) -> dict[str, str]:
    return {member["name"]: member["role"] for member in teams.client("maintainer").get(MEMBERS).json()["members"]}


def test_a_role_counts_from_the_next_request_on_and_ends_as_fast(teams: Teams) -> None:
    client, outsider = teams.client("maintainer"), teams.client("outsider")
    assert outsider.get(f"/settings/projects/{OURS}").status_code == 404
    assert client.post(MEMBERS, json={"name": "outsider", "role": "viewer"}).status_code == 200
    assert roles(teams)["outsider"] == "viewer"
    assert outsider.get(f"/settings/projects/{OURS}").status_code == 200
    assert outsider.get(MEMBERS_PAGE).status_code == 403
    client.post(MEMBERS, json={"name": "outsider", "role": "maintainer"})
    assert outsider.get(MEMBERS_PAGE).status_code == 200
    assert client.delete(f"{MEMBERS}/{teams.users['outsider']}").status_code == 204
    assert outsider.get(MEMBERS_PAGE).status_code == 404
    assert client.delete(f"{MEMBERS}/{teams.users['outsider']}").status_code == 404
    with read_session(teams.engine) as session:
        events = audit.events(session, "member", teams.users["outsider"])
    done = [
        (event.who, event.before["role"], event.after["role"]) for event in events if event.project_id == teams.ours
    ]
    assert done == [
        ("maintainer", "maintainer", None), ("maintainer", "viewer", "maintainer"), ("maintainer", None, "viewer"),
    ]  # fmt: skip


def test_the_page_adds_changes_and_removes(teams: Teams) -> None:
    client = teams.client("maintainer")
    assert client.post(MEMBERS_PAGE, data={"name": "outsider", "role": "viewer"}).status_code == 303
    assert roles(teams)["outsider"] == "viewer"
    assert client.post(f"{MEMBERS_PAGE}/{teams.users['outsider']}", data={"role": "contributor"}).status_code == 303
    assert roles(teams)["outsider"] == "contributor"
    assert client.post(f"{MEMBERS_PAGE}/{teams.users['outsider']}", data={"role": "chief"}).status_code == 422
    client.post(f"{MEMBERS_PAGE}/{teams.users['outsider']}", data={"role": "contributor", "remove": "yes"})
    assert "outsider" not in roles(teams)
    page = client.post(MEMBERS_PAGE, data={"name": "<nobody>", "role": "viewer"})
    assert (page.status_code, "user &lt;nobody&gt;" in page.text) == (422, True)


def test_users_who_give_up_their_role_are_redirected(teams: Teams) -> None:
    client, own = teams.client("maintainer"), f"{MEMBERS_PAGE}/{teams.users['maintainer']}"
    for sent in ({"role": "maintainer", "remove": "yes"}, {"role": "viewer"}):
        page = client.post(own, data=sent)
        assert (page.status_code, "last maintainer" in page.text) == (422, True)
    refused = client.post(MEMBERS, json={"name": "maintainer", "role": "contributor"})
    assert (refused.status_code, "ask an administrator" in refused.json()["detail"]) == (422, True)
    assert client.delete(f"{MEMBERS}/{teams.users['maintainer']}").status_code == 422
    client.post(MEMBERS, json={"name": "outsider", "role": "maintainer"})
    answer = client.post(own, data={"role": "maintainer", "remove": "yes"})
    assert answer.headers["Location"] == "/settings/projects"
    last = f"{MEMBERS_PAGE}/{teams.users['outsider']}"
    assert teams.client("administrator").post(last, data={"remove": "yes"}).status_code == 303
    assert OURS not in client.get("/settings/projects").text


def test_making_a_project_public_is_confirmed_recorded_and_reversible(teams: Teams) -> None:
    client, anonymous = teams.client("maintainer"), teams.client("anonymous")
    run_list = f"/api/v1/projects/{OURS}/rules"
    assert "without a log-in" in client.get(MEMBERS_PAGE).text
    client.post(f"/settings/projects/{OURS}/public", data={})  # the box was not ticked
    assert anonymous.get(run_list).status_code == 401
    client.post(f"/settings/projects/{OURS}/public", data={"public": "yes"})
    assert anonymous.get(run_list).status_code == 200
    assert "This project is public" in client.get(MEMBERS_PAGE).text
    client.post(f"/settings/projects/{OURS}/public", data={})
    assert anonymous.get(run_list).status_code == 401
    assert client.patch(f"/api/v1/projects/{OURS}", json={"public": True}).json()["public"] is True
    with read_session(teams.engine) as session:
        done = [(event.action, event.after) for event in audit.events(session, "project", teams.ours)]
    assert done == [("public", {"public": True}), ("public", {"public": False}), ("public", {"public": True})]


def test_users_see_their_projects_and_counts_only_as_maintainer(teams: Teams) -> None:
    def listed(who: str) -> dict[str, tuple[str | None, int | None]]:
        items = teams.client(who).get("/api/v1/projects").json()["items"]
        return {item["project"]: (item["role"], item["tokens"]) for item in items}

    assert listed("anonymous") == {PUBLIC: (None, None)}
    assert listed("viewer") == {OURS: ("viewer", None), PUBLIC: (None, None)}
    assert listed("maintainer") == {OURS: ("maintainer", 4), PUBLIC: (None, None)}
    assert set(listed("administrator")) == {OURS, THEIRS, PUBLIC}
    assert listed("token:read") == {OURS: (None, None), PUBLIC: (None, None)}
    page = teams.client("viewer").get("/settings/projects").text
    assert THEIRS not in page
    assert "Create a project" not in page


def test_an_administrator_makes_projects(teams: Teams) -> None:
    client = teams.client("administrator")
    answer = client.post("/api/v1/projects", json={"project": "fresh"})
    assert (answer.status_code, answer.json()["role"], answer.json()["public"]) == (201, "administrator", False)
    assert client.post("/api/v1/projects", json={"project": "fresh"}).status_code == 409
    for slug in ("", "a/b", "..", "x" * 101):
        assert client.post("/api/v1/projects", json={"project": slug}).status_code == 422, slug
    assert client.post("/settings/projects", data={"slug": "second"}).headers["Location"].endswith("second/members")
    again = client.post("/settings/projects", data={"slug": "second"})
    assert (again.status_code, "Project second already exists" in again.text) == (422, True)
    assert teams.client("maintainer").post("/api/v1/projects", json={"project": "third"}).status_code == 403


def test_tokens_of_a_leaving_user_are_listed_and_revoked_on_request(teams: Teams) -> None:
    admin, maintainer = teams.client("administrator"), teams.client("maintainer")
    outsider = {"name": "outsider", "role": "maintainer"}
    maintainer.post(MEMBERS, json=outsider)
    secrets = {}
    for slug, name in ((OURS, "nightly"), (OURS, "bench"), (THEIRS, "theirs")):
        answer = teams.client("outsider").post(f"/api/v1/projects/{slug}/tokens", json={"name": name})
        secrets[name] = answer.json()["token"]

    def opens() -> list[str]:
        job = teams.client("anonymous")
        return [
            n
            for n in secrets
            if job.get("/api/v1/whoami", headers={"Authorization": f"Bearer {secrets[n]}"}).is_success
        ]

    listed = next(member for member in maintainer.get(MEMBERS).json()["members"] if member["name"] == "outsider")
    assert [(token["name"], token["project"]) for token in listed["tokens"]] == [("nightly", OURS), ("bench", OURS)]
    assert "2 tokens created by outsider" in maintainer.get(MEMBERS_PAGE).text
    maintainer.post(f"{MEMBERS_PAGE}/{teams.users['outsider']}", data={"remove": "yes"})
    assert opens() == ["nightly", "bench", "theirs"]
    maintainer.post(MEMBERS, json=outsider)
    maintainer.post(f"{MEMBERS_PAGE}/{teams.users['outsider']}", data={"remove": "yes", "revoke": "yes"})
    assert opens() == ["theirs"]
    tokens = next(item for item in admin.get("/api/v1/users").json()["items"] if item["name"] == "outsider")["tokens"]
    assert [(item["name"], item["project"]) for item in tokens] == [("theirs", THEIRS)]
    assert "1 token created by outsider" in admin.get("/settings/users").text
    admin.post(f"/settings/users/{teams.users['outsider']}", data={"do": "disable", "revoke": "yes"})
    assert opens() == []
    answer = admin.get(f"/api/v1/projects/{THEIRS}/tokens").json()["items"]
    assert [(item["name"], item["revoked_by"]) for item in answer] == [("theirs", "administrator")]


USERS = "/api/v1/users"
USERS_PAGE = "/settings/users"
CHOSEN = "a password of my own"


def log_in(client: TestClient, name: str, password: str) -> str:
    return str(client.post("/login", data={"name": name, "password": password}).headers.get("Location", ""))


def test_the_first_password_opens_nothing_but_its_change(teams: Teams) -> None:
    admin = teams.client("administrator")
    answer = admin.post(USERS, json={"name": "Ada", "email": "ada@example.org"})
    body = answer.json()
    assert (answer.status_code, answer.headers["Cache-Control"]) == (201, "no-store")
    assert (body["must_change_password"], body["roles"], body["disabled"]) == (True, {}, False)
    ada = new_browser(teams)
    assert log_in(ada, "Ada", body["password"]) == "/"
    assert ada.get("/runs").headers["Location"] == "/account/password?next=%2Fruns"
    assert ada.get("/api/v1/runs").status_code == 403
    sent = {"old": body["password"], "new": CHOSEN, "again": CHOSEN}
    assert ada.post("/account/password", data=sent).status_code == 303
    assert ada.get("/runs").status_code == 200
    assert body["password"] not in admin.get(USERS).text
    assert admin.post(USERS, json={"name": "Ada"}).status_code == 409


def test_a_disabled_user_is_logged_out_immediately_and_can_be_enabled_again(teams: Teams) -> None:
    admin, viewer = teams.client("administrator"), teams.client("viewer")
    assert viewer.get("/api/v1/whoami").json()["kind"] == "person"
    address = f"{USERS}/{teams.users['viewer']}"
    assert admin.patch(address, json={"disabled": True}).json()["disabled"] is True
    assert viewer.get("/api/v1/whoami").json()["kind"] == "nobody"
    assert admin.patch(address, json={"disabled": False}).json()["disabled"] is False
    assert viewer.get("/api/v1/whoami").json()["kind"] == "nobody"  # the session is over; the account is not
    with read_session(teams.engine) as session:
        done = [event.action for event in audit.events(session, "account", teams.users["viewer"])]
    assert done == ["enabled", "disabled", "created"]


def test_the_last_administrator_stays_one(teams: Teams) -> None:
    admin = teams.client("administrator")
    own = f"{USERS}/{teams.users['administrator']}"
    for change in ({"administrator": False}, {"disabled": True}):
        answer = admin.patch(own, json=change)
        assert (answer.status_code, "last administrator" in answer.json()["title"]) == (409, True)
    page = admin.post(f"{USERS_PAGE}/{teams.users['administrator']}", data={"do": "disable"})
    assert (page.status_code, "is the last administrator" in page.text) == (422, True)
    assert admin.patch(f"{USERS}/{teams.users['viewer']}", json={"administrator": True}).status_code == 200
    assert (
        admin.post(f"{USERS_PAGE}/{teams.users['administrator']}", data={"do": "no administrator"}).status_code == 303
    )
    assert admin.get(USERS_PAGE).status_code == 403
    # The other one stays enabled: the first is not an administrator any more.
    second = teams.client("viewer")
    assert second.patch(f"{USERS}/{teams.users['viewer']}", json={"disabled": True}).status_code == 409


def test_a_new_password_logs_out_everywhere(teams: Teams) -> None:
    admin, viewer = teams.client("administrator"), teams.client("viewer")
    page = admin.post(f"{USERS_PAGE}/{teams.users['viewer']}", data={"do": "reset password"})
    assert page.headers["Cache-Control"] == "no-store"
    shown = re.search(r'aria-label="The first password"><code>([^<]+)', page.text)
    assert shown
    assert viewer.get("/api/v1/whoami").json()["kind"] == "nobody"
    assert log_in(new_browser(teams), "viewer", shown[1]) == "/"
    assert shown[1] not in admin.get(USERS_PAGE).text
    assert admin.post(f"{USERS}/{teams.users['viewer']}/password").json()["password"] != shown[1]


def test_the_page_creates_and_shows_users(teams: Teams) -> None:
    admin = teams.client("administrator")
    page = admin.post(USERS_PAGE, data={"name": "Eve O'Hara", "email": "eve@example.org"})
    assert "password to Eve O&#39;Hara" in page.text
    assert "eve@example.org" in admin.get(USERS_PAGE).text
    for sent, message in (
        ({"name": ""}, "must have 1 to 100 characters"),
        ({"name": "<i>Eve</i>"}, "must start with a letter (a to z)"),
        ({"name": "viewer"}, "User viewer already exists"),
        ({"name": "Bob", "email": "bob"}, "must be an e-mail address"),
    ):
        page = admin.post(USERS_PAGE, data=sent)
        assert (page.status_code, message in page.text) == (422, True), sent
    assert admin.post(f"{USERS_PAGE}/{teams.users['viewer']}", data={"do": "promote"}).status_code == 422


@pytest.mark.parametrize("who", ["viewer", "maintainer", "token:all"])
def test_only_administrators_see_users(who: str, teams: Teams) -> None:
    assert teams.client(who).get(USERS).status_code == 403
    assert teams.client(who).get(USERS_PAGE).status_code == 403


def test_users_need_no_body_for_an_action_without_details(teams: Teams) -> None:
    client = teams.client("maintainer")
    assert client.post(f"/api/v1/projects/{OURS}/archive").json()["archived_at"] is not None
    assert client.post(f"/api/v1/projects/{OURS}/unarchive", json={}).json()["archived_at"] is None
    unknown = client.post(f"/api/v1/projects/{OURS}/archive", json={"authr": "Ada"})
    assert (unknown.status_code, [error["field"] for error in unknown.json()["errors"]]) == (422, ["authr"])


# --- Groups of users: roles by a group, by hand and by the identity provider's claim.

GROUPS = "/api/v1/groups"


def test_a_group_gives_its_users_the_highest_role_until_they_leave(teams: Teams) -> None:
    boss, lead, outsider = (teams.client(who) for who in ("administrator", "maintainer", "outsider"))
    group = boss.post(GROUPS, json={"name": "perf"}).json()["id"]
    assert boss.post(GROUPS, json={"name": "perf"}).status_code == 409
    added = boss.post(f"{GROUPS}/{group}/members", json={"name": "outsider"}).json()
    assert [member["name"] for member in added["members"]] == ["outsider"]
    assert boss.post(f"{GROUPS}/{group}/members", json={"name": "stranger"}).status_code == 422
    ours = f"/api/v1/projects/{OURS}"
    assert outsider.get(f"{ours}/members").status_code == 404
    assert lead.post(f"{ours}/groups", json={"name": "no group", "role": "viewer"}).status_code == 422
    given = lead.post(f"{ours}/groups", json={"name": "perf", "role": "viewer"}).json()["items"]
    assert [(role["name"], role["role"], role["members"]) for role in given] == [("perf", "viewer", ["outsider"])]
    assert outsider.get(f"{ours}/members").status_code == 403
    lead.post(f"{ours}/groups", json={"name": "perf", "role": "maintainer"})
    assert outsider.get(f"{ours}/members").status_code == 200
    lead.post(f"{ours}/members", json={"name": "outsider", "role": "viewer"})
    assert outsider.get(f"{ours}/members").status_code == 200  # the higher of both counts
    with read_session(teams.engine) as session:
        assert users.maintainers(session, teams.ours) == ["maintainer", "outsider"]
    assert lead.delete(f"{ours}/groups/{group}").status_code == 204
    assert outsider.get(f"{ours}/members").status_code == 403
    assert lead.delete(f"{ours}/groups/{group}").status_code == 404
    assert boss.get(GROUPS).json()["items"][0]["roles"] == {}
    assert boss.delete(f"{GROUPS}/{group}/members/{teams.users['outsider']}").status_code == 204
    assert boss.delete(f"{GROUPS}/{group}").status_code == 204
    assert boss.get(GROUPS).json()["items"] == []


def test_the_provider_fills_groups_and_leaves_those_that_were_filled_by_hand(teams: Teams) -> None:
    with transaction(teams.engine) as session:
        first, second = (users.create_group(session, name, by="test").id for name in ("perf", "kernel"))
        users.add_to_group(session, second, "viewer", by="test")
        users.set_group_role(session, project_id=teams.theirs, group_id=first, role=users.Role.CONTRIBUTOR, by="test")
    theirs = f"/api/v1/projects/{THEIRS}/rules"
    for stated, status in ((["perf", "other"], 200), ([], 404)):
        with transaction(teams.engine) as session:
            users.follow_provider(session, users.get_user(session, teams.users["viewer"]), stated)
        assert teams.client("viewer").get(theirs).status_code == status
    with read_session(teams.engine) as session:
        members = {group.name: [member.name for member in group.members] for group in users.list_groups(session)}
    assert members == {"kernel": ["viewer"], "perf": []}


def test_the_pages_create_fill_and_delete_a_group(teams: Teams) -> None:
    boss, lead = teams.client("administrator"), teams.client("maintainer")
    assert lead.get("/settings/groups").status_code == 403
    page = boss.post("/settings/groups", data={"name": "perf"})
    assert page.headers["Location"].startswith("/settings/groups#group-")
    group = boss.get(GROUPS).json()["items"][0]["id"]
    assert boss.post("/settings/groups", data={"name": "perf"}).status_code == 422
    boss.post(f"/settings/groups/{group}", data={"name": "viewer"})
    assert boss.post(f"/settings/groups/{group}", data={"name": "stranger"}).status_code == 422
    lead.post(f"/settings/projects/{OURS}/groups", data={"name": "perf", "role": "contributor"})
    assert 'aria-label="End the role of perf"' in lead.get(f"/settings/projects/{OURS}/members").text
    lead.post(f"/settings/projects/{OURS}/groups", data={"remove": str(group)})
    shown = boss.get(GROUPS).json()["items"][0]
    assert ([member["name"] for member in shown["members"]], shown["roles"]) == (["viewer"], {})
    boss.post(f"/settings/groups/{group}", data={"remove": str(teams.users["viewer"])})
    boss.post(f"/settings/groups/{group}", data={"delete": "yes"})
    assert boss.get(GROUPS).json()["items"] == []
