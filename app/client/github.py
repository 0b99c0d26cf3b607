"""Posts to GitHub: a comment on the pull request, and a check on the commit, or else a commit status.

https://docs.github.com/en/rest: issue comments, check runs, commit statuses. Personal tokens may not create checks. A
status has no neutral state, so `pending` is used for it: neither green nor red.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from app.client.forge import (
    SETTLE_SECONDS,
    ForgeApi,
    ForgeError,
    Message,
    PostTarget,
    State,
    is_marked,
    newest_run,
    part,
    shortened,
)
from app.client.forge_comment import (
    NOT_FOUND,
    Comment,
    PostedStatus,
    address,
    put_check,
    put_comment,
    put_label,
    put_status,
    run_id_in,
    unchanged,
)
from app.client.service import client_version

_STATUS: Mapping[State, str] = {State.SUCCESS: "success", State.FAILURE: "failure", State.NEUTRAL: "pending"}
_MOST_DESCRIPTION = 140
_MOST_TITLE = 250
_FIELDS = ("name", "status", "conclusion", "details_url", "external_id")
WHAT_A_JOB_NEEDS = (
    "The token of the job lacks permissions. Give the job "
    "`permissions: { contents: read, pull-requests: write, checks: write }`, and check the settings of the "
    "organisation. A pull request from a fork cannot get write permissions; its report is in the summary of the job."
)


def github_api(target: PostTarget, sleep: Callable[[float], None] = time.sleep) -> ForgeApi:
    return ForgeApi(
        target.api,
        sleep=sleep,
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {target.token}",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": f"threewalls/{client_version()}",
        },
    )


def post_comment(api: ForgeApi, target: PostTarget, message: Message) -> str:
    """Post the comment and describe what was done. Raises ForgeError."""
    try:
        done = put_comment(_PullRequestComments(api, target), message)
    except ForgeError as error:
        raise _explained(error) from error
    return f"comment on #{target.change}: {done}"


def post_label(api: ForgeApi, target: PostTarget, message: Message, name: str) -> str:
    """Set or remove the label and describe what was done. Raises ForgeError."""
    try:
        done = put_label(_PullRequestComments(api, target), message, name)
    except ForgeError as error:
        raise _explained(error) from error
    return f"label {name} of #{target.change}: {done}"


def post_check(api: ForgeApi, target: PostTarget, message: Message) -> str:
    """Post a check, or a status without permission for checks, and describe what was done. Raises ForgeError."""
    target = target if target.sha else replace(target, sha=_head(api, target))
    try:
        shown, existed = put_check(_Checks(api, target, message), PostedStatus(message.run_id, _check(message)))
    except ForgeError as error:
        if not error.is_refusal:
            raise
        return _post_status(api, target, message, error)
    if shown != message.run_id:
        return f"check {message.name}: {unchanged(shown)}"
    return f"check {message.name}: {message.state.value}{' (updated)' if existed else ''}"


def _head(api: ForgeApi, target: PostTarget) -> str:
    """Return the head of the change, because the environment of the job names another commit."""
    path = f"{target.path}/pulls/{target.change}"
    sha = part(api.get(path), "head").get("sha")
    if not isinstance(sha, str) or not sha.isalnum():
        raise api.unexpected_answer(path)
    return sha


def _check(message: Message) -> dict[str, Any]:
    return {
        "name": message.name,
        "status": "completed",
        "conclusion": message.state.value,
        "details_url": message.url,
        "external_id": message.reference,
        "output": {"title": shortened(message.title, _MOST_TITLE), "summary": message.text},
    }


def _post_status(api: ForgeApi, target: PostTarget, message: Message, refused: ForgeError) -> str:
    status = _STATUS[message.state]
    body = {
        "state": status,
        "context": message.name,
        "description": shortened(message.title, _MOST_DESCRIPTION),
        "target_url": address(message),
    }
    try:
        shown = put_status(_GitHubStatuses(api, target, message.name), PostedStatus(message.run_id, body))
    except ForgeError as error:
        if not error.is_refusal:
            raise
        # Explain the missing permission for checks, which jobs are meant to have.
        raise _explained(refused) from error
    if shown != message.run_id:
        return f"status {message.name}: {unchanged(shown)}"
    return f"status {message.name}: {status} (the token may not create checks)"


def _explained(error: ForgeError) -> ForgeError:
    return ForgeError(f"{error.detail}. {WHAT_A_JOB_NEEDS}", error.status) if error.status in (403, 404) else error


class _Checks:
    """Our checks of this name on the commit. Checks of other apps are ignored."""

    def __init__(self, api: ForgeApi, target: PostTarget, message: Message) -> None:
        self._api, self._target, self._message = api, target, message
        self._path = f"{target.status_path}/check-runs"

    def existing(self) -> list[PostedStatus]:
        """Return all checks: `filter=latest` would hide one of two that jobs created at the same time."""
        listed = f"{self._target.status_path}/commits/{self._target.sha}/check-runs"
        entries = self._api.pages(listed, inside="check_runs", check_name=self._message.name, filter="all")
        marker = self._message.marker
        return [
            PostedStatus(
                newest_run(reference, marker), {name: check.get(name) for name in _FIELDS} | _output(check), check["id"]
            )
            for check in entries
            if is_marked(reference := str(check.get("external_id") or ""), marker)
        ]

    def create(self, body: Mapping[str, Any]) -> None:
        self._api.create(self._path, {**body, "head_sha": self._target.sha})

    def update(self, check_id: int, body: Mapping[str, Any]) -> None:
        self._api.send("PATCH", f"{self._path}/{check_id}", body)

    def settle(self) -> None:
        self._api.sleep(SETTLE_SECONDS)


def _output(check: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a check's output that GitHub accepts back."""
    output = part(check, "output")
    return {"output": {name: str(output.get(name) or "") for name in ("title", "summary")}}


