"""Groups of users: roles by a group, by hand and by the identity provider's claim."""

from app.storage import groups, users
from app.storage.database import read_session, transaction
from tests.access.people import OURS, THEIRS, Teams

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
        first, second = (groups.create_group(session, name, by="test").id for name in ("perf", "kernel"))
        groups.add_to_group(session, second, "viewer", by="test")
        groups.set_group_role(session, project_id=teams.theirs, group_id=first, role=users.Role.CONTRIBUTOR, by="test")
    theirs = f"/api/v1/projects/{THEIRS}/rules"
    for stated, status in ((["perf", "other"], 200), ([], 404)):
        with transaction(teams.engine) as session:
            groups.follow_provider(session, users.get_user(session, teams.users["viewer"]), stated)
        assert teams.client("viewer").get(theirs).status_code == status
    with read_session(teams.engine) as session:
        members = {group.name: [member.name for member in group.members] for group in groups.list_groups(session)}
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
