"""Users, roles and groups from CSV: all or nothing, and all problems of the file are reported together."""

from typing import Any

import pytest

from tests.access.people import OURS, PUBLIC, THEIRS, Teams

ADDRESS = "/api/v1/users/import"


def roles(teams: Teams) -> dict[str, dict[str, str]]:
    items = teams.client("administrator").get("/api/v1/users").json()["items"]
    return {user["name"]: user["roles"] for user in items}


def send(teams: Teams, text: str, **more: Any) -> Any:
    return teams.client("administrator").post(ADDRESS, json={"csv": text, **more})


def test_a_file_creates_users_and_assigns_roles_and_groups(teams: Teams) -> None:
    boss = teams.client("administrator")
    boss.post("/api/v1/groups", json={"name": "perf"})
    text = (
        "\ufeffName;E-mail;x\n",
        f"name;email;project;role;group\r\nada;ada@example.org;{OURS};Maintainer;perf\r\nada;;{PUBLIC};viewer;\r\n"
        f"viewer;;{THEIRS};contributor;\r\r\n",
    )
    assert send(teams, text[0]).status_code == 422
    checked = send(teams, text[1], dry_run=True).json()
    assert (checked["created"], checked["roles"], checked["passwords"]) == (["ada"], 3, [])
    assert "ada" not in roles(teams)
    done = send(teams, text[1]).json()
    assert (done["created"], done["roles"], done["groups"]) == (["ada"], 3, 1)
    assert roles(teams)["ada"] == {OURS: "maintainer", PUBLIC: "viewer"}
    assert roles(teams)["viewer"] == {OURS: "viewer", THEIRS: "contributor"}
    again = send(teams, text[1]).json()
    assert (again["created"], again["roles"], again["passwords"]) == ([], 0, [])
    browser = teams.client("anonymous")
    browser.headers.update({"Sec-Fetch-Site": "same-origin"})
    browser.post("/login", data={"name": "ada", "password": done["passwords"][0]["password"]})
    assert browser.get("/api/v1/whoami").json()["name"] == "ada"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("email\na@b", 1),
        ("name,project,role\nada,alpha,chief\nbob,alpha,\n,alpha,viewer\neve,alpha,viewer,more", 4),
        ("name,project,role,group\nada,nowhere,viewer,\nbob,,,no such group\nVIEWER,,,\nada,nowhere,viewer,", 4),
        ("name\n", 1),
        ('name\n"' + "a" * 140_000, 1),
        ("name\n" + "\n".join(f"user{number}" for number in range(101)), 1),
    ],
)
def test_a_file_with_a_problem_changes_nothing(text: str, problems: int, teams: Teams) -> None:
    before = roles(teams)
    answer = send(teams, text)
    assert (answer.status_code, len(answer.json()["errors"])) == (422, problems), answer.text
    assert roles(teams) == before


def test_the_page_checks_first_and_shows_passwords_once(teams: Teams) -> None:
    boss = teams.client("administrator")
    page = boss.post("/settings/users/import", data={"csv": "name\nada", "do": "check"})
    assert (page.status_code, "ada" in roles(teams)) == (200, False)
    assert boss.post("/settings/users/import", data={"csv": "nam\nada", "do": "import"}).status_code == 422
    page = boss.post("/settings/users/import", data={"csv": "name\nada", "do": "import"})
    assert (page.headers["Cache-Control"], "ada" in roles(teams)) == ("no-store", True)
    assert "Initial password" in page.text
    assert "Initial password" not in boss.get("/settings/users/import").text
    assert teams.client("maintainer").get("/settings/users/import").status_code == 403
