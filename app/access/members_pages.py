"""Pages of projects, members, tokens and users."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse, Response

from app.access import members
from app.access.members_api import TokenId, UserId, role_of
from app.domain.access.principal import ADMINISTRATOR, Action, Role, Scope
from app.errors import Conflict, InvalidChange, ThreewallsError
from app.storage import projects
from app.storage.database import transaction
from app.storage.tables import utc_now
from app.storage.tokens import tokens_by_creator
from app.storage.users import User, list_users, roles_by_user
from app.web.access_rule import requires
from app.web.dependencies import AppEngine, ReadSession, Slug, reading
from app.web.forms import Form, answer_form
from app.web.identity import access_of, signed
from app.web.templating import public_address, render

# --- What a job runs to upload with a new token: as in docs/ci.md, with the address and project filled in.

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
"""Upload and verdict without the client. A test keeps it equal to docs/ci.md."""

DOWNLOAD = 'curl --fail -O "$THREEWALLS_URL/client/threewalls.pyz"'
BRANCHES = (
    ("GitHub Actions", '"${GITHUB_HEAD_REF:-$GITHUB_REF_NAME}"'),
    ("GitLab CI", '"$CI_COMMIT_REF_NAME"'),
    ("Jenkins", '"${CHANGE_BRANCH:-$BRANCH_NAME}"'),
    ("Buildkite", '"$BUILDKITE_BRANCH"'),
)
"""Where each CI system has the branch: it checks out a commit, not a branch."""


@dataclass(frozen=True, slots=True)
class JobLines:
    client: str
    curl: str
    github: str
    gitlab: str
    branches: tuple[tuple[str, str], ...] = BRANCHES


def job_lines(url: str, project: str) -> JobLines:
    return JobLines(
        client=f"export THREEWALLS_URL={url}\nthreewalls upload train.log --wait --allow no-baseline,inconclusive",
        curl=f"THREEWALLS_URL={url}\nTHREEWALLS_PROJECT={project}\n{CURL}",
        github=f"""\
- run: |
    {DOWNLOAD}
    python3 threewalls.pyz upload train.log \\
      --wait --allow no-baseline,inconclusive
  if: always()                       # upload failed runs as well
  env:
    THREEWALLS_URL: {url}
    THREEWALLS_TOKEN: ${{{{ secrets.THREEWALLS_TOKEN }}}}
""",
        gitlab=f"""\
perf:
  script:
    - ./train.sh > train.log 2>&1
  after_script:                            # also runs after a failure; its exit code is ignored
    - {DOWNLOAD}
    - python3 threewalls.pyz upload train.log
  variables: {{THREEWALLS_URL: "{url}"}}   # THREEWALLS_TOKEN: a masked variable
