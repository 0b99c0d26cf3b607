"""Pages of projects, their members and tokens. HTTP in, template out."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Annotated, Self

from fastapi import APIRouter, Path, Query, Request
from sqlalchemy import Engine
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData
from starlette.responses import HTMLResponse, RedirectResponse, Response

from app.access import members
from app.access.members_api import LARGEST_ID, UserId, role_of
from app.domain.access.principal import ADMINISTRATOR, Action, Role, Scope
from app.errors import Conflict, InvalidChange, ThreewallsError
from app.storage import projects
from app.storage.database import read_session, transaction
from app.storage.tables import utc_now
from app.storage.tokens import made_in_force
from app.storage.users import User, list_users, roles_by_user
from app.web.dependencies import AppEngine
from app.web.forms import sent_form
from app.web.identity import access_of, signed
from app.web.templating import public_address, render

# --- The lines by which a job uploads with a new token: those of docs/ci.md, with this service's address and project.

CURL = """\
branch=${BRANCH:-$(git symbolic-ref -q --short HEAD)} || { echo "HEAD is detached: set BRANCH" >&2; exit 3; }
meta=$(printf '{"project": "%s", "branch": "%s", "commit": "%s", "commit_time": "%s"}' "$THREEWALLS_PROJECT" \\
  "$branch" "$(git rev-parse HEAD)" "$(git show -s --format=%cI)")
curl -sS --fail-with-body --retry 5 --retry-connrefused -H "Authorization: Bearer $THREEWALLS_TOKEN" \\
  -H "Idempotency-Key: $JOB_ID" -F log=@train.log -F "meta=$meta" "$THREEWALLS_URL/api/v1/runs" > run.json \\
  || { cat run.json >&2; exit 3; }
run=$(grep -oE '"id": ?[0-9]+' run.json | head -n 1 | grep -oE '[0-9]+')
curl -sS --fail-with-body --retry 5 --retry-connrefused -H "Authorization: Bearer $THREEWALLS_TOKEN" \\
  "$THREEWALLS_URL/api/v1/runs/$run/report?wait=60" > report.json || { cat report.json >&2; exit 3; }
code=$(grep -oE '"exit_code": ?[0-9]' report.json | head -n 1 | grep -oE '[0-9]$') || true
exit "${code:-3}"
"""
"""Upload and verdict without the client. Kept equal to docs/ci.md by its test."""

INSTALL = "pip install 'threewalls @ git+https://git.example.org/tools/threewalls@COMMIT'"
BRANCHES = (
    ("GitHub Actions", '"${GITHUB_HEAD_REF:-$GITHUB_REF_NAME}"'),
    ("GitLab CI", '"$CI_COMMIT_REF_NAME"'),
    ("Jenkins", '"${CHANGE_BRANCH:-$BRANCH_NAME}"'),
    ("Buildkite", '"$BUILDKITE_BRANCH"'),
)
"""What `BRANCH` is in a job of each: CI systems check a commit out and no branch."""


@dataclass(frozen=True, slots=True)
class JobLines:
    client: str
    curl: str
    github: str
    gitlab: str
    branches: tuple[tuple[str, str], ...] = BRANCHES


def job_lines(url: str, project: str, states: str = "") -> JobLines:
    """`states`: what the client is told besides, as words of its command line."""
    upload = f"threewalls upload train.log{' ' + states if states else ''}"
    return JobLines(
        client=f"export THREEWALLS_URL={url}\n{upload} --wait --allow no-baseline,inconclusive",
        curl=f"THREEWALLS_URL={url}\nTHREEWALLS_PROJECT={project}\n{CURL}",
        github=f"""\
- run: |
    {INSTALL}
    {upload} --wait --allow no-baseline,inconclusive
  if: always()                       # a run that failed is worth a look, too
  env:
    THREEWALLS_URL: {url}
    THREEWALLS_TOKEN: ${{{{ secrets.THREEWALLS_TOKEN }}}}
""",
        gitlab=f"""\
perf:
  script:
    - ./train.sh > train.log 2>&1
  after_script:                            # runs after a failure, too; its exit code does not count
    - {INSTALL}
    - {upload}
  variables: {{THREEWALLS_URL: "{url}"}}   # THREEWALLS_TOKEN: a masked variable
