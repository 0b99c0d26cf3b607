"""Reports on a server that implements GitHub's API: one comment and one check, despite failures and races."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from app.client import github
from app.client.forge import ForgeApi, ForgeError, Message, PostTarget, message
from tests.client.forge_runs import fine, judged, undecided
from tests.services.forge_server import Answer, Fault
from tests.services.github_server import APP, CHANGE, FORK, HEAD, PERSON, REPOSITORY, GitHub, running_github

LABEL = "performance: regression"
BAD_GATEWAY = Answer(502, {"message": "Server Error"})


@pytest.fixture
def forge() -> Iterator[GitHub]:
    with running_github() as forge:
        yield forge
        assert forge.wrong == []


def place(forge: GitHub, token: str = APP) -> PostTarget:
    path = f"/repos/{REPOSITORY}"
    return PostTarget(forge.base, path, path, CHANGE, HEAD, token)


def asking(forge: GitHub, token: str = APP, waits: list[float] | None = None) -> ForgeApi:
    return github.github_api(place(forge, token), ([] if waits is None else waits).append)


def comment(forge: GitHub, *runs: Any, token: str = APP, key: str = "", waits: list[float] | None = None) -> str:
    with asking(forge, token, waits) as api:
        return github.post_comment(api, place(forge, token), message(runs, key))


def check(forge: GitHub, *runs: Any, token: str = APP, waits: list[float] | None = None) -> str:
    with asking(forge, token, waits) as api:
        return github.post_check(api, place(forge, token), message(runs))


def test_the_first_report_is_a_new_comment_and_the_next_changes_it(forge: GitHub) -> None:
    assert comment(forge, judged(41)) == "comment on #12: created"
    assert comment(forge, fine(42, judged().key)) == "comment on #12: updated"
    assert [item["body"] for item in forge.comments] == [message([fine(42, judged().key)]).comment]


def test_our_comment_is_found_behind_hundreds_of_others(forge: GitHub) -> None:
    for number in range(150):
        forge.says("lena", f"comment {number}")
    comment(forge, judged(41))
    for number in range(120):
        forge.says("lena", f"comment {number}")
    assert comment(forge, judged(42)) == "comment on #12: updated"
    assert len(forge.comments) == 271
    assert {call.path for call in forge.calls("GET", "comments")} == {f"/repos/{REPOSITORY}/issues/12/comments"}


@pytest.mark.parametrize("token", [APP, PERSON])
def test_another_users_comment_that_begins_like_ours_is_left_alone(forge: GitHub, token: str) -> None:
    copied = message([judged(41)]).comment
    forge.says("mallory", copied)
    forge.says("lena", f"> {copied}")
    assert comment(forge, judged(42), token=token) == "comment on #12: created"
    assert forge.comments[0]["body"] == copied


def test_concurrent_jobs_leave_one_comment_that_shows_the_newest_run(forge: GitHub) -> None:
    forge.listed_together = threading.Barrier(3)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda run: comment(forge, judged(run)), (41, 43, 42)))
    assert len(forge.calls("POST", "comments")) == 3
    assert [item["body"] for item in forge.comments] == [message([judged(43)]).comment]


def test_two_comments_that_an_interrupted_job_left_become_one(forge: GitHub) -> None:
    for run in (40, 41):
        forge.says("github-actions[bot]", message([judged(run)]).comment, "Bot")
    assert comment(forge, judged(42)) == "comment on #12: updated"
    assert [item["body"] for item in forge.comments] == [message([judged(42)]).comment]


def test_an_older_job_that_ends_later_does_not_hide_the_newer_result(forge: GitHub) -> None:
    comment(forge, fine(42, judged().key))
    done = comment(forge, judged(41))
    assert ("unchanged" in done, done.endswith("run 42")) == (True, True)
    assert "no change" in forge.comments[0]["body"]


@pytest.mark.parametrize("token", [APP, PERSON])
def test_an_older_run_does_not_turn_a_red_commit_green(forge: GitHub, token: str) -> None:
    check(forge, judged(42), token=token)
    assert check(forge, fine(41, judged().key), token=token).endswith("the newer run 42")
    assert [item["conclusion"] for item in forge.checks] == (["failure"] if token == APP else [])
    assert [entry["state"] for entry in forge.statuses] == (["failure"] if token == PERSON else [])


def test_concurrent_jobs_leave_checks_that_all_show_the_newest_run(forge: GitHub) -> None:
    forge.listed_together = threading.Barrier(3)
    runs = (fine(41, judged().key), judged(43), fine(42, judged().key))
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda run: check(forge, run), runs))
    assert len(forge.calls("POST", "check-runs")) == 3, "all looked before any was made"
    assert {(item["conclusion"], item["details_url"]) for item in forge.checks} == {("failure", judged(43).url)}
    assert {item["external_id"] for item in forge.checks} == {message([judged(43)]).reference}


@pytest.mark.parametrize("order", [(41, 42), (42, 41)])
def test_concurrent_jobs_end_with_the_status_of_the_newest_run(forge: GitHub, order: tuple[int, int]) -> None:
    for run in order:
        forge.faults.append(Fault("GET", "/statuses$", Answer(200, [])))  # as if the other job had not written yet
        check(forge, judged(run) if run == 42 else fine(run, judged().key), token=PERSON)
    assert (forge.statuses[-1]["state"], forge.statuses[-1]["target_url"]) == ("failure", judged(42).url)


def test_an_older_job_that_overwrites_the_newest_result_is_corrected(forge: GitHub) -> None:
    """It read before the newest existed and wrote after it, which no forge can prevent."""
    key = judged().key
    comment(forge, fine(40, key))
    check(forge, fine(40, key))
    late = message([fine(41, key)])

    newest = message([judged(42)])

    def post(done: Callable[[ForgeApi, PostTarget, Message], str], older: Callable[[], None]) -> None:
        writes = iter([older])  # once, while the newest waits before its second look
        with github.github_api(place(forge), lambda _: next(writes, lambda: None)()) as api:
            done(api, place(forge), newest)
        assert not list(writes), "it has written"

    post(github.post_check, lambda: forge.checks[0].update(external_id=late.reference, conclusion="success"))
    post(github.post_comment, lambda: forge.comments[0].update(body=late.comment))
    assert forge.checks[0]["conclusion"] == "failure"
    assert forge.comments[0]["body"] == newest.comment


def test_jobs_with_other_stacks_have_comments_of_their_own(forge: GitHub) -> None:
    comment(forge, judged(41))
    comment(forge, fine(42))
    comment(forge, fine(43), key="nightly")
    assert len(forge.comments) == 3


def test_502_then_201(forge: GitHub) -> None:
    forge.faults.append(Fault("POST", "/comments$", BAD_GATEWAY, times=2))
    waits: list[float] = []
    assert comment(forge, judged(41), waits=waits) == "comment on #12: created"
    assert len(forge.comments) == 1
    assert len(waits) == 2


def test_an_answer_that_was_lost_makes_no_second_comment(forge: GitHub) -> None:
    forge.faults.append(Fault("POST", "/comments$", BAD_GATEWAY, done=True))
    assert comment(forge, judged(41)) == "comment on #12: updated"
    assert len(forge.comments) == 1


def test_a_comment_that_another_job_deletes_meanwhile_is_written_again(forge: GitHub) -> None:
    comment(forge, judged(41))
    forge.faults.append(Fault("PATCH", "/comments/", Answer(404, {"message": "Not Found"})))
    assert comment(forge, judged(42)) == "comment on #12: updated"


def label(forge: GitHub, *runs: Any, token: str = APP, key: str = "") -> str:
    comment(forge, *runs, token=token, key=key)
    with asking(forge, token) as api:
        return github.post_label(api, place(forge, token), message(runs, key), LABEL).rpartition(": ")[2]


def test_a_change_has_the_label_while_any_job_shows_a_regression(forge: GitHub) -> None:
    forge.labels.append("bug")
    assert (label(forge, fine(40), key="a"), forge.labels) == ("not set", ["bug"])
    for _ in range(2):
        assert (label(forge, judged(41), fine(42), key="a"), forge.labels) == ("set", ["bug", LABEL])
    assert label(forge, fine(43), key="b") == "set", "the comment of the other job still shows it"
    assert label(forge, fine(39), key="a") == "set", "the comment shows the newer run"
    assert (label(forge, undecided(44), key="a"), forge.labels) == ("unchanged", ["bug", LABEL])
    assert (label(forge, fine(45), key="a"), forge.labels) == ("not set", ["bug"])
    assert (label(forge, judged(46, exit_code=3), key="a"), forge.labels) == ("unchanged", ["bug"])


def test_the_comment_of_another_user_sets_no_label_and_a_fork_may_not(forge: GitHub) -> None:
    forge.says("mallory", message([judged(41)]).comment)
    assert (label(forge, fine(42)), forge.labels) == ("not set", [])
    comment(forge, judged(43))
    with asking(forge, FORK) as api, pytest.raises(ForgeError, match="pull-requests: write"):
        github.post_label(api, place(forge, FORK), message([judged(43)]), LABEL)


def test_a_check_has_three_states_and_is_updated(forge: GitHub) -> None:
    key = judged().key
    for run, conclusion in ((judged(41), "failure"), (undecided(42, key), "neutral"), (fine(43, key), "success")):
        check(forge, run)
        assert [item["conclusion"] for item in forge.checks] == [conclusion]
    shown = forge.checks[0]
    assert (shown["name"], shown["head_sha"], shown["status"]) == ("threewalls (1a2b3c4d5e6f)", HEAD, "completed")
    assert shown["details_url"] == "https://threewalls.example.org/runs/43"
    assert shown["output"]["summary"] == fine(43).markdown


def test_if_the_job_names_only_the_change_its_head_gets_the_check(forge: GitHub) -> None:
    with asking(forge) as api:
        github.post_check(api, replace(place(forge), sha=""), message([judged(41)]))
    assert [item["head_sha"] for item in forge.checks] == [HEAD]


def test_an_answer_that_was_lost_makes_no_second_check(forge: GitHub) -> None:
    forge.faults.append(Fault("POST", "/check-runs$", BAD_GATEWAY, done=True))
    check(forge, judged(41))
    assert len(forge.checks) == 1


@pytest.mark.parametrize(
    ("run", "state"), [(judged(41), "failure"), (fine(41), "success"), (undecided(41), "pending")], ids=str
)
def test_without_the_right_to_checks_the_commit_gets_a_status_that_is_never_green_for_neutral(
    forge: GitHub, run: Any, state: str
) -> None:
    done = check(forge, run, token=PERSON)
    assert done.endswith("checks)")
    assert [entry["state"] for entry in forge.statuses] == [state]
    assert forge.statuses[0]["target_url"] == run.url


def test_a_long_headline_fits_into_a_status(forge: GitHub) -> None:
    check(forge, replace(judged(), headline="slow " * 100), token=PERSON)
    assert len(forge.statuses[0]["description"]) == 140


def test_a_report_too_long_for_github_is_posted_short(forge: GitHub) -> None:
    long = replace(judged(), markdown="x" * 99 + ("\n" + "y" * 99) * 2000)
    comment(forge, long)
    check(forge, long)
    assert "The rest is at" in forge.comments[0]["body"]


def test_the_job_of_a_fork_is_refused_with_the_reason(forge: GitHub) -> None:
    for post_it in (comment, check):
        with pytest.raises(ForgeError, match="403 Resource not accessible by integration") as refused:
            post_it(forge, judged(), token=FORK)
        assert FORK not in str(refused.value)
        assert "pull-requests: write, checks: write" in str(refused.value), "what is to be done"
        assert "/statuses" not in str(refused.value), "a check is what was asked for"


@pytest.mark.parametrize("body", [b"<html>log in</html>", [1], {"check_runs": [1]}, {"hello": 1}, None], ids=str)
def test_an_address_that_is_not_a_forge_is_reported(forge: GitHub, body: Any) -> None:
    forge.faults += [Fault("GET", "", Answer(200, body), times=9), Fault("POST", "", Answer(200, body), times=9)]
    for post_it in (comment, check):
        with pytest.raises(ForgeError, match=r"Check --forge-url"):
            post_it(forge, judged())


def test_a_wrong_token_is_reported_and_not_retried(forge: GitHub) -> None:
    waits: list[float] = []
    with pytest.raises(ForgeError, match="401 Bad credentials"):
        comment(forge, judged(), token="ghp_wrong", waits=waits)
    assert waits == []


def test_it_waits_as_long_as_github_requests(forge: GitHub) -> None:
    limited = Answer(403, {"message": "You have exceeded a secondary rate limit"}, {"Retry-After": "37"})
    forge.faults += [Fault("POST", "/comments$", limited), Fault("GET", "/check-runs", Answer(429, {}, {}), times=2)]
    waits: list[float] = []
    comment(forge, judged(), waits=waits)
    assert waits == [37]
    assert check(forge, judged(), waits=waits).startswith("check threewalls")
    assert len(forge.comments) == len(forge.checks) == 1


def test_a_limit_that_lasts_longer_than_a_job_should_wait_is_an_error(forge: GitHub) -> None:
    over = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "99999999999"}
    forge.faults.append(Fault("GET", "/comments", Answer(403, {"message": "API rate limit exceeded"}, over), times=9))
    waits: list[float] = []
    with pytest.raises(ForgeError, match=r"API rate limit exceeded\. The forge requests a pause") as limited:
        comment(forge, judged(), waits=waits)
    assert "permissions" not in str(limited.value)
    assert waits == []


def test_a_forge_that_stays_down_is_given_up() -> None:
    with running_github() as forge:
        where = place(forge)
    waits: list[float] = []
    with github.github_api(where, waits.append) as api, pytest.raises(ForgeError, match="no answer from http"):
        github.post_comment(api, where, message([judged()]))
    assert len(waits) == 4
