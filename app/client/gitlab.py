"""A report on GitLab: a note on the merge request, and an external status of the commit.

https://docs.gitlab.com/api/: notes, "set commit pipeline status". There is no neutral state: `skipped` stands for it,
and `canceled` in versions that do not know that. Both are final and not green; `pending` would hold up the pipeline.
"""

import time
from collections.abc import Callable, Iterator, Mapping

from app.client.comment import Comment, put_comment
from app.client.forge import Message, State, shortened
from app.client.forge_api import ForgeApi, ForgeError
from app.client.forge_place import OWN_TOKEN, Place
from app.client.service import client_version

_STATUS: Mapping[State, str] = {State.SUCCESS: "success", State.FAILURE: "failed", State.NEUTRAL: "skipped"}
_INSTEAD = "canceled"
_MOST = 255
"""Characters of a description, and of an address."""
_REFUSED = (401, 403, 404)
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
    status = _STATUS[message.state]
    try:
        try:
            return _put_status(api, place, message, status)
        except ForgeError as error:
            if error.status != _BAD or message.state is not State.NEUTRAL:
                raise
            return _put_status(api, place, message, _INSTEAD)
    except ForgeError as error:
        raise _explained(error, place) from error


def _put_status(api: ForgeApi, place: Place, message: Message, status: str) -> str:
    body: dict[str, str | int] = {
        "state": status,
        "name": message.name,
        "description": shortened(message.title, _MOST),
    }
    if len(message.url) <= _MOST:
        body["target_url"] = message.url
    if place.pipeline:
        body["pipeline_id"] = place.pipeline
    try:
        api.send("POST", f"{place.status_path}/statuses/{place.sha}", body, repeatable=True)
    except ForgeError as error:
        # A status that is what we say already, also by an answer that was lost, cannot be set again.
        if not (error.status == _BAD and "Cannot transition" in error.detail and f"from :{status}" in error.detail):
            raise
        return f"status {message.name}: {status} already"
    return f"status {message.name}: {status}"


def _explained(error: ForgeError, place: Place) -> ForgeError:
    if place.is_job_token and error.status in _REFUSED:
        return ForgeError(f"{error.detail}. {JOB_TOKEN_IS_NOT_ENOUGH}", error.status)
    return error


class _Board:
    """The notes of a merge request."""

    def __init__(self, api: ForgeApi, place: Place) -> None:
        self._api = api
        self._notes = f"{place.path}/merge_requests/{place.change}/notes"
        self._user = 0 if place.is_job_token else int(api.get("/user")["id"])

    def own(self) -> Iterator[Comment]:
        """Somebody else's note that begins like ours stays theirs."""
        for one in self._api.pages(self._notes, sort="asc", order_by="created_at"):
            if not one.get("system") and (not self._user or (one.get("author") or {}).get("id") == self._user):
                yield Comment(int(one["id"]), str(one.get("body") or ""))

    def create(self, body: str) -> Comment:
        made = self._api.send("POST", self._notes, {"body": body}, repeatable=False)
        return Comment(int(made["id"]), body)

    def update(self, comment_id: int, body: str) -> None:
        self._api.send("PUT", f"{self._notes}/{comment_id}", {"body": body}, repeatable=True)

    def delete(self, comment_id: int) -> None:
        self._api.send("DELETE", f"{self._notes}/{comment_id}", repeatable=True)
