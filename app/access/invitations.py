"""Invitations: a maintainer invites a person to a project by a link, which one person can accept.

The person chooses a name and a password, logs in with the identity provider where the service has one, or joins with
the user that they have.
"""

from dataclasses import replace
from datetime import datetime
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Request
from pydantic import BaseModel, Field
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from app.access import login
from app.access.guards import CREDENTIALS_BYTES
from app.access.login import with_password
from app.access.members import read_role
from app.access.members_api import Author
from app.access.pages import came_from, logged_in
from app.domain.access import passwords
from app.domain.access.principal import Action, LoggedInUser, Role
from app.domain.text import one_line
from app.errors import Conflict, FieldError, InvalidChange, ThreewallsError
from app.settings import Settings
from app.storage import invitations, users
from app.storage.database import read_session, transaction
from app.storage.invitations import MAX_DAYS, MAX_EMAIL, Invitation
from app.storage.projects import find_project
from app.storage.tables import MemberRow
from app.storage.visible import EVERY_PROJECT, seeing
from app.web.access_rule import Open, requires
from app.web.dependencies import (
    LARGEST_NUMBER,
    ApiValue,
    AppEngine,
    AppSettings,
    ReadSession,
    Slug,
    api_router,
    reading,
)
from app.web.errors import documented
from app.web.forms import Form, answer_form, sent_form
from app.web.identity import access_of, signed
from app.web.templating import public_address, render

DAYS = 7
"""Default lifetime of an invitation."""
LIVES = {"1": "1 day", "7": "7 days", "14": "14 days", "30": "30 days"}
_NO_STORE = {"Cache-Control": "no-store"}
_ORDER = list(Role)
_MAX_FIELDS = 5

InvitationId = Annotated[int, Path(ge=1, le=LARGEST_NUMBER, description="Id of the invitation.")]
Secret = Annotated[str, Path(max_length=100)]


def invite(
    engine: Engine, settings: Settings, slug: str, *, role: str, email: str, days: int, by: str
) -> tuple[Invitation, str]:
    """Create an invitation and return it with its secret. Raises InvalidChange, NotFound."""
    new_role, address = read_role(role), one_line(email)
    domains = settings.oidc_email_domains
    wrong = ""
    if address and ("@" not in address.strip("@ ") or len(address) > MAX_EMAIL):
        wrong = "must be an e-mail address, for example ada@example.org, or empty"
    elif address and domains and address.rpartition("@")[2].lower() not in domains:
        wrong = f"must have a domain that may log in here: {', '.join(sorted(domains))}"
    if wrong:
        raise InvalidChange(f"No invitation was created: the e-mail {wrong}.", (FieldError("email", wrong),))
    with transaction(engine) as session:
        project = find_project(session, slug)
        return invitations.create_invitation(session, project=project, role=new_role, email=address, days=days, by=by)


def revoke(engine: Engine, slug: str, invitation_id: int, *, by: str) -> Invitation:
    with transaction(engine) as session:
        return invitations.revoke_invitation(session, find_project(session, slug), invitation_id, by=by)


# --- `/api/v1/projects/{slug}/invitations`.


class InvitationOut(ApiValue):
    id: int
    role: Role
    email: str = Field(description="E-mail address of the invited person; may be empty.")
    state: str = Field(description="`open`, `accepted`, `revoked` or `expired`.")
    created_by: str
    created_at: datetime
    expires_at: datetime
    accepted_at: datetime | None
    accepted_by: str
    revoked_at: datetime | None
    revoked_by: str


class InvitationCreated(InvitationOut):
    link: str = Field(description="The address to send. It is shown only once.")


class InvitationList(BaseModel):
    items: list[InvitationOut] = Field(description="Open ones first, newest first.")


class NewInvitation(BaseModel, extra="forbid"):
    role: Role
    email: str = Field("", max_length=MAX_EMAIL, description="E-mail address of a new user. No mail is sent.")
    days: int = Field(DAYS, ge=1, le=MAX_DAYS, description="Days until the link expires.")
    author: Author = ""


api = api_router("access", "/api/v1/projects")


