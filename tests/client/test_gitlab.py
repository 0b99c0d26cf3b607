"""Reports on a server that implements GitLab's documented API: one note, one status."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.client import gitlab
from app.client.forge import ForgeApi, ForgeError, PostTarget, message
from tests.client.forge_runs import fine, judged, undecided
from tests.services.forge_server import Answer, Fault
from tests.services.gitlab_server import CHANGE, HEAD, JOB, OWN, PIPELINE, PROJECT, GitLab, running_gitlab

NAME = "threewalls (1a2b3c4d5e6f)"


@pytest.fixture
def forge() -> Iterator[GitLab]:
    with running_gitlab() as forge:
        yield forge
        assert forge.wrong == []


def place(forge: GitLab, token: str = OWN) -> PostTarget:
    path = f"/projects/{PROJECT}"
    return PostTarget(forge.base, path, path, CHANGE, HEAD, token, is_job_token=token == JOB, pipeline=PIPELINE)


def asking(forge: GitLab, token: str = OWN) -> ForgeApi:
    return gitlab.gitlab_api(place(forge, token), lambda _: None)


def note(forge: GitLab, *runs: Any, token: str = OWN) -> str:
    with asking(forge, token) as api:
        return gitlab.post_comment(api, place(forge, token), message(runs))


def status(forge: GitLab, *runs: Any, token: str = OWN) -> str:
    with asking(forge, token) as api:
        return gitlab.post_check(api, place(forge, token), message(runs))


def test_the_first_report_is_a_new_note_and_the_next_changes_it_behind_many_others(forge: GitLab) -> None:
    for number in range(130):
        forge.says(f"note {number}", system=number % 2 == 0)
    assert note(forge, judged(41)) == "note on !7: created"
    for number in range(130):
        forge.says(f"note {number}")
    assert note(forge, judged(42)) == "note on !7: updated"
    assert [item["body"] for item in forge.notes].count(message([judged(42)]).comment) == 1
    assert len(forge.notes) == 261


def test_another_users_note_that_begins_like_ours_is_left_alone(forge: GitLab) -> None:
    forge.says(message([judged(41)]).comment)
    assert note(forge, judged(42)) == "note on !7: created"
    assert len(forge.notes) == 2


def test_502_with_and_without_the_note_written(forge: GitLab) -> None:
    forge.faults += [
        Fault("POST", "/notes$", Answer(502, None)),
        Fault("POST", "/notes$", Answer(504, {"message": "late"}), done=True),
    ]
    assert note(forge, judged(41)) == "note on !7: updated"
    assert len(forge.notes) == 1


def test_a_change_has_the_label_while_its_note_shows_a_regression(forge: GitLab) -> None:
    name = "performance::regression"
    forge.labels.append("bug")
    shown = []
    for run in (judged(41), undecided(42, judged().key), fine(43, judged().key), fine(44, judged().key)):
        note(forge, run)
        with asking(forge) as api:
            shown.append(gitlab.post_label(api, place(forge), message([run]), name).rpartition(": ")[2])
        assert ("bug" in forge.labels, name in forge.labels) == (True, len(shown) < 3)
    assert shown == ["set", "unchanged", "not set", "not set"]
    with asking(forge, JOB) as api, pytest.raises(ForgeError, match="GITLAB_TOKEN"):
        gitlab.post_label(api, place(forge, JOB), message([fine()]), name)


@pytest.mark.parametrize(
    ("run", "state"), [(judged(), "failed"), (fine(), "success"), (undecided(), "skipped")], ids=str
)
def test_a_status_is_of_the_pipeline_and_never_green_for_neutral(forge: GitLab, run: Any, state: str) -> None:
    status(forge, run)
    assert [(entry["state"], entry["pipeline_id"]) for entry in forge.statuses.values()] == [(state, PIPELINE)]


def test_a_gitlab_version_without_skipped_receives_canceled() -> None:
    with running_gitlab(knows_skipped=False) as forge:
        name = message([undecided()]).name
        assert status(forge, undecided()) == f"status {name}: canceled"
        assert forge.statuses[name]["state"] == "canceled"


def test_the_same_status_again_and_another_one(forge: GitLab) -> None:
    forge.one_record = True
    assert status(forge, judged(41)) == f"status {NAME}: failed"
    assert status(forge, judged(42)) == f"status {NAME}: failed already"
    assert status(forge, fine(43, judged().key)) == f"status {NAME}: success"


def test_an_older_job_that_ends_later_does_not_hide_the_newer_result(forge: GitLab) -> None:
    status(forge, judged(42))
    note(forge, judged(42))
    older = fine(41, judged().key)
    for done in (status(forge, older), note(forge, older)):
        assert ("unchanged" in done, done.endswith("run 42")) == (True, True)
    assert forge.statuses[NAME]["state"] == "failed"


@pytest.mark.parametrize("order", [(41, 42), (42, 41)])
def test_concurrent_jobs_end_with_the_status_of_the_newest_run(forge: GitLab, order: tuple[int, int]) -> None:
    """Both read before either writes, and either may write last."""
    first, second = (judged(run) if run == 42 else fine(run, judged().key) for run in order)
    forge.faults.append(Fault("GET", "/statuses$", Answer(200, [])))
    status(forge, first)
    forge.faults.append(Fault("GET", "/statuses$", Answer(200, [])))
    status(forge, second)
    shown = forge.statuses[NAME]
    assert (shown["state"], shown["target_url"]) == ("failed", judged(42).url)


def test_a_status_of_several_runs_says_which_is_the_newest(forge: GitLab) -> None:
    runs = (judged(41), fine(43, judged().key))
    assert status(forge, *runs) == f"status {NAME}: failed"
    assert forge.statuses[NAME]["target_url"] == f"{judged(41).url}#of-run-43"
    assert "the newer run 43" in status(forge, fine(42, judged().key))


def test_a_status_that_gitlab_does_not_let_us_change_is_an_error(forge: GitLab) -> None:
    refused = Answer(400, {"message": "Cannot transition status via :succeed from :failed"})
    forge.faults.append(Fault("POST", "/statuses/", refused))
    with pytest.raises(ForgeError, match="Cannot transition"):
        status(forge, fine())


def test_a_status_that_another_job_is_setting_is_tried_again(forge: GitLab) -> None:
    forge.faults.append(Fault("POST", "/statuses/", Answer(409, {"message": "update in progress"}), times=2))
    assert status(forge, judged()) == f"status {NAME}: failed"


def test_the_token_of_a_job_may_not_write_and_it_says_what_may(forge: GitLab) -> None:
    for post_it in (note, status):
        with pytest.raises(ForgeError, match="THREEWALLS_FORGE_TOKEN or GITLAB_TOKEN to a project access token"):
            post_it(forge, judged(), token=JOB)
    assert forge.notes == []