class _GitHubStatuses:
    """The statuses of this name on the commit."""

    def __init__(self, api: ForgeApi, target: PostTarget, name: str) -> None:
        self._api, self._name = api, name
        self._listed = f"{target.status_path}/commits/{target.sha}/statuses"
        self._new = f"{target.status_path}/statuses/{target.sha}"

    def existing(self) -> list[PostedStatus]:
        names = ("state", "context", "description", "target_url")
        ours = [status for status in self._api.pages(self._listed) if status.get("context") == self._name]
        statuses = [
            PostedStatus(run_id_in(status.get("target_url")), {name: status.get(name) for name in names}, status["id"])
            for status in ours
        ]
        return sorted(statuses, key=lambda status: status.id)

    def add(self, body: Mapping[str, Any]) -> None:
        self._api.send("POST", self._new, body)


class _PullRequestComments:
    """The comments of a pull request, which the API treats as an issue."""

    def __init__(self, api: ForgeApi, target: PostTarget) -> None:
        self._api, self._path = api, target.path
        self._of_change = f"{target.path}/issues/{target.change}/comments"
        self._labels = f"{target.path}/issues/{target.change}/labels"
        self._login = _login(api)

    def own(self) -> Iterator[Comment]:
        for entry in self._api.pages(self._of_change):
            if self._is_own(part(entry, "user")):
                yield Comment(entry["id"], str(entry.get("body") or ""))

    def create(self, body: str) -> Comment:
        return Comment(self._api.create(self._of_change, {"body": body})["id"], body)

    def update(self, comment_id: int, body: str) -> None:
        self._api.send("PATCH", f"{self._path}/issues/comments/{comment_id}", {"body": body})

    def delete(self, comment_id: int) -> None:
        self._api.send("DELETE", f"{self._path}/issues/comments/{comment_id}")

    def add_label(self, name: str) -> None:
        self._api.send("POST", self._labels, {"labels": [name]})  # creates a label that the repository lacks

    def remove_label(self, name: str) -> None:
        try:
            self._api.send("DELETE", f"{self._labels}/{quote(name, safe='')}")
        except ForgeError as error:
            if error.status != NOT_FOUND:
                raise

    def settle(self) -> None:
        self._api.sleep(SETTLE_SECONDS)

    def _is_own(self, user: Mapping[str, Any]) -> bool:
        """Return whether this token's owner wrote it: a copied marker in another user's comment does not count."""
        return user.get("login") == self._login if self._login else user.get("type") == "Bot"


def _login(api: ForgeApi) -> str:
    """Return the login of the token's user, empty for an app token such as GITHUB_TOKEN, which writes as a bot."""
    try:
        return str(api.get("/user").get("login") or "")
    except ForgeError as error:
        if error.is_refusal:
            return ""
        raise
