"""The central tests of access once more, on the database that teams use: the same functions, another engine."""

import pytest

from app.settings import Settings
from tests.access.people import Teams
from tests.access.test_audit import (
    test_filters_by_project_person_subject_and_time,
    test_walking_the_cursor_reads_every_event_once_while_others_come,
)
from tests.access.test_check import (
    test_a_public_project_is_readable_by_all_and_writable_only_by_members,
    test_a_revoked_token_is_refused_immediately,
    test_an_administrator_begins_a_project_with_its_first_run,
    test_an_expired_token_is_refused,
    test_disabled_users_and_removed_members_lose_access_immediately,
)
from tests.access.test_login import test_a_session_that_is_not_used_ends_and_use_prolongs_it
from tests.access.test_members import (
    test_a_group_gives_its_users_the_highest_role_until_they_leave,
    test_a_role_counts_from_the_next_request_on_and_ends_as_fast,
    test_the_last_administrator_stays_one,
)
from tests.access.test_tokens import test_a_token_is_shown_once_and_uploads_until_it_is_revoked
from tests.conftest import forget_settings
from tests.projects.test_projects import test_only_an_administrator_sets_it_and_it_is_on_record

__all__ = [
    "test_a_group_gives_its_users_the_highest_role_until_they_leave",
    "test_a_public_project_is_readable_by_all_and_writable_only_by_members",
    "test_a_revoked_token_is_refused_immediately",
    "test_a_role_counts_from_the_next_request_on_and_ends_as_fast",
    "test_a_session_that_is_not_used_ends_and_use_prolongs_it",
    "test_a_token_is_shown_once_and_uploads_until_it_is_revoked",
    "test_an_administrator_begins_a_project_with_its_first_run",
    "test_an_expired_token_is_refused",
    "test_disabled_users_and_removed_members_lose_access_immediately",
    "test_filters_by_project_person_subject_and_time",
    "test_only_an_administrator_sets_it_and_it_is_on_record",
    "test_the_last_administrator_stays_one",
    "test_walking_the_cursor_reads_every_event_once_while_others_come",
]


@pytest.fixture
def settings(settings: Settings, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("THREEWALLS_DATABASE_URL", postgres_url)
    forget_settings()
    return settings.model_copy(update={"database_url": postgres_url})


def test_it_is_the_other_database(teams: Teams) -> None:
    assert teams.engine.dialect.name == "postgresql"
