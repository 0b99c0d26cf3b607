"""A server that accepts only those requests of GitLab's REST API that a report needs, as documented.

https://docs.gitlab.com/api/notes, .../merge_requests, .../commits#set-commit-pipeline-status, .../users;
what a job's token may read: https://docs.gitlab.com/ci/jobs/ci_job_token.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.services.forge_server import Answer, Forge, Request, listening

HEAD = "77de" * 10
PROJECT, CHANGE, PIPELINE = 41, 7, 9001
ROOT = "/api/v4"
OWN, JOB = "glpat-of-the-bot", "glcbt-of-the-job"
_US, _LENA = {"id": 501, "username": "project_41_bot"}, {"id": 7, "username": "lena"}
_STATES = {"pending", "running", "success", "failed", "canceled", "skipped"}


class GitLab(Forge):
    """`knows_skipped`: versions before 17.6 refuse that state. `one_record`: refuses the current state."""

    def __init__(self, *, knows_skipped: bool = True) -> None:
        super().__init__()
        self.one_record = False
        self.states = _STATES if knows_skipped else _STATES - {"skipped"}
        self.labels: list[str] = []
        self.notes: list[dict[str, Any]] = []
        self.all_statuses: list[dict[str, Any]] = []
        self._id = 100

    @property
    def statuses(self) -> dict[str, dict[str, Any]]:
        """Return the last status of each name, as the pipeline shows it."""
        return {entry["name"]: entry for entry in self.all_statuses}

    def says(self, body: str, author: dict[str, Any] | None = None, *, system: bool = False) -> dict[str, Any]:
        """Somebody writes a note; without an author, lena."""
        with self.lock:
            self._id += 1
            self.notes.append({"id": self._id, "body": body, "author": author or _LENA, "system": system})
            return self.notes[-1]

    def answer(self, request: Request) -> Answer:  # noqa: PLR0911  one a kind of answer
        of_change = f"{ROOT}/projects/{PROJECT}/merge_requests/{CHANGE}/notes"
        if request.headers.get("job-token") == JOB:
            if request.method == "GET" and request.path == of_change:
                return self.page_of(self.notes, request)
            return Answer(401, {"message": "401 Unauthorized"})
        if request.headers.get("private-token") != OWN:
            return Answer(401, {"message": "401 Unauthorized"})
        match request.method, request.path:
            case "GET", p if p == f"{ROOT}/user":
                return Answer(200, _US)
            case "GET", p if p == of_change:
                order = (request.query.get("sort"), request.query.get("order_by"))
                if order not in (("asc", "created_at"), ("desc", "created_at"), (None, None)):
                    return self.refuse(400, "sort does not have a valid value")
                return self.page_of(self.notes, request)
            case "POST", p if p == of_change:
                return self._note(request) or Answer(201, self.says(request.body["body"], _US))
            case (("PUT" | "DELETE"), p) if match := re.fullmatch(re.escape(of_change) + r"/(\d+)", p):
                return self._one_note(request, int(match[1]))
            case "PUT", p if p == of_change.removesuffix("/notes"):
                return self._labels(request)
            case "GET", p if p == f"{ROOT}/projects/{PROJECT}/repository/commits/{HEAD}/statuses":
                return self._list(request)
            case "POST", p if p == f"{ROOT}/projects/{PROJECT}/statuses/{HEAD}":
                return self._status(request)
        return self.refuse(404, f"404 Not Found: {request.method} {request.path}")

    def _labels(self, request: Request) -> Answer:
        if wrong := self.checked(request.body, {}, {"add_labels": str, "remove_labels": str}):
            return self.refuse(400, wrong)
        added, removed = (request.body.get(name, "").split(",") for name in ("add_labels", "remove_labels"))
        self.labels = [name for name in dict.fromkeys([*self.labels, *added]) if name and name not in removed]
        return Answer(200, {"id": 1, "iid": CHANGE, "labels": self.labels})

    def _note(self, request: Request) -> Answer | None:
        wrong = self.checked(request.body, {"body": str}, {})
        if wrong or not 0 < len(request.body["body"]) <= 1_000_000:
            return self.refuse(400, wrong or "body is too long")
        return None

    def _one_note(self, request: Request, note_id: int) -> Answer:
        result = next((note for note in self.notes if note["id"] == note_id), None)
        if result is None:
            return Answer(404, {"message": "404 Note Not Found"})
        if request.method == "DELETE":
            self.notes.remove(result)
            return Answer(204)
        refused = self._note(request)
        if refused is None:
            result["body"] = request.body["body"]
        return refused or Answer(200, result)

    def _status(self, request: Request) -> Answer:
        optional = {"name": str, "description": str, "target_url": str, "pipeline_id": int, "ref": str}
        wrong = self.checked(request.body, {"state": str}, optional)
        if not wrong and request.body["state"] not in _STATES:
            wrong = "state is unknown"
        if not wrong and max(len(request.body.get(name, "")) for name in ("description", "target_url")) > 255:
            wrong = "description and target_url have at most 255 characters"
        if not wrong and request.body.get("pipeline_id", PIPELINE) != PIPELINE:
            wrong = "pipeline_id is of another commit"
        if wrong:
            return self.refuse(400, wrong)
        state, name = request.body["state"], request.body.get("name", "default")
        if state not in self.states:
            return Answer(400, {"error": "state does not have a valid value"})
        if self.statuses.get(name, {}).get("state") == state and self.one_record:
            return Answer(400, {"message": f"Cannot transition status via :{state} from :{state}"})
        self._id += 1
        self.all_statuses.append({"id": self._id, **request.body, "name": name, "status": state})
        return Answer(201, self.all_statuses[-1])

    def _list(self, request: Request) -> Answer:
        """A final status never changes: another with its name replaces it, and `all` shows both."""
        named = [entry for entry in self.all_statuses if entry["name"] == request.query.get("name", entry["name"])]
        shown = named if request.query.get("all") == "true" else list({item["name"]: item for item in named}.values())
        return self.page_of([{k: v for k, v in item.items() if k != "state"} for item in shown], request)


@contextmanager
def running_gitlab(*, knows_skipped: bool = True) -> Iterator[GitLab]:
    with listening(GitLab(knows_skipped=knows_skipped), ROOT) as forge:
        yield forge