""",
    )


# --- A form as it was sent, and what is wrong with it, by input.

MAX_FIELDS = 12
_MOST_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class Form:
    """`problem`: what is wrong with none of its inputs. `several`: of inputs that stand there more than once."""

    values: Mapping[str, str] = field(default_factory=dict)
    several: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    errors: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    @classmethod
    def read(cls, sent: FormData) -> Self:
        texts = [(name, value[:_MOST_CHARACTERS]) for name, value in sent.multi_items() if isinstance(value, str)]
        several: dict[str, tuple[str, ...]] = {}
        for name, value in texts:
            several[name] = (*several.get(name, ()), value)
        return cls(dict(texts), several)

    def value(self, name: str) -> str:
        return self.values.get(name, "")

    def all(self, name: str) -> tuple[str, ...]:
        return self.several.get(name, ())

    def error(self, name: str) -> str:
        return self.errors.get(name, "")

    def refused(self, error: ThreewallsError) -> Self:
        if error.errors:
            return replace(self, errors={one.field: one.message for one in error.errors})
        return replace(self, problem=error.detail)


LIVES = {"30": "30 days", "90": "90 days", "365": "1 year", "730": "2 years", "never": "never"}
"""How long a token lives, as the form offers it."""

router = APIRouter(include_in_schema=False, prefix="/settings/projects")

Slug = Annotated[str, Path(min_length=1, max_length=100)]
TokenId = Annotated[int, Path(ge=1, le=LARGEST_ID)]


async def read_form(request: Request) -> Form:
    async with sent_form(request, max_files=0, max_fields=MAX_FIELDS) as sent:
        return Form.read(sent)


@router.get("")
def show_projects(request: Request, engine: AppEngine) -> HTMLResponse:
    return _projects_page(request, engine, Form())


@router.post("")
async def create_project(request: Request, engine: AppEngine) -> Response:
    form = await read_form(request)
    return await run_in_threadpool(_create_project, request, engine, form)


def _create_project(request: Request, engine: Engine, form: Form) -> Response:
    try:
        with transaction(engine) as session:
            slug = projects.create_project(session, form.value("slug").strip(), by=signed(form.value("author"))).slug
    except (InvalidChange, Conflict) as error:
        return _projects_page(request, engine, form.refused(error), 422)
    return RedirectResponse(f"/settings/projects/{slug}/members", 303)


def _projects_page(request: Request, engine: Engine, form: Form, status: int = 200) -> HTMLResponse:
    access = access_of(request)
    with read_session(engine) as session:
        found = projects.list_projects(session)
    return render(
        request,
        "members/projects.html",
        status=status,
        projects=[(one, role_of(access, one.id), access.may(Action.MANAGE, one.id)) for one in found],
        form=form,
        administrator=ADMINISTRATOR,
    )


@router.get("/{slug}/members")
def show_members(request: Request, engine: AppEngine, slug: Slug) -> HTMLResponse:
    return _members_page(request, engine, slug, Form())


@router.post("/{slug}/members")
async def add_member(request: Request, engine: AppEngine, slug: Slug) -> Response:
    form = await read_form(request)
    return await run_in_threadpool(_add_member, request, engine, slug, form)


def _add_member(request: Request, engine: Engine, slug: str, form: Form) -> Response:
    by = signed(form.value("author"))
    try:
        members.set_member(engine, slug, name=form.value("name"), role=form.value("role"), by=by, only_new=True)
    except InvalidChange as error:
        return _members_page(request, engine, slug, form.refused(error), 422)
    return RedirectResponse(request.url.path, 303)


@router.post("/{slug}/members/{user_id}")
async def change_member(request: Request, engine: AppEngine, slug: Slug, user_id: UserId) -> Response:
    """Another role, or none. Somebody who takes their own leaves the page that they may see no longer."""
    form = await read_form(request)
    return await run_in_threadpool(_change_member, request, engine, slug, user_id, form)


def _change_member(request: Request, engine: Engine, slug: str, user_id: int, form: Form) -> Response:
    role = "" if form.value("remove") else form.value("role") or "none"
    revoke = not role and form.value("revoke") == "yes"
    by, may_orphan = signed(form.value("author")), access_of(request).may_anywhere(Action.ADMINISTER)
    try:
        members.change_role(engine, slug, user_id, role=role, by=by, may_orphan=may_orphan, revoke=revoke)
    except InvalidChange as error:
        return _members_page(request, engine, slug, Form(problem=error.detail), 422)
    person = access_of(request).person
    own = person is not None and person.user_id == user_id and not person.administrator
    stays = not own or role == Role.MAINTAINER
    return RedirectResponse(request.url.path.rpartition("/")[0] if stays else "/settings/projects", 303)


@router.post("/{slug}/public")
async def set_public(request: Request, engine: AppEngine, slug: Slug) -> Response:
    form = await read_form(request)
    public = form.value("public") == "yes"
    await run_in_threadpool(members.set_public, engine, slug, public, by=signed(form.value("author")))
    return RedirectResponse(f"{request.url.path.rpartition('/')[0]}/members#public", 303)


def _members_page(request: Request, engine: Engine, slug: str, form: Form, status: int = 200) -> HTMLResponse:
    with read_session(engine) as session:
        found = members.get_membership(session, slug)
    return render(
        request,
        "members/members.html",
        status=status,
        of_project={"id": found.project_id, "slug": slug},
        found=found,
        form=form,
        roles=[role.value for role in Role],
    )


@router.get("/{slug}/tokens")
def show_tokens(
    request: Request, engine: AppEngine, slug: Slug, page: Annotated[int, Query(ge=1, le=10**6)] = 1
) -> HTMLResponse:
    return _tokens_page(request, engine, slug, Form(), page=page)


@router.post("/{slug}/tokens")
async def make_token(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """The page that follows shows the token, once; no cache keeps it."""
    form = await read_form(request)
    return await run_in_threadpool(_make_token, request, engine, slug, form)


def _make_token(request: Request, engine: Engine, slug: str, form: Form) -> Response:
    life = form.value("life")
    ends = utc_now() + timedelta(days=int(life)) if life in LIVES and life != "never" else None
    if life not in LIVES:
        ends = utc_now() + members.LIFE
    try:
        made, secret = members.make_token(
            engine, slug, name=form.value("name"), scopes=form.all("scopes"), expires_at=ends,
            by=signed(form.value("author")),
        )  # fmt: skip
    except InvalidChange as error:
        return _tokens_page(request, engine, slug, form.refused(error), status=422)
    return _tokens_page(request, engine, slug, Form(), made=made, secret=secret)


@router.post("/{slug}/tokens/{token_id}/revoke")
async def revoke_token(request: Request, engine: AppEngine, slug: Slug, token_id: TokenId) -> Response:
    form = await read_form(request)
    await run_in_threadpool(members.revoke_token, engine, slug, token_id, by=signed(form.value("author")))
    return RedirectResponse(request.url.path.rsplit("/", 2)[0], 303)


def _tokens_page(
    request: Request,
    engine: Engine,
    slug: str,
    form: Form,
    *,
    status: int = 200,
    made: members.Token | None = None,
    secret: str = "",
    page: int = 1,
) -> HTMLResponse:
    with read_session(engine) as session:
        project = projects.find_project(session, slug)
        found = members.list_tokens(session, slug, page=page)
    response = render(
        request,
        "members/tokens.html",
        status=status,
        of_project={"id": project.id, "slug": slug},
        tokens=found,
        form=form,
        scopes=[scope.value for scope in Scope],
        lives=LIVES,
        made=made,
        secret=secret,
        job=job_lines(public_address(request), slug),
    )
    if secret:
        response.headers["Cache-Control"] = "no-store"
    return response


# --- The page of people, for administrators. HTTP in, template out.

_STANDINGS: dict[str, dict[str, bool]] = {
    "disable": {"disabled": True},
    "enable": {"disabled": False},
    "make administrator": {"administrator": True},
    "no administrator": {"administrator": False},
}
_RESET = "reset password"

users_router = APIRouter(include_in_schema=False, prefix="/settings/users")


@users_router.get("")
def show_people(request: Request, engine: AppEngine) -> HTMLResponse:
    return _page(request, engine, Form())


@users_router.post("")
async def add_person(request: Request, engine: AppEngine) -> HTMLResponse:
    """The page that follows shows the first password, once; no cache keeps it."""
    form = await read_form(request)
    return await run_in_threadpool(_add, request, engine, form)


@users_router.post("/{user_id}")
async def change_person(request: Request, engine: AppEngine, user_id: UserId) -> Response:
    """`do`: what is to be done, as its button says."""
    form = await read_form(request)
    return await run_in_threadpool(_change, request, engine, user_id, form)


def _add(request: Request, engine: Engine, form: Form) -> HTMLResponse:
    try:
        user, password = members.add_person(
            engine, name=form.value("name"), email=form.value("email").strip(),
            administrator=form.value("administrator") == "yes", by=signed(form.value("author")),
        )  # fmt: skip
    except (InvalidChange, Conflict) as error:
        return _page(request, engine, form.refused(error), 422)
    return _page(request, engine, Form(), made=(user, password))


def _change(request: Request, engine: Engine, user_id: int, form: Form) -> Response:
    wanted, by = form.value("do"), signed(form.value("author"))
    try:
        if wanted == _RESET:
            return _page(request, engine, Form(), made=members.reset_password(engine, user_id, by=by))
        if (standing := _STANDINGS.get(wanted)) is None:
            raise InvalidChange("This is nothing that can be done with an account. Nothing was changed.")
        revoke = wanted == "disable" and form.value("revoke") == "yes"
        members.change_person(engine, user_id, by=by, revoke=revoke, **standing)
    except (InvalidChange, Conflict) as error:
        return _page(request, engine, Form(), 422, refused=error)
    person = access_of(request).person
    # Whoever gives it up, or disables the own account, may not see this page any longer.
    own = person is not None and person.user_id == user_id and wanted in ("disable", "no administrator")
    return RedirectResponse("/" if own else "/settings/users", 303)


def _page(
    request: Request,
    engine: Engine,
    form: Form,
    status: int = 200,
    *,
    made: tuple[User, str] | None = None,
    refused: ThreewallsError | None = None,
) -> HTMLResponse:
    with read_session(engine) as session:
        found, roles, tokens = list_users(session), roles_by_user(session), made_in_force(session)
    response = render(
        request,
        "members/people.html",
        status=status,
        people=found,
        roles=roles,
        tokens=tokens,
        form=form,
        made=made,
        refused=refused,
    )
    if made:
        response.headers["Cache-Control"] = "no-store"
    return response
