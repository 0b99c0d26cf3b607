"""What a caller hears of itself: a token of any scope its project, scopes and expiry; nobody else's."""

from datetime import timedelta

import pytest
from starlette.testclient import TestClient

from app.domain.access.principal import Scope
from app.storage import tokens
from app.storage.database import transaction
from app.storage.tables import utc_now
from tests.access.people import OURS, SCOPES, Teams

CALL = "/api/v1/whoami"
INCLUDED = {
    "token:upload": ["upload"],
    "token:read": ["upload", "read"],
    "token:triage": ["upload", "read", "triage"],
    "token:all": ["upload", "read", "triage"],
}


@pytest.mark.parametrize("who", SCOPES)
def test_a_token_of_any_scope_knows_itself(teams: Teams, who: str) -> None:
    said = teams.client(who).get(CALL).json()
    assert (said["kind"], said["project"]) == ("token", OURS)
    assert said["scopes"] == INCLUDED[who]
    assert said["expires_at"] is None


def test_a_token_knows_when_it_ends(teams: Teams) -> None:
    ends = utc_now() + timedelta(days=3)
    with transaction(teams.engine) as session:
        _, token = tokens.make_token(
            session, project_id=teams.ours, name="short", scopes=[Scope.UPLOAD], by="test", expires_at=ends
        )
    client = teams.client("anonymous")
    said = client.get(CALL, headers={"Authorization": f"Bearer {token}"}).json()
    assert said["expires_at"].startswith(ends.isoformat()[:19])
    assert token not in str(said)


def test_one_that_is_not_in_force_is_refused(teams: Teams) -> None:
    answer = teams.client("anonymous").get(CALL, headers={"Authorization": "Bearer tw_" + "0" * 43})
    assert answer.status_code == 401


def test_people_and_nobody(teams: Teams) -> None:
    assert teams.client("viewer").get(CALL).json()["name"] == "viewer"
    assert teams.client("anonymous").get(CALL).json()["kind"] == "nobody"


def test_a_service_without_log_ins_takes_everyone(client: TestClient) -> None:
    assert client.get(CALL).json()["kind"] == "everyone"