""",
    )


# --- Pages of projects, members and tokens.


class MemberForm(Form):
    several = ("scopes",)
    longest = 1_000

    @classmethod
    def has_input(cls, name: str) -> bool:  # noqa: ARG003  # it serves several small forms
        return True

    @property
    def by(self) -> str:
        return signed(self.value("author"))


MAX_FIELDS = 12
LIVES = {"30": "30 days", "90": "90 days", "365": "1 year", "730": "2 years", "never": "never"}
"""Lifetimes of a token that the form offers."""

router = APIRouter(include_in_schema=False, prefix="/settings/projects")


@router.get("")
@requires(Action.READ)
def show_projects(request: Request, session: ReadSession) -> HTMLResponse:
    return _projects_page(request, session, MemberForm())


@router.post("")
@requires(Action.ADMINISTER)
async def create_project(request: Request, engine: AppEngine) -> Response:
    def create(form: MemberForm) -> str:
        with transaction(engine) as session:
            slug = projects.create_project(session, form.value("slug"), by=form.by).slug
        return f"/settings/projects/{quote(slug)}/members"

    def again(session: Session, form: MemberForm, _: ThreewallsError) -> Response:
        return _projects_page(request, session, form, 422)

    catch = (InvalidChange, Conflict)
    return await answer_form(request, MemberForm, create, again, max_fields=MAX_FIELDS, catch=catch)


def _projects_page(request: Request, session: Session, form: MemberForm, status: int = 200) -> HTMLResponse:
    access = access_of(request)
    return render(
        request,
        "access/projects.html",
        status=status,
        projects=[
            (project, role_of(access, project.id), access.may(Action.MANAGE, project.id))
            for project in projects.list_projects(session)
        ],
        form=form,
        administrator=ADMINISTRATOR,
    )


@router.get("/{slug}/members")
@requires(Action.MANAGE, of="project")
def show_members(request: Request, session: ReadSession, slug: Slug) -> HTMLResponse:
    return _members_page(request, session, slug, MemberForm())


@router.post("/{slug}/members")
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
async def add_member(request: Request, engine: AppEngine, slug: Slug) -> Response:
    def add(form: MemberForm) -> str:
        members.set_member(engine, slug, name=form.value("name"), role=form.value("role"), by=form.by, only_new=True)
        return request.url.path

    def again(session: Session, form: MemberForm, _: ThreewallsError) -> Response:
        return _members_page(request, session, slug, form, 422)

    return await answer_form(request, MemberForm, add, again, max_fields=MAX_FIELDS)


@router.post("/{slug}/members/{user_id}")
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
async def change_member(request: Request, engine: AppEngine, slug: Slug, user_id: UserId) -> Response:
    """Change a member's role, or remove the member. Users who lose access to the page by this go to the projects."""

    def change(form: MemberForm) -> str:
        role = "" if form.value("remove") else form.value("role") or "none"
        revoke = not role and form.value("revoke") == "yes"
        may_orphan = access_of(request).may_anywhere(Action.ADMINISTER)
        members.change_role(engine, slug, user_id, role=role, by=form.by, may_orphan=may_orphan, revoke=revoke)
        user = access_of(request).user
        own = user is not None and user.user_id == user_id and not user.administrator
        stays = not own or role == Role.MAINTAINER
        return request.url.path.rpartition("/")[0] if stays else "/settings/projects"

    def again(session: Session, _: MemberForm, error: ThreewallsError) -> Response:
        return _members_page(request, session, slug, MemberForm(problem=error.detail), 422)

    return await answer_form(request, MemberForm, change, again, max_fields=MAX_FIELDS)


@router.post("/{slug}/public")
@requires(Action.MANAGE, of="project", log_ins=True)
async def set_public(request: Request, engine: AppEngine, slug: Slug) -> Response:
    def change(form: MemberForm) -> str:
        members.set_public(engine, slug, form.value("public") == "yes", by=form.by)
        return f"{request.url.path.rpartition('/')[0]}/members#public"

    return await answer_form(request, MemberForm, change, max_fields=MAX_FIELDS)


def _members_page(request: Request, session: Session, slug: str, form: MemberForm, status: int = 200) -> HTMLResponse:
    membership = members.get_membership(session, slug)
    return render(
        request,
        "access/members.html",
        status=status,
        of_project={"id": membership.project_id, "slug": slug},
        membership=membership,
        form=form,
        roles=[role.value for role in Role],
    )


@router.get("/{slug}/tokens")
@requires(Action.MANAGE, of="project")
def show_tokens(
    request: Request, session: ReadSession, slug: Slug, page: Annotated[int, Query(ge=1, le=10**6)] = 1
) -> HTMLResponse:
    return _tokens_page(request, session, slug, MemberForm(), page=page)


@router.post("/{slug}/tokens")
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
async def make_token(request: Request, engine: AppEngine, slug: Slug) -> Response:
    """Create a token. The answer shows it once and must not be cached."""

    def make(form: MemberForm) -> Response:
        life = form.value("life")
        ends = utc_now() + timedelta(days=int(life)) if life in LIVES and life != "never" else None
        if life not in LIVES:
            ends = utc_now() + members.LIFE
        token, secret = members.make_token(
            engine, slug, name=form.value("name"), scopes=form.chosen["scopes"], expires_at=ends, by=form.by
        )
        with reading(request) as session:
            return _tokens_page(request, session, slug, MemberForm(), created=token, secret=secret)

    def again(session: Session, form: MemberForm, _: ThreewallsError) -> Response:
        return _tokens_page(request, session, slug, form, status=422)

    return await answer_form(request, MemberForm, make, again, max_fields=MAX_FIELDS)