@api.get("/{slug}/invitations", responses=documented(404, 422))
@requires(Action.MANAGE, of="project")
def read_invitations(session: ReadSession, slug: Slug) -> InvitationList:
    """List the invitations to the project."""
    listed = invitations.list_invitations(session, find_project(session, slug))
    return InvitationList(items=[InvitationOut.model_validate(invitation) for invitation in listed])


@api.post("/{slug}/invitations", status_code=201, responses=documented(404, 422), response_model=InvitationCreated)
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
def create_invitation(
    request: Request, engine: AppEngine, settings: AppSettings, slug: Slug, body: NewInvitation
) -> JSONResponse:
    """Invite a person by a link. Only this answer shows the link."""
    invitation, secret = invite(
        engine, settings, slug, role=body.role, email=body.email, days=body.days, by=signed(body.author)
    )
    answer = InvitationCreated.from_values(invitation, link=_link(request, secret))
    return JSONResponse(answer.model_dump(mode="json"), 201, _NO_STORE)


@api.delete("/{slug}/invitations/{invitation_id}", responses=documented(404, 422))
@requires(Action.MANAGE, of="project", log_ins=True)
def revoke_invitation(engine: AppEngine, slug: Slug, invitation_id: InvitationId) -> InvitationOut:
    """Revoke an invitation. One that was accepted stays accepted: remove the member instead."""
    return InvitationOut.model_validate(revoke(engine, slug, invitation_id, by=signed()))


def _link(request: Request, secret: str) -> str:
    return f"{public_address(request)}/invite/{secret}"


# --- The page of a project's invitations.


class InvitationForm(Form):
    inputs = ("role", "email", "days")
    longest = MAX_EMAIL + 1


router = APIRouter(include_in_schema=False)


@router.get("/settings/projects/{slug}/invitations")
@requires(Action.MANAGE, of="project")
def show_invitations(request: Request, session: ReadSession, slug: Slug) -> HTMLResponse:
    return _page(request, session, slug, InvitationForm())


@router.post("/settings/projects/{slug}/invitations")
@requires(Action.MANAGE, of="project", log_ins=True, confirm=True)
async def make_invitation(request: Request, engine: AppEngine, settings: AppSettings, slug: Slug) -> Response:
    """Create an invitation. The answer shows its link once and must not be cached."""

    def make(form: InvitationForm) -> Response:
        days = int(form.value("days")) if form.value("days") in LIVES else DAYS
        _, secret = invite(
            engine, settings, slug, role=form.value("role"), email=form.value("email"), days=days, by=signed("")
        )
        with reading(request) as session:
            return _page(request, session, slug, InvitationForm(), link=_link(request, secret))

    def again(session: Session, form: InvitationForm, _: ThreewallsError) -> Response:
        return _page(request, session, slug, form, status=422)

    return await answer_form(request, InvitationForm, make, again, max_fields=_MAX_FIELDS)


@router.post("/settings/projects/{slug}/invitations/{invitation_id}/revoke")
@requires(Action.MANAGE, of="project", log_ins=True)
async def end_invitation(request: Request, engine: AppEngine, slug: Slug, invitation_id: InvitationId) -> Response:
    def end(_: InvitationForm) -> str:
        revoke(engine, slug, invitation_id, by=signed(""))
        return request.url.path.rsplit("/", 2)[0]

    return await answer_form(request, InvitationForm, end, max_fields=_MAX_FIELDS)


def _page(
    request: Request, session: Session, slug: str, form: InvitationForm, *, status: int = 200, link: str = ""
) -> HTMLResponse:
    project = find_project(session, slug)
    response = render(
        request,
        "access/invitations.html",
        status=status,
        of_project={"id": project.id, "slug": project.slug},
        invitations=invitations.list_invitations(session, project),
        form=form,
        roles=[role.value for role in Role],
        lives=LIVES,
        life=form.value("days") or str(DAYS),
        link=link,
    )
    response.headers.update(_NO_STORE)
    return response


# --- The page behind the link.


class AcceptForm(Form):
    inputs = ("name", "password", "again")
    longest = 1_000


@router.get("/invite/{secret}")
@requires(Open.ANYONE)
def show_invitation(request: Request, engine: AppEngine, secret: Secret) -> Response:
    if access_of(request).is_open:
        return RedirectResponse("/", 303)
    return _accept_page(request, engine, secret, AcceptForm())


