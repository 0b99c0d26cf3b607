"""A report on GitHub: a comment on the pull request, and a check of the commit, else its status.

https://docs.github.com/en/rest: issue comments, check runs, commit statuses. A person's token may not make checks; a
status has no neutral state, so `pending` stands for it there: neither green nor red.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.client.comment import Comment, put_comment
from app.client.forge import Message, State, shortened
from app.client.forge_api import TRIES, ForgeApi, ForgeError, UnsureError
from app.client.forge_place import Place
from app.client.service import client_version

_STATUS: Mapping[State, str] = {State.SUCCESS: "success", State.FAILURE: "failure", State.NEUTRAL: "pending"}
_MOST_DESCRIPTION = 140
_MOST_TITLE = 250
_REFUSED = (401, 403, 404)


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
    done = put_comment(_Board(api, place), message)
    return f"comment on #{place.change}: {done}"


def post_check(api: ForgeApi, place: Place, message: Message) -> str:
    """What was done, in words. Raises ForgeError when neither a check nor a status may be made."""
    try:
        for attempt in range(1, TRIES + 1):
            try:
                return _put_check(api, place, message)
            except UnsureError:
                if attempt == TRIES:
                    raise
    except ForgeError as error:
        if error.status not in _REFUSED:
            raise
    status = _STATUS[message.state]
    body = {
        "state": status,
        "context": message.name,
        "description": shortened(message.title, _MOST_DESCRIPTION),
        "target_url": message.url,
    }
    api.send("POST", f"{place.status_path}/statuses/{place.sha}", body, repeatable=True)
    return f"status {message.name}: {status} (the token may make no check)"


def _put_check(api: ForgeApi, place: Place, message: Message) -> str:
    """The check of this name, made or brought up to date."""
    body = {
        "name": message.name,
        "status": "completed",
        "conclusion": message.state.value,
        "details_url": message.url,
        "output": {"title": shortened(message.title, _MOST_TITLE), "summary": message.text},
    }
    listed = api.get(
        f"{place.status_path}/commits/{place.sha}/check-runs", check_name=message.name, filter="latest", per_page=100
    )
    found = [one for one in listed["check_runs"] if one.get("external_id") == message.marker]
    if found:
        api.send("PATCH", f"{place.status_path}/check-runs/{found[0]['id']}", body, repeatable=True)
        return f"check {message.name}: {message.state.value} (updated)"
    created = {**body, "head_sha": place.sha, "external_id": message.marker}
    api.send("POST", f"{place.status_path}/check-runs", created, repeatable=False)
    return f"check {message.name}: {message.state.value}"


class _Board:
    """The conversation of a pull request, which is an issue to the API."""

    def __init__(self, api: ForgeApi, place: Place) -> None:
        self._api, self._path = api, place.path
        self._of_change = f"{place.path}/issues/{place.change}/comments"
        self._login = _login(api)

    def own(self) -> Iterator[Comment]:
        for one in self._api.pages(self._of_change):
            if self._is_own(one.get("user") or {}):
                yield Comment(int(one["id"]), str(one.get("body") or ""))

    def create(self, body: str) -> Comment:
        made = self._api.send("POST", self._of_change, {"body": body}, repeatable=False)
        return Comment(int(made["id"]), body)

    def update(self, comment_id: int, body: str) -> None:
        self._api.send("PATCH", f"{self._path}/issues/comments/{comment_id}", {"body": body}, repeatable=True)

    def delete(self, comment_id: int) -> None:
        self._api.send("DELETE", f"{self._path}/issues/comments/{comment_id}", repeatable=True)

    def _is_own(self, user: Mapping[str, Any]) -> bool:
        """Somebody else's comment that begins like ours stays theirs."""
        return user.get("login") == self._login if self._login else user.get("type") == "Bot"


def _login(api: ForgeApi) -> str:
    """Empty for the token of an app, such as GITHUB_TOKEN: those cannot ask who they are, and write as bots."""
    try:
        return str(api.get("/user").get("login") or "")
    except ForgeError as error:
        if error.status in _REFUSED:
            return ""
        raise
