"""Which passwords are none, and how long one lasts that somebody else set."""

from datetime import timedelta

from starlette.testclient import TestClient

from app.domain.access.passwords import problem_with
from app.storage import users
from app.storage.database import transaction
from app.storage.tables import utc_now
from tests.access.people import SAME_ORIGIN, Teams

ACCOUNT = "Ada Lovelace-King"
COMMON = (
    "password1234", "P@ssw0rd2024!", "Password Password1", "qwertyuiop12", "iloveyou1234", "1qaz2wsx3edc",
    "correcthorsebatterystaple", "!!dragon2026!!", "Administrator#1",
)  # fmt: skip
NAMED = ("Lovelace1815!", "my l0vel@ce likes it", "threewalls-2026", "ThreeWalls is ours", "kingdom of numbers")
GOOD = ("correct horse battery", "a password of hers", "staple by the window", "Adas own words", "vX7-qpLr_2mZ90")
PAGE = {"Accept": "text/html"}


def test_common_ones_and_those_that_hold_a_name_are_refused() -> None:
    told = {password: problem_with(password, ACCOUNT) for password in (*COMMON, *NAMED, *GOOD)}
    wrong = [f"{password} is accepted" for password in (*COMMON, *NAMED) if not told[password]]
    wrong += [f"{password} {told[password]}" for password in GOOD if told[password]]
    assert not wrong, "\n".join(wrong)


def test_nobody_chooses_a_common_one(teams: Teams) -> None:
    admin = teams.client("administrator")
    made = admin.post("/api/v1/users", json={"name": "mara"}).json()
    browser = TestClient(teams.app, headers=SAME_ORIGIN | PAGE, follow_redirects=False)
    assert browser.post("/login", data={"name": "mara", "password": made["password"]}).status_code == 303
    form = {"old": made["password"], "new": "Password Password1", "again": "Password Password1"}
    assert browser.post("/account/password", data=form).status_code == 422
    chosen = "staple by the window"
    assert browser.post("/account/password", data=form | {"new": chosen, "again": chosen}).status_code == 303


def test_a_first_password_ends_after_72_hours_and_a_chosen_one_does_not(teams: Teams) -> None:
    admin = teams.client("administrator")
    made = admin.post("/api/v1/users", json={"name": "mara"}).json()

    def log_in(password: str) -> int:
        browser = TestClient(teams.app, headers=SAME_ORIGIN, follow_redirects=False)
        return browser.post("/login", data={"name": "mara", "password": password}).status_code

    def hours_pass(hours: float) -> None:
        with transaction(teams.engine) as session:
            row = users.get_user(session, made["id"])
            assert row.password_ends_at is not None
            row.password_ends_at -= timedelta(hours=hours)

    hours_pass(71)
    assert log_in(made["password"]) == 303
    hours_pass(1)
    assert log_in(made["password"]) == 422
    again = admin.post(f"/api/v1/users/{made['id']}/password").json()
    assert again["password_ends_at"] > utc_now().isoformat()
    browser = TestClient(teams.app, headers=SAME_ORIGIN, follow_redirects=False)
    browser.post("/login", data={"name": "mara", "password": again["password"]})
    chosen = "staple by the window"
    browser.post("/account/password", data={"old": again["password"], "new": chosen, "again": chosen})
    listed = {user["name"]: user for user in admin.get("/api/v1/users").json()["items"]}
    assert listed["mara"]["password_ends_at"] is None
    assert log_in(chosen) == 303