@router.post("/invite/{secret}", max_body_size=CREDENTIALS_BYTES)
@requires(Open.ANYONE)
async def accept_invitation(request: Request, engine: AppEngine, settings: AppSettings, secret: Secret) -> Response:
    """Join the project: a user who is logged in as this user, another person as a new user with a name and password."""
    user = access_of(request).user
    if access_of(request).is_open:
        return RedirectResponse("/", 303)
    async with sent_form(request, max_files=0, max_fields=_MAX_FIELDS) as sent:
        form = AcceptForm.read(sent)
    if user is not None:
        return await run_in_threadpool(_join, engine, secret, user)
    return await with_password(_join_as_new_user, request, engine, settings, secret, form)


def _join(engine: Engine, secret: str, user: LoggedInUser) -> Response:
    with seeing(EVERY_PROJECT), transaction(engine) as session:
        invitation = invitations.find_invitation(session, secret)
        invitations.use_invitation(session, invitation, by=user.name)
        _give_role(session, invitation, user.user_id)
    return RedirectResponse(_home(invitation), 303, _NO_STORE)


def _join_as_new_user(request: Request, engine: Engine, settings: Settings, secret: str, form: AcceptForm) -> Response:
    try:
        with seeing(EVERY_PROJECT):
            invitation, session_secret = _create_user(request, engine, settings, secret, form)
    except (InvalidChange, Conflict) as error:
        if isinstance(error, users.NameTaken):
            form = form.refused(InvalidChange(error.detail, (FieldError("name", "is taken; choose another"),)))
        else:
            form = form.refused(error)
        return _accept_page(request, engine, secret, form, status=422)
    response = logged_in(request, session_secret, _home(invitation))
    response.headers.update(_NO_STORE)
    return response


def _create_user(
    request: Request, engine: Engine, settings: Settings, secret: str, form: AcceptForm
) -> tuple[Invitation, str]:
    """Create the user with the role of the invitation; return the invitation and the secret of a new session."""
    with read_session(engine) as session:
        invitation = invitations.find_invitation(session, secret)  # before a password is hashed, which is slow
    if settings.oidc_issuer:
        raise InvalidChange(f"New users log in with {settings.oidc_name} here. Nothing was saved.")
    name, password = users.checked_name(form.value("name")), form.value("password")
    if problem := passwords.problem_with(password, name):
        raise InvalidChange("Nothing was saved.", (FieldError("password", problem),))
    if password != form.value("again"):
        raise InvalidChange("Nothing was saved.", (FieldError("again", "does not match the password"),))
    password_hash = passwords.hashed(password, settings.password_memory_mib)
    with transaction(engine) as session:
        invitations.use_invitation(session, invitation, by=name)
        user = users.create_user(session, name, by=name, password_hash=password_hash, email=invitation.email)
        _give_role(session, invitation, user.id)
        session_secret = login.begin(
            session, users.get_user(session, user.id), settings.session_idle, came_from(request)
        )
    return invitation, session_secret


def _give_role(session: Session, invitation: Invitation, user_id: int) -> None:
    """Give the user the role of the invitation, unless they have a higher one."""
    row = session.get(MemberRow, (invitation.project_id, user_id))
    if row is None or _ORDER.index(Role(row.role)) < _ORDER.index(invitation.role):
        users.set_role(
            session, project_id=invitation.project_id, user_id=user_id, role=invitation.role, by=invitation.created_by
        )


def _home(invitation: Invitation) -> str:
    return f"/?{urlencode({'project': invitation.project})}"


def _accept_page(request: Request, engine: Engine, secret: str, form: AcceptForm, *, status: int = 200) -> HTMLResponse:
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        invitation = invitations.find_invitation(session, secret)
    response = render(
        request,
        "access/invite.html",
        status=status,
        invitation=invitation,
        form=replace(form, values={"name": form.value("name")}),  # no password
        here=f"/invite/{secret}",
        provider=request.app.state.settings.oidc_name if request.app.state.oidc else "",
    )
    response.headers.update(_NO_STORE)
    return response
