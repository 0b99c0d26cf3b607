"""A report on GitHub: a comment on the pull request, and a check of the commit, else its status.

https://docs.github.com/en/rest: issue comments, check runs, commit statuses. A person's token may not make checks; a
status has no neutral state, so `pending` stands for it there: neither green nor red.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app.client.forge import (
    SETTLE_SECONDS,
    ForgeApi,
    ForgeError,
    Message,
    Place,
    State,
    is_marked,
    newest_run,
    part,
    shortened,
)
from app.client.forge_comment import Comment, Told, address, left, put_check, put_comment, put_status, run_at
from app.client.service import client_version

_STATUS: Mapping[State, str] = {State.SUCCESS: "success", State.FAILURE: "failure", State.NEUTRAL: "pending"}
_MOST_DESCRIPTION = 140
_MOST_TITLE = 250
_SAID = ("name", "status", "conclusion", "details_url", "external_id")
WHAT_A_JOB_NEEDS = (
    "The job's token may not write here. Give the job "
    "`permissions: { contents: read, pull-requests: write, checks: write }`; where it has them, a setting of the "
    "organisation may narrow them. A job of a pull request from a fork may write nothing: its result stands on the "
    "page of the job."
)


def github_api(place: Place, sleep: Callable[[float], None] = time.sleep) -> ForgeApi:
    return ForgeApi(
        place.api,
        sleep=sleep,
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {place.token}",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": f"threewalls/{client_version()}",
        },
    )


def post_comment(api: ForgeApi, place: Place, message: Message) -> str:
    """What was done, in words. Raises ForgeError."""
    try:
        done = put_comment(_Board(api, place), message)
    except ForgeError as error:
        raise _explained(error) from error
    return f"comment on #{place.change}: {done}"


def post_check(api: ForgeApi, place: Place, message: Message) -> str:
    """What was done, in words. Raises ForgeError when neither a check nor a status may be made."""
    place = place if place.sha else replace(place, sha=_head(api, place))
    try:
        shown, was_there = put_check(_Checks(api, place, message), Told(message.run_id, _check(message)))
    except ForgeError as error:
        if not error.is_refusal:
            raise
        return _post_status(api, place, message, error)
    if shown != message.run_id:
        return f"check {message.name}: {left(shown)}"
    return f"check {message.name}: {message.state.value}{' (updated)' if was_there else ''}"


def _head(api: ForgeApi, place: Place) -> str:
    """Of the change: the job's environment says another commit."""
    path = f"{place.path}/pulls/{place.change}"
    sha = part(api.get(path), "head").get("sha")
    if not isinstance(sha, str) or not sha.isalnum():
        raise api.strange(path)
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


def _post_status(api: ForgeApi, place: Place, message: Message, refused: ForgeError) -> str:
    status = _STATUS[message.state]
    body = {
        "state": status,
        "context": message.name,
        "description": shortened(message.title, _MOST_DESCRIPTION),
        "target_url": address(message),
    }
    try:
        shown = put_status(_Statuses(api, place, message.name), Told(message.run_id, body))
    except ForgeError as error:
        if not error.is_refusal:
            raise
        # The check is what a job should be able to make; that it may make no status either is no news.
        raise _explained(refused) from error
    if shown != message.run_id:
        return f"status {message.name}: {left(shown)}"
    return f"status {message.name}: {status} (the token may make no check)"


def _explained(error: ForgeError) -> ForgeError:
    return ForgeError(f"{error.detail}. {WHAT_A_JOB_NEEDS}", error.status) if error.status in (403, 404) else error


class _Checks:
    """Ours of this name on the commit. A check is of the app that made it; another app's is not looked at."""

    def __init__(self, api: ForgeApi, place: Place, message: Message) -> None:
        self._api, self._place, self._message = api, place, message
        self._path = f"{place.status_path}/check-runs"

    def told(self) -> list[Told]:
        """`filter=latest` would hide one of two that jobs made at once."""
        listed = f"{self._place.status_path}/commits/{self._place.sha}/check-runs"
        entries = self._api.pages(listed, inside="check_runs", check_name=self._message.name, filter="all")
        marker = self._message.marker
        return [
            Told(newest_run(reference, marker), {name: one.get(name) for name in _SAID} | _output(one), one["id"])
            for one in entries
            if is_marked(reference := str(one.get("external_id") or ""), marker)
        ]

    def create(self, body: Mapping[str, Any]) -> None:
        self._api.create(self._path, {**body, "head_sha": self._place.sha})

    def update(self, check_id: int, body: Mapping[str, Any]) -> None:
        self._api.send("PATCH", f"{self._path}/{check_id}", body)

    def settle(self) -> None:
        self._api.sleep(SETTLE_SECONDS)


def _output(check: Mapping[str, Any]) -> dict[str, Any]:
    """GitHub answers with more than it takes."""
    output = part(check, "output")
    return {"output": {name: str(output.get(name) or "") for name in ("title", "summary")}}


class _Statuses:
    """Of this name on the commit, in the order in which they were made."""

    def __init__(self, api: ForgeApi, place: Place, name: str) -> None:
        self._api, self._name = api, name
        self._listed = f"{place.status_path}/commits/{place.sha}/statuses"
        self._made = f"{place.status_path}/statuses/{place.sha}"

    def told(self) -> list[Told]:
        names = ("state", "context", "description", "target_url")
        ours = [one for one in self._api.pages(self._listed) if one.get("context") == self._name]
        found = [
            Told(run_at(one.get("target_url")), {name: one.get(name) for name in names}, one["id"]) for one in ours
        ]
        return sorted(found, key=lambda one: one.id)

    def tell(self, body: Mapping[str, Any]) -> None:
        self._api.send("POST", self._made, body)


class _Board:
    """The conversation of a pull request, which is an issue to the API."""

    def __init__(self, api: ForgeApi, place: Place) -> None:
        self._api, self._path = api, place.path
        self._of_change = f"{place.path}/issues/{place.change}/comments"
        self._login = _login(api)

    def own(self) -> Iterator[Comment]:
        for one in self._api.pages(self._of_change):
            if self._is_own(part(one, "user")):
                yield Comment(one["id"], str(one.get("body") or ""))

    def create(self, body: str) -> Comment:
        return Comment(self._api.create(self._of_change, {"body": body})["id"], body)

    def update(self, comment_id: int, body: str) -> None:
        self._api.send("PATCH", f"{self._path}/issues/comments/{comment_id}", {"body": body})

    def delete(self, comment_id: int) -> None:
        self._api.send("DELETE", f"{self._path}/issues/comments/{comment_id}")

    def settle(self) -> None:
        self._api.sleep(SETTLE_SECONDS)

    def _is_own(self, user: Mapping[str, Any]) -> bool:
        """Somebody else's comment that begins like ours stays theirs."""
        return user.get("login") == self._login if self._login else user.get("type") == "Bot"


def _login(api: ForgeApi) -> str:
    """Empty for the token of an app, such as GITHUB_TOKEN: those cannot ask who they are, and write as bots."""
    try:
        return str(api.get("/user").get("login") or "")
    except ForgeError as error:
        if error.is_refusal:
            return ""
        raise