@router.post("/{slug}/tokens/{token_id}/revoke")
@requires(Action.MANAGE, of="project", log_ins=True)
async def revoke_token(request: Request, engine: AppEngine, slug: Slug, token_id: TokenId) -> Response:
    def revoke(form: MemberForm) -> str:
        members.revoke_token(engine, slug, token_id, by=form.by)
        return request.url.path.rsplit("/", 2)[0]

    return await answer_form(request, MemberForm, revoke, max_fields=MAX_FIELDS)


def _tokens_page(
    request: Request,
    session: Session,
    slug: str,
    form: MemberForm,
    *,
    status: int = 200,
    created: members.TokenView | None = None,
    secret: str = "",
    page: int = 1,
) -> HTMLResponse:
    project = projects.find_project(session, slug)
    response = render(
        request,
        "access/tokens.html",
        status=status,
        of_project={"id": project.id, "slug": slug},
        tokens=members.list_tokens(session, slug, page=page),
        form=form,
        scopes=[scope.value for scope in Scope],
        lives=LIVES,
        created=created,
        secret=secret,
        job=job_lines(public_address(request), slug),
    )
    if secret:
        response.headers["Cache-Control"] = "no-store"
    return response


# --- The page of users, for administrators.

_CHANGES: dict[str, dict[str, bool]] = {
    "disable": {"disabled": True},
    "enable": {"disabled": False},
    "make administrator": {"administrator": True},
    "no administrator": {"administrator": False},
}
"""What the buttons of a user change, by the value of the button."""
_RESET = "reset password"

users_router = APIRouter(include_in_schema=False, prefix="/settings/users")


@users_router.get("")
@requires(Action.ADMINISTER)
def show_users(request: Request, session: ReadSession) -> HTMLResponse:
    return _page(request, session, MemberForm())


@users_router.post("")
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
async def add_user(request: Request, engine: AppEngine) -> Response:
    """Create a user. The answer shows the initial password once and must not be cached."""

    def add(form: MemberForm) -> Response:
        user_and_password = members.create_user(
            engine, name=form.value("name"), email=form.value("email"),
            administrator=form.value("administrator") == "yes", by=form.by,
        )  # fmt: skip
        with reading(request) as session:
            return _page(request, session, MemberForm(), created=user_and_password)

    def again(session: Session, form: MemberForm, _: ThreewallsError) -> Response:
        return _page(request, session, form, 422)

    catch = (InvalidChange, Conflict)
    return await answer_form(request, MemberForm, add, again, max_fields=MAX_FIELDS, catch=catch)


@users_router.post("/{user_id}")
@requires(Action.ADMINISTER, log_ins=True, confirm=True)
async def change_user(request: Request, engine: AppEngine, user_id: UserId) -> Response:
    """Change a user. `do` in the form: the value of the button."""

    def change(form: MemberForm) -> str | Response:
        button = form.value("do")
        if button == _RESET:
            user_and_password = members.reset_password(engine, user_id, by=form.by)
            with reading(request) as session:
                return _page(request, session, MemberForm(), created=user_and_password)
        if (changes := _CHANGES.get(button)) is None:
            raise InvalidChange("Unknown action. Nothing was changed.")
        revoke = button == "disable" and form.value("revoke") == "yes"
        members.change_user(engine, user_id, by=form.by, revoke=revoke, **changes)
        user = access_of(request).user
        # Administrators who demote or disable themselves may no longer see this page.
        own = user is not None and user.user_id == user_id and button in ("disable", "no administrator")
        return "/" if own else "/settings/users"

    def again(session: Session, _: MemberForm, error: ThreewallsError) -> Response:
        return _page(request, session, MemberForm(), 422, refused=error)

    catch = (InvalidChange, Conflict)
    return await answer_form(request, MemberForm, change, again, max_fields=MAX_FIELDS, catch=catch)


def _page(
    request: Request,
    session: Session,
    form: MemberForm,
    status: int = 200,
    *,
    created: tuple[User, str] | None = None,
    refused: ThreewallsError | None = None,
) -> HTMLResponse:
    response = render(
        request,
        "access/users.html",
        status=status,
        users=list_users(session),
        roles=roles_by_user(session),
        tokens=tokens_by_creator(session),
        form=form,
        created=created,
        refused=refused,
    )
    if created:
        response.headers["Cache-Control"] = "no-store"
    return response
