"""A report on GitLab: a note on the merge request, and an external status of the commit.

https://docs.gitlab.com/api/: notes, "set commit pipeline status". There is no neutral state: `skipped` stands for it,
and `canceled` in versions that do not know that. Both are final and not green; `pending` would hold up the pipeline.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from app.client.forge import OWN_TOKEN, SETTLE_SECONDS, ForgeApi, ForgeError, Message, Place, State, part, shortened
from app.client.forge_comment import Comment, Told, address, left, put_comment, put_status, run_at
from app.client.service import client_version

_STATUS: Mapping[State, str] = {State.SUCCESS: "success", State.FAILURE: "failed", State.NEUTRAL: "skipped"}
_INSTEAD = "canceled"
_MOST = 255
"""Characters of a description, and of an address."""
_BAD = 400
JOB_TOKEN_IS_NOT_ENOUGH = (
    "CI_JOB_TOKEN may read notes, and neither write them nor set a status: give the job a project access token with the"
    f" scope api as {OWN_TOKEN} or GITLAB_TOKEN. The job's own result shows the verdict without it."
)


def gitlab_api(place: Place, sleep: Callable[[float], None] = time.sleep) -> ForgeApi:
    header = "JOB-TOKEN" if place.is_job_token else "PRIVATE-TOKEN"
    headers = {header: place.token, "User-Agent": f"threewalls/{client_version()}"}
    return ForgeApi(place.api, headers, sleep=sleep)


def post_comment(api: ForgeApi, place: Place, message: Message) -> str:
    """What was done, in words. Raises ForgeError."""
    try:
        done = put_comment(_Board(api, place), message)
    except ForgeError as error:
        raise _explained(error, place) from error
    return f"note on !{place.change}: {done}"


def post_check(api: ForgeApi, place: Place, message: Message) -> str:
    """What was done, in words. Raises ForgeError."""
    statuses = _Statuses(api, place, message.name)
    body: dict[str, str | int] = {
        "state": _STATUS[message.state],
        "name": message.name,
        "description": shortened(message.title, _MOST),
    }
    url = address(message)
    try:
        if len(url) > _MOST:  # then nothing says of which run it is, and there is nothing to compare
            statuses.tell(body)
        elif (shown := put_status(statuses, Told(message.run_id, {**body, "target_url": url}))) != message.run_id:
            return f"status {message.name}: {left(shown)}"
    except ForgeError as error:
        raise _explained(error, place) from error
    return f"status {message.name}: {statuses.said}"


class _Statuses:
    """Of this name on the commit, in the order in which they were made. `said`: the state that the last one got."""

    def __init__(self, api: ForgeApi, place: Place, name: str) -> None:
        self._api, self._place, self._name = api, place, name
        self.said = ""

    def told(self) -> list[Told]:
        path = f"{self._place.status_path}/repository/commits/{self._place.sha}/statuses"
        ours = [one for one in self._api.pages(path, name=self._name, all="true") if one.get("name") == self._name]
        return [_told(one) for one in sorted(ours, key=lambda one: int(one["id"]))]

    def tell(self, body: Mapping[str, Any]) -> None:
        try:
            self._set(body)
        except ForgeError as error:
            if error.status != _BAD or body["state"] != _STATUS[State.NEUTRAL]:
                raise
            self._set({**body, "state": _INSTEAD})

    def _set(self, body: Mapping[str, Any]) -> None:
        state = body["state"]
        pipeline = {"pipeline_id": self._place.pipeline} if self._place.pipeline else {}
        try:
            self._api.send("POST", f"{self._place.status_path}/statuses/{self._place.sha}", {**body, **pipeline})
            self.said = state
        except ForgeError as error:
            # A status that is what we say already, also by an answer that was lost, cannot be set again.
            if not (error.status == _BAD and "Cannot transition" in error.detail and f"from :{state}" in error.detail):
                raise
            self.said = f"{state} already"


def _told(status: Mapping[str, Any]) -> Told:
    body = {"state": str(status.get("status")), "name": str(status.get("name"))}
    body |= {name: str(text) for name in ("description", "target_url") if (text := status.get(name))}
    return Told(run_at(status.get("target_url")), body, status["id"])


def _explained(error: ForgeError, place: Place) -> ForgeError:
    if place.is_job_token and error.is_refusal:
        return ForgeError(f"{error.detail}. {JOB_TOKEN_IS_NOT_ENOUGH}", error.status)
    return error


class _Board:
    """The notes of a merge request."""

    def __init__(self, api: ForgeApi, place: Place) -> None:
        self._api = api
        self._notes = f"{place.path}/merge_requests/{place.change}/notes"
        self._user = 0 if place.is_job_token else api.get("/user").get("id")
        if not isinstance(self._user, int):
            raise api.strange("/user")

    def own(self) -> Iterator[Comment]:
        """Somebody else's note that begins like ours stays theirs."""
        for one in self._api.pages(self._notes, sort="asc", order_by="created_at"):
            if not one.get("system") and (not self._user or part(one, "author").get("id") == self._user):
                yield Comment(one["id"], str(one.get("body") or ""))

    def create(self, body: str) -> Comment:
        return Comment(self._api.create(self._notes, {"body": body})["id"], body)

    def update(self, comment_id: int, body: str) -> None:
        self._api.send("PUT", f"{self._notes}/{comment_id}", {"body": body})

    def settle(self) -> None:
        self._api.sleep(SETTLE_SECONDS)

    def delete(self, comment_id: int) -> None:
        self._api.send("DELETE", f"{self._notes}/{comment_id}")
