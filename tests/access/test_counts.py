"""How many there are of something tells as much as a name: another team's work changes no number that others read."""

import re
from typing import Any

from sqlalchemy import select
from sqlmodel import col

from app.storage.database import transaction
from app.storage.rule_firings import keep_firings
from app.storage.tables import ProjectRow, RunRow
from tests.access.belongings import make_belongings
from tests.access.people import OURS, THEIRS, Teams

RULE = "profile-comm"
COUNTING = (
    "/playbook",
    f"/playbook/{RULE}",
    "/api/v1/rules?sort=fired",
    f"/api/v1/rules/{RULE}",
    "/settings/definitions",
    "/api/v1/definitions",
    "/api/v1/runs",
    "/api/v1/regressions",
    "/api/v1/experiments",
)


def add_work(teams: Teams, slug: str) -> None:
    """Runs with verdicts, in all of which a rule fires."""
    with transaction(teams.engine) as session:
        make_belongings(session, slug)
        of_project = select(RunRow).join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        for run in session.execute(of_project.where(col(ProjectRow.slug) == slug)).scalars().all():
            assert keep_firings(session, run.id or 0, [RULE], "1", processed_at=run.processed_at)


def answers(teams: Teams, who: str) -> dict[str, Any]:
    """What each address tells, without what is drawn anew for each answer."""
    client, told = teams.client(who), {}
    for address in COUNTING:
        answer = client.get(address)
        assert answer.status_code == 200, f"{address}: {answer.text[:300]}"
        told[address] = re.sub(r"[0-9a-f]{32}", "", answer.text)
    return told


def test_another_team_s_work_changes_no_number_that_others_read(teams: Teams) -> None:
    add_work(teams, OURS)
    before = {who: answers(teams, who) for who in ("viewer", "token:read", "administrator")}
    add_work(teams, THEIRS)
    for who in ("viewer", "token:read"):
        assert answers(teams, who) == before[who]
    # The numbers are there to be told: who sees both teams reads other ones.
    after = answers(teams, "administrator")
    assert [one for one in COUNTING if after[one] == before["administrator"][one]] == []
