"""Posts to GitLab: a note on the merge request, and an external status on the commit.

https://docs.gitlab.com/api/: notes, "set commit pipeline status". There is no neutral state: `skipped` is used for it,
`canceled` in versions without it. Both are final and not green; `pending` would block the pipeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.client.forge import (
    OWN_TOKEN,
    SETTLE_SECONDS,
    ForgeApi,
    ForgeError,
    Message,
    PostTarget,
    State,
    part,
    shortened,
)
from app.client.forge_comment import (
    Comment,
    PostedStatus,
    address,
    put_comment,
    put_label,
    put_status,
    run_id_in,
    unchanged,
)
from app.client.service import client_version

_STATUS: Mapping[State, str] = {State.SUCCESS: "success", State.FAILURE: "failed", State.NEUTRAL: "skipped"}
_INSTEAD = "canceled"
_MOST = 255
"""Characters of a description or an address."""
_BAD = 400
JOB_TOKEN_NEEDS = (
    "CI_JOB_TOKEN can neither write notes nor set a status. Set "
    f"{OWN_TOKEN} or GITLAB_TOKEN to a project access token with the `api` scope. Without it, only the result of the "
    "job "
    "shows the verdict."
)


def gitlab_api(target: PostTarget, sleep: Callable[[float], None] = time.sleep) -> ForgeApi:
    header = "JOB-TOKEN" if target.is_job_token else "PRIVATE-TOKEN"
    headers = {header: target.token, "User-Agent": f"threewalls/{client_version()}"}
    return ForgeApi(target.api, headers, sleep=sleep)


def post_comment(api: ForgeApi, target: PostTarget, message: Message) -> str:
    """Post the note and describe what was done. Raises ForgeError."""
    try:
        done = put_comment(_MergeRequestNotes(api, target), message)
    except ForgeError as error:
        raise _explained(error, target) from error
    return f"note on !{target.change}: {done}"


def post_label(api: ForgeApi, target: PostTarget, message: Message, name: str) -> str:
    """Set or remove the label and describe what was done. Raises ForgeError."""
    try:
        done = put_label(_MergeRequestNotes(api, target), message, name)
    except ForgeError as error:
        raise _explained(error, target) from error
    return f"label {name} of !{target.change}: {done}"


def post_check(api: ForgeApi, target: PostTarget, message: Message) -> str:
    """Set the status and describe what was done. Raises ForgeError."""
    statuses = _GitLabStatuses(api, target, message.name)
    body: dict[str, str | int] = {
        "state": _STATUS[message.state],
        "name": message.name,
        "description": shortened(message.title, _MOST),
    }
    url = address(message)
    try:
        if len(url) > _MOST:  # without an address, the run of an existing status is unknown
            statuses.add(body)
        elif (
            shown := put_status(statuses, PostedStatus(message.run_id, {**body, "target_url": url}))
        ) != message.run_id:
            return f"status {message.name}: {unchanged(shown)}"
    except ForgeError as error:
        raise _explained(error, target) from error
    return f"status {message.name}: {statuses.result}"


class _GitLabStatuses:
    """The statuses of this name on the commit. `result` is the state that the last one got."""

    def __init__(self, api: ForgeApi, target: PostTarget, name: str) -> None:
        self._api, self._target, self._name = api, target, name
        self.result = ""

    def existing(self) -> list[PostedStatus]:
        path = f"{self._target.status_path}/repository/commits/{self._target.sha}/statuses"
        statuses = self._api.pages(path, name=self._name, all="true")
        ours = [status for status in statuses if status.get("name") == self._name]
        return [_posted(status) for status in sorted(ours, key=lambda status: int(status["id"]))]

    def add(self, body: Mapping[str, Any]) -> None:
        try:
            self._set(body)
        except ForgeError as error:
            if error.status != _BAD or body["state"] != _STATUS[State.NEUTRAL]:
                raise
            self._set({**body, "state": _INSTEAD})

    def _set(self, body: Mapping[str, Any]) -> None:
        state = body["state"]
        pipeline = {"pipeline_id": self._target.pipeline} if self._target.pipeline else {}
        try:
            self._api.send("POST", f"{self._target.status_path}/statuses/{self._target.sha}", {**body, **pipeline})
            self.result = state
        except ForgeError as error:
            # GitLab refuses to set a status that has this state already, for example after a lost answer.
            if not (error.status == _BAD and "Cannot transition" in error.detail and f"from :{state}" in error.detail):
                raise
            self.result = f"{state} already"


def _posted(status: Mapping[str, Any]) -> PostedStatus:
    body = {"state": str(status.get("status")), "name": str(status.get("name"))}
    body |= {name: str(text) for name in ("description", "target_url") if (text := status.get(name))}
    return PostedStatus(run_id_in(status.get("target_url")), body, status["id"])


def _explained(error: ForgeError, target: PostTarget) -> ForgeError:
    if target.is_job_token and error.is_refusal:
        return ForgeError(f"{error.detail}. {JOB_TOKEN_NEEDS}", error.status)
    return error


class _MergeRequestNotes:
    def __init__(self, api: ForgeApi, target: PostTarget) -> None:
        self._api = api
        self._change = f"{target.path}/merge_requests/{target.change}"
        self._notes = f"{self._change}/notes"
        self._user = 0 if target.is_job_token else api.get("/user").get("id")
        if not isinstance(self._user, int):
            raise api.unexpected_answer("/user")

    def own(self) -> Iterator[Comment]:
        """Yield the notes of this token's user: a copied marker in another user's note does not count."""
        for note in self._api.pages(self._notes, sort="asc", order_by="created_at"):
            if not note.get("system") and (not self._user or part(note, "author").get("id") == self._user):
                yield Comment(note["id"], str(note.get("body") or ""))

    def create(self, body: str) -> Comment:
        return Comment(self._api.create(self._notes, {"body": body})["id"], body)

    def update(self, comment_id: int, body: str) -> None:
        self._api.send("PUT", f"{self._notes}/{comment_id}", {"body": body})

    def settle(self) -> None:
        self._api.sleep(SETTLE_SECONDS)

    def delete(self, comment_id: int) -> None:
        self._api.send("DELETE", f"{self._notes}/{comment_id}")

    def add_label(self, name: str) -> None:
        self._api.send("PUT", self._change, {"add_labels": name})

    def remove_label(self, name: str) -> None:
        self._api.send("PUT", self._change, {"remove_labels": name})
