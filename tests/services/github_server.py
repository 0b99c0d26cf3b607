"""A server that accepts only those requests of GitHub's REST API that a report needs, as documented.

https://docs.github.com/en/rest/issues/comments, .../issues/labels, .../checks/runs, .../commits/statuses,
.../users/users (2022-11-28).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from tests.services.forge_server import Answer, Forge, Request, listening

HEAD = "5f3a" * 10
REPOSITORY = "moe/training"
CHANGE = 12
APP, PERSON, FORK = "ghs_of-the-job", "ghp_of-lena", "ghs_of-a-fork"
_WHO = {APP: ("github-actions[bot]", "Bot"), PERSON: ("lena", "User"), FORK: ("github-actions[bot]", "Bot")}
_CONCLUSIONS = {"action_required", "cancelled", "failure", "neutral", "success", "skipped", "timed_out"}
_TEXT = {"name": str, "status": str, "conclusion": str, "details_url": str, "output": dict}
_NOT_YOURS = Answer(403, {"message": "Resource not accessible by integration"}, {"X-RateLimit-Remaining": "4999"})


class GitHub(Forge):
    def __init__(self, root: str = "") -> None:
        super().__init__()
        self.root = root
        self.is_fork = False
        self.labels: list[str] = []
        self.comments: list[dict[str, Any]] = []
        self.checks: list[dict[str, Any]] = []
        self.statuses: list[dict[str, Any]] = []
        self._id = 100

    def says(self, login: str, body: str, kind: str = "User") -> dict[str, Any]:
        """Somebody writes a comment."""
        with self.lock:
            self._id += 1
            self.comments.append({"id": self._id, "body": body, "user": {"login": login, "type": kind}})
            return self.comments[-1]

    def answer(self, request: Request) -> Answer:  # noqa: PLR0911  one a kind of answer
        if not request.headers.get("user-agent"):
            return self.refuse(403, "Request forbidden by administrative rules: no User-Agent")
        if request.headers.get("accept") != "application/vnd.github+json":
            return self.refuse(415, "Accept is to be application/vnd.github+json")
        if request.headers.get("x-github-api-version") != "2022-11-28":
            return self.refuse(400, "X-GitHub-Api-Version is unknown")
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in _WHO:
            return Answer(401, {"message": "Bad credentials"})
        path = request.path.removeprefix(self.root)
        if path == "/user" and request.method == "GET":
            return Answer(200, {"login": _WHO[token][0]}) if token == PERSON else _NOT_YOURS
        prefix = f"/repos/{REPOSITORY}"
        if not request.path.startswith(self.root + prefix):
            return self.refuse(404, f"Not Found: {request.path}")
        if token == FORK and request.method != "GET":
            return _NOT_YOURS
        return self._of_repository(request, path.removeprefix(prefix), token)

    def _of_repository(self, request: Request, path: str, token: str) -> Answer:  # noqa: PLR0911  one a route
        match request.method, path:
            case "GET", p if p == f"/issues/{CHANGE}/comments":
                return self.page_of(self.comments, request)
            case "POST", p if p == f"/issues/{CHANGE}/comments":
                login, kind = _WHO[token]
                return self._comment(request) or Answer(201, self.says(login, request.body["body"], kind))
            case (("PATCH" | "DELETE"), p) if match := re.fullmatch(r"/issues/comments/(\d+)", p):
                return self._one_comment(request, int(match[1]))
            case "POST", p if p == f"/issues/{CHANGE}/labels":
                return self._add_labels(request)
            case "DELETE", p if p.startswith(f"/issues/{CHANGE}/labels/"):
                return self._remove_label(unquote(p.rpartition("/")[2]))
            case "GET", p if p == f"/pulls/{CHANGE}":
                return Answer(200, self._pull())
            case "GET", p if p == f"/commits/{HEAD}/check-runs":
                return self._checks(request)
            case "GET", p if p == f"/commits/{HEAD}/statuses":
                return self.page_of(self.statuses[::-1], request)
            case "POST", "/check-runs":
                return self._check(request, token, None)
            case "PATCH", p if match := re.fullmatch(r"/check-runs/(\d+)", p):
                return self._check(request, token, int(match[1]))
            case "POST", p if p == f"/statuses/{HEAD}":
                return self._status(request)
        return self.refuse(404, f"Not Found: {request.method} {path}")

    def _pull(self) -> dict[str, Any]:
        owner = "lena" if self.is_fork else REPOSITORY.partition("/")[0]
        repository = {"full_name": f"{owner}/{REPOSITORY.rpartition('/')[2]}"}
        head = {"sha": HEAD, "ref": "faster", "label": f"{owner}:faster", "repo": repository}
        return {"id": 1, "number": CHANGE, "head": head, "base": {"ref": "main"}}

    def _add_labels(self, request: Request) -> Answer:
        if wrong := self.checked(request.body, {"labels": list}, {}):
            return self.refuse(422, wrong)
        self.labels += [name for name in request.body["labels"] if name not in self.labels]
        return Answer(200, [{"id": number, "name": name} for number, name in enumerate(self.labels)])

    def _remove_label(self, name: str) -> Answer:
        if name not in self.labels:
            return Answer(404, {"message": "Label does not exist"})
        self.labels.remove(name)
        return Answer(200, [{"id": number, "name": name} for number, name in enumerate(self.labels)])

    def _checks(self, request: Request) -> Answer:
        """`latest` has one of each name, `all` has every one."""
        wanted = request.query.get("filter", "latest")
        if wanted not in ("latest", "all"):
            return self.refuse(422, "filter is latest or all")
        named = [check for check in self.checks if check["name"] == request.query.get("check_name", check["name"])]
        shown = named if wanted == "all" else list({item["name"]: item for item in named}.values())
        listed = self.page_of(shown, request)
        return Answer(listed.status, {"total_count": len(shown), "check_runs": listed.body}, listed.headers)

    def _comment(self, request: Request) -> Answer | None:
        wrong = self.checked(request.body, {"body": str}, {})
        if wrong or not 0 < len(request.body["body"]) <= 65536:
            return self.refuse(422, wrong or "body is too long (maximum is 65536 characters)")
        return None

    def _one_comment(self, request: Request, comment_id: int) -> Answer:
        result = next((comment for comment in self.comments if comment["id"] == comment_id), None)
        if result is None:
            return Answer(404, {"message": "Not Found"})
        if request.method == "DELETE":
            self.comments.remove(result)
            return Answer(204)
        refused = self._comment(request)
        if refused is None:
            result["body"] = request.body["body"]
        return refused or Answer(200, result)

    def _check(self, request: Request, token: str, check_id: int | None) -> Answer:
        if token != APP:
            return Answer(403, {"message": "You must authenticate via a GitHub App."})
        required = {"name": str, "head_sha": str} if check_id is None else {}
        wrong = self.checked(request.body, required, {**_TEXT, "external_id": str})
        body = request.body if isinstance(request.body, dict) else {}
        if body.get("status") == "completed" and body.get("conclusion") not in _CONCLUSIONS:
            wrong = "conclusion is required when a check is completed, and one of those of the documentation"
        output = body.get("output", {})
        if output and (output.keys() != {"title", "summary"} or len(output["summary"]) > 65535):
            wrong = "output has a title, and a summary of at most 65535 characters"
        if check_id is None and body.get("head_sha") != HEAD:
            wrong = "No commit found for SHA"
        if wrong:
            return self.refuse(422, wrong)
        if check_id is None:
            self._id += 1
            self.checks.append({"id": self._id, **body, "output": self._output(output)})
            return Answer(201, self.checks[-1])
        result = next(check for check in self.checks if check["id"] == check_id)
        result.update({**body, "output": self._output(output)})
        return Answer(200, result)

    @staticmethod
    def _output(output: dict[str, Any]) -> dict[str, Any]:
        """In the form of an answer, which has more fields than a request."""
        return {"text": None, "annotations_count": 0, **output}

    def _status(self, request: Request) -> Answer:
        wrong = self.checked(request.body, {"state": str}, {"target_url": str, "description": str, "context": str})
        if not wrong and request.body["state"] not in ("error", "failure", "pending", "success"):
            wrong = "state is not included in the list"
        if not wrong and len(request.body.get("description", "")) > 140:
            wrong = "description is too long (maximum is 140 characters)"
        if wrong:
            return self.refuse(422, wrong)
        self._id += 1
        self.statuses.append({"id": self._id, **request.body})
        return Answer(201, self.statuses[-1])


@contextmanager
def running_github(root: str = "") -> Iterator[GitHub]:
    with listening(GitHub(root), root) as forge:
        yield forge
