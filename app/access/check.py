"""The access check: identifies the caller and allows or refuses the request before any handler or body."""

import hmac
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from sqlalchemy import Engine
from sqlmodel import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.credentials import Caller, Credentials, Directory, WrongTokenError, shown_token
from app.access.limits import Counting, RequestLimits
from app.access.owners import AMBIGUOUS, FOR_ALL, NAMED, Owned, Owners
from app.access.routes import RouteMatch, RouteTable
from app.domain.access.principal import (
    ADMINISTRATOR,
    NONE,
    Action,
    Anonymous,
    LoggedInUser,
    Principal,
    ProjectIds,
    TokenHolder,
    granted,
    knows_of,
    least_role,
    may_with_own,
    missing,
)
from app.domain.text import some_of
from app.settings import Settings
from app.storage.database import read_session
from app.storage.users import administrators, maintainers
from app.storage.visible import EVERY_PROJECT, project_slugs, seeing
from app.web.access_rule import Open, Owner
from app.web.errors import answer, is_machine
from app.web.identity import (
    NEEDS_LOG_INS,
    Access,
    how_to_have_log_ins,
    is_forwarded_by_proxy,
    make_administrator,
    may_answer,
    put,
    remembered,
    remembered_name,
    request_author,
)
from app.web.templating import address_of_htmx_page, render_error

# --- Answers to callers without permission: 401 or the log-in page, 403 that names what is missing, 404. The
# sentence for a user has their role, the role that is needed, and who can grant it.

_DOES = {
    Action.READ: "read {}",
    Action.UPLOAD: "upload to {}",
    Action.CONTRIBUTE: "work in {}",
    Action.MANAGE: "manage {}",
}
_PAGES: dict[Owner, tuple[str, str]] = {
    "run": ("/runs/{}", "Back to the run"),
    "regression": ("/regressions/{}", "Back to the regression"),
    "experiment": ("/experiments/{}", "Back to the experiment"),
    "reference": ("/references/{}", "Back to the reference point"),
}


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """`back`: address and label of pages that the user may see."""

    detail: str
    back: tuple[tuple[str, str], ...] = ()


def refusal(
    engine: Engine, user: LoggedInUser, action: Action, project: int, about: tuple[Owner, str] = ("", "")
) -> RefusedRequest:
    """Return the answer for a user who may read the project but not do this.

    `project`: its id; 0 for none, or for what belongs to all projects. `about`: what the address names.
    """
    with seeing(EVERY_PROJECT), read_session(engine) as session:
        if action is Action.ADMINISTER:
            names = some_of(administrators(session), last="or")
            return RefusedRequest(f"Only an {ADMINISTRATOR} may do this: ask {names}.")
        if not project:
            return RefusedRequest(_anywhere(session, user, action))
        (slug,) = project_slugs(session, (project,))
        role = user.roles.get(project)
        gives = _gives(session, project if role else 0)
    needs = f"This needs the role {least_role(action)}; you are {role or 'not a member'}."
    owner, value = about
    back = [(f"/runs?project={quote(slug, safe='')}", f"Runs of {slug}")]
    if owner in _PAGES:
        address, label = _PAGES[owner]
        back.insert(0, (address.format(quote(value, safe="")), label))
    return RefusedRequest(f"You may not {_DOES[action].format(slug)}. {needs} {gives}", tuple(back))


def _anywhere(session: Session, user: LoggedInUser, action: Action) -> str:
    """Return the sentence for an action that needs a role in any project."""
    roles = [f"{role} in {slug}" for project, role in user.roles.items() for slug in project_slugs(session, (project,))]
    are = f"you are {some_of(sorted(roles))}" if roles else "you are not a member of any project yet"
    only = next(iter(user.roles)) if len(user.roles) == 1 else 0
    return f"This needs the role {least_role(action)} in a project, and {are}. {_gives(session, only)}"


def _gives(session: Session, project: int) -> str:
    """Return who can grant roles: the maintainers, or the administrators if the project has none."""
    if names := maintainers(session, project) if project else []:
        return f"A maintainer can grant it: ask {some_of(names, last='or')}."
    return f"An administrator can grant it: ask {some_of(administrators(session), last='or')}."


_NEEDS_LOG_IN = "This needs a log-in."
_BEARER = 'Bearer realm="threewalls"'


def not_logged_in(request: Request, why: str = "") -> Response:
    """Return 401, or a redirect to the log-in page for a browser that requests a page."""
    if not why:
        if (page := address_of_htmx_page(request)) is not None:
            return Response(status_code=401, headers={"HX-Redirect": login_address(page), "Cache-Control": "no-store"})
        if not is_machine(request) and request.method in ("GET", "HEAD"):
            return RedirectResponse(login_address(str(request.url)), 303, {"Cache-Control": "no-store"})
    detail = why or (
        f"{_NEEDS_LOG_IN} Send a token of the project as `Authorization: Bearer tw_...`, or log in at /login."
        if is_machine(request)
        else f"{_NEEDS_LOG_IN} Log in at /login, then try again. Nothing was saved."
    )
    response = answer(request, 401, "Not logged in", detail)
    response.headers["WWW-Authenticate"] = _BEARER if not why else f'{_BEARER}, error="invalid_token"'
    return response


def forbidden(request: Request, principal: Principal, action: Action, own: Action | None) -> Response:
    """Return 403. `own`: the action that suffices for runs that the token itself uploaded."""
    if isinstance(principal, Anonymous):
        return not_logged_in(request)
    return answer(request, 403, "Not allowed", missing(principal, action, own) + _nothing_saved(request))


def forbidden_user(request: Request, refusal: RefusedRequest) -> Response:
    detail = refusal.detail + _nothing_saved(request)
    if is_machine(request):
        return answer(request, 403, "Not allowed", detail)
    return render_error(request, 403, "Not allowed", detail, refusal.back)


def refused(request: Request, title: str, detail: str, command: str = "") -> Response:
    """Return 403. `command`: what to do, as a sentence that ends with a command to copy."""
    return answer(request, 403, title, f"{detail}{_nothing_saved(request)} {command}".rstrip())


def not_there(request: Request, owner: str, value: str) -> Response:
    """Return the same 404 for what does not exist and for what the caller may not see."""
    return answer(
        request,
        404,
        "Not found",
        f"There is no {owner} {value[:100]}, or you have no access to it.{_nothing_saved(request)}",
    )


def login_address(wanted: str) -> str:
    """Return the address of the log-in page that leads back to `wanted`."""
    return leading_back("/login", wanted)


def leading_back(first: str, wanted: str) -> str:
    parts = urlsplit(wanted)
    return f"{first}?{urlencode({'next': parts.path + (f'?{parts.query}' if parts.query else '')})}"


def _nothing_saved(request: Request) -> str:
    return "" if request.method in ("GET", "HEAD") else " Nothing was saved."


# --- Make project names in addresses case-insensitive. No two slugs differ in case only. `/settings/projects/Moe` and
# `?project=MOE` are rewritten to the project's own spelling before a handler reads them. Names of projects that the
# caller may not know stay as written.

Spelling = Callable[[str], str]
"""Returns the slug that the text names; the text itself if no such project exists or the caller may not know it."""

_PARAMETER = "project"


def names_project(scope: Scope, match: RouteMatch | None) -> bool:
    return _in_path(match) or f"{_PARAMETER}=".encode() in scope["query_string"]


def spell_projects(scope: Scope, match: RouteMatch | None, spelling: Spelling) -> RouteMatch | None:
    """Rewrite the address of a request and return its route with the new parameters."""
    _spell_query(scope, spelling)
    if match is None or not _in_path(match) or (slug := spelling(match.params["slug"])) == match.params["slug"]:
        return match
    path = match.route.pattern.match(scope["path"])
    assert path is not None  # noqa: S101  this path selected the route
    begin, end = path.span("slug")
    scope["path"] = f"{scope['path'][:begin]}{slug}{scope['path'][end:]}"
    return replace(match, params={**match.params, "slug": slug})


def _in_path(match: RouteMatch | None) -> bool:
    return match is not None and match.route.rule.owner == "project"


def _spell_query(scope: Scope, spelling: Spelling) -> None:
    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
    spelled = [(name, spelling(value) if name == _PARAMETER else value) for name, value in pairs]
    if spelled != pairs:
        scope["query_string"] = urlencode(spelled).encode()


def spelling_of(slugs: Mapping[str, tuple[int, str]], may_know: Callable[[int], bool]) -> Spelling:
    """Return the function that spells names. `slugs`: id and slug of each project by its slug in lower case."""

    def spelling(text: str) -> str:
        project_id, slug = slugs.get(text.lower(), (None, text))
        return slug if project_id is not None and may_know(project_id) else text

    return spelling


# --- The check of a request.

_NO_STORE = ("/api/", "/settings/", "/account/", "/login", "/logout", "/invite/")
_WRITING = ("POST", "PUT", "PATCH", "DELETE")
_CHANGE_PASSWORD = "/account/password"  # noqa: S105
_ADD_SECOND_FACTOR = "/account/second-factor"
_CONFIRM = "/account/confirm"
_FOR_BROWSERS = "Tokens are for the API. Use the call under /api/v1 that matches this page; /docs lists the calls."
_WRONG_TOKEN = "The token is unknown, revoked or expired. A maintainer of the project can create a new one."  # noqa: S105


class AccessMiddleware:
    """Check every request. Store the caller in the request's state and the visible projects in `storage/visible.py`.

    `open_to`: host names, in addition to loopback, at which a service without log-ins answers; None requires log-ins
    always.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        engine: Engine,
        settings: Settings,
        table: RouteTable,
        open_to: Collection[str] | None,
        counting: Counting | None = None,
    ) -> None:
        self._app = app
        self._table = table
        self._metrics_token = settings.metrics_token
        self._totp_for_administrators = settings.totp_for_administrators
        self._directory = Directory(engine, settings)
        self._credentials = Credentials(self._directory, open_to)
        self._engine = engine
        self._make_administrator = make_administrator(settings)
        self._how_to_have_log_ins = how_to_have_log_ins(settings)
        self._owners = Owners(engine)
        self._limits = RequestLimits(settings, counting or Counting(settings))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        match = self._table.find(scope["method"], scope["path"])
        if match is not None and match.route.rule.needs is Open.ALWAYS:
            with seeing(NONE):
                await self._app(scope, receive, send)
            return
        request, caller = Request(scope), Caller(Access())
        visible: ProjectIds | None
        try:
            if match is not None and match.route.rule.needs is Open.METRICS and self._scrapes(request):
                with seeing(EVERY_PROJECT):  # totals
                    await self._app(scope, receive, send)
                return
            caller = await self._credentials.caller(request)
            put(scope, caller.access)
            if names_project(scope, match):
                match = await self._with_spelled_projects(scope, match, caller.access)
            with seeing(granted(caller.access.principal, Action.READ, caller.access.public)):  # pages of errors, too
                answer, visible = await self._limits.refusal(request, caller, match), NONE
                if answer is None:
                    answer, visible = await self._checked(request, caller, match)
                if answer is None and match is not None and match.route.rule.confirm:
                    answer = _confirmed(request, caller.access)
        except WrongTokenError:
            with seeing(NONE):
                too_many = await self._limits.refusal(request, caller, match)
                answer, visible = too_many or not_logged_in(request, _WRONG_TOKEN), NONE
        if not caller.access.is_open:
            send = _private(send, scope["path"])
        with seeing(visible), _with_author(caller.access, request):
            if answer is not None and match is not None:
                scope["route"] = match.route.route  # what the request is counted under
            await (answer or self._app)(scope, receive, send)
        if caller.credential is not None and self._directory.is_use_due(caller.credential, caller.key):
            await run_in_threadpool(self._directory.note_use, caller.credential, caller.key)

    async def _with_spelled_projects(self, scope: Scope, match: RouteMatch | None, access: Access) -> RouteMatch | None:
        is_cached, slugs = self._directory.cached("slugs", "")
        if not is_cached:
            slugs = await run_in_threadpool(self._directory.project_slugs)
        principal, public = access.principal, access.public
        return spell_projects(scope, match, spelling_of(slugs, lambda number: knows_of(principal, number, public)))

    async def _checked(
        self, request: Request, caller: Caller, match: RouteMatch | None
    ) -> tuple[Response | None, ProjectIds | None]:
        """Return the refusal, if any, and the projects whose rows are visible to the request."""
        access = caller.access
        readable = granted(access.principal, Action.READ, access.public)
        if answer := self._not_from_here(request, caller, match):
            return answer, readable
        needs = match.route.rule.needs if match else Open.ANYONE
        first = self._first(access)
        if first and needs not in (Open.ANYONE, Open.LOGGED_IN):
            return _complete_first(request, *first), readable
        if match is None or needs is Open.ANYONE:
            return None, readable
        if needs is Open.METRICS:
            return await self._metrics(request, access), None  # totals of all projects
        if needs is Open.LOGGED_IN:
            return (None if access.user else not_logged_in(request)), readable
        return await self._in_projects(request, access, match, Action(needs))

    async def _in_projects(
        self, request: Request, access: Access, match: RouteMatch, action: Action
    ) -> tuple[Response | None, ProjectIds | None]:
        if isinstance(access.principal, TokenHolder) and match.route.is_page:
            return refused(request, "For browsers only", _FOR_BROWSERS), NONE
        where = granted(access.principal, action, access.public)
        if where is None:
            return None, where
        if match.route.rule.owner:
            owned = await self._owner(match, access)
            if owned is None or owned.project != AMBIGUOUS:
                return await self._check_owned(request, access, match, where, owned)
        # Users see empty lists instead of a refusal. An action that the caller may do nowhere is refused.
        if where or (action is Action.READ and access.user):
            return None, where
        return await self._forbidden(request, access, action), where

    async def _check_owned(
        self, request: Request, access: Access, match: RouteMatch, where: ProjectIds, owned: Owned | None
    ) -> tuple[Response | None, ProjectIds | None]:
        """Check a route that names something of a project, which may not exist."""
        rule, principal = match.route.rule, access.principal
        if owned is not None and owned.project in where:
            return None, where
        if owned is not None and rule.own and may_with_own(principal, rule.own, owned.token):
            return None, granted(principal, rule.own, access.public)
        # Callers must not learn whether something exists that they may not see.
        if owned is None or not (owned.project == FOR_ALL or knows_of(principal, owned.project, access.public)):
            if isinstance(principal, Anonymous):
                return not_logged_in(request), where
            return not_there(request, rule.owner, match.params[NAMED[rule.owner].param]), where
        action = Action.ADMINISTER if owned.project == FOR_ALL else Action(rule.needs)
        return await self._forbidden(request, access, action, match, owned.project), where

    async def _forbidden(
        self, request: Request, access: Access, action: Action, match: RouteMatch | None = None, project: int = FOR_ALL
    ) -> Response:
        """Return 403; for users it names who can grant the role. `match`: the route, when its path names something."""
        rule = match.route.rule if match else None
        if access.user is None:
            return forbidden(request, access.principal, action, rule.own if rule else None)
        about: tuple[Owner, str] = (
            (rule.owner, match.params[NAMED[rule.owner].param]) if rule and match and rule.owner else ("", "")
        )
        answer = await run_in_threadpool(refusal, self._engine, access.user, action, project, about)
        return forbidden_user(request, answer)

    async def _owner(self, match: RouteMatch, access: Access) -> Owned | None:
        """Find the owner. Cached only for callers who may know of it: response times must not reveal existence."""
        owner = match.route.rule.owner
        value = match.params[NAMED[owner].param]
        cached = self._owners.cached(owner, value)
        if cached is not None and knows_of(access.principal, cached.project, access.public):
            return cached
        return await run_in_threadpool(self._owners.find, owner, value)

    def _not_from_here(self, request: Request, caller: Caller, match: RouteMatch | None) -> Response | None:
        """Refuse requests from other websites, and those that a service without log-ins must not serve."""
        headers = request.headers
        if caller.access.is_open:
            host = headers.get("host", "")
            if not may_answer(host, self._credentials.open_to or ()):
                return refused(
                    request, "Unknown host name",
                    f"This service has no log-ins, so it answers only under names of this machine, not {host[:100]}.",
                    f"To enable log-ins, create an administrator: {self._make_administrator}",
                )  # fmt: skip
            if is_forwarded_by_proxy(headers.keys(), request.scope["http_version"]):
                return refused(
                    request, "Request through a proxy",
                    "This service has no log-ins, so it answers direct requests from this machine only. This request "
                    "came through a proxy, or over HTTP/1.0, which some proxies use.",
                    f"To enable log-ins, create an administrator: {self._make_administrator}",
                )  # fmt: skip
            if match is not None and match.route.rule.log_ins:
                return refused(request, "This needs log-ins", NEEDS_LOG_INS, self._how_to_have_log_ins)
            return None
        states_origin = "sec-fetch-site" in headers or "origin" in headers
        if caller.by_cookie and request.method in _WRITING and not states_origin:
            return refused(
                request, "Origin of the request is unknown",
                    "Requests with a session cookie need the header Sec-Fetch-Site or Origin, which browsers send. "
                    "Programs use a token instead: Authorization: Bearer tw_...",
                )  # fmt: skip
        return None

    def _first(self, access: Access) -> tuple[str, str] | None:
        """Return the page that the user must complete first and its title; None when there is none."""
        user = access.user
        if user is None:
            return None
        if user.must_change_password:
            return _CHANGE_PASSWORD, "Choose a password"
        if self._totp_for_administrators and user.administrator and not user.second_factor:
            return _ADD_SECOND_FACTOR, "Add a second factor"
        return None

    def _scrapes(self, request: Request) -> bool:
        shown = shown_token(request.headers) or ""
        return bool(self._metrics_token) and hmac.compare_digest(shown.encode(), self._metrics_token.encode())

    async def _metrics(self, request: Request, access: Access) -> Response | None:
        user = access.user
        if access.is_open or (user is not None and user.administrator):
            return None
        return await self._forbidden(request, access, Action.ADMINISTER)


@contextmanager
def _with_author(access: Access, request: Request) -> Iterator[None]:
    name = request_author.set(access.name)
    asked_before = remembered.set(remembered_name(request) if access.is_open else "")
    try:
        yield
    finally:
        remembered.reset(asked_before)
        request_author.reset(name)


def _complete_first(request: Request, page: str, what: str) -> Response:
    if request.method in ("GET", "HEAD") and not request.url.path.startswith("/api/"):
        return RedirectResponse(leading_back(page, str(request.url)), 303, {"Cache-Control": "no-store"})
    return refused(request, f"{what} first", f"{what} at {page}.")


def _confirmed(request: Request, access: Access) -> Response | None:
    """Ask a user to confirm the password when that was long ago; the form leads back to the page."""
    if access.user is None or access.confirmed:
        return None
    if request.url.path.startswith("/api/"):
        return refused(request, "Confirm your password first", f"Confirm it at {_CONFIRM}, then try again.")
    page = leading_back(_CONFIRM, request.headers.get("referer", "/settings/account"))
    return RedirectResponse(page, 303, {"Cache-Control": "no-store"})


def _private(send: Send, path: str) -> Send:
    """Forbid shared caches to store the answer, and all caches for the API and for forms."""
    cache = "no-store" if path.startswith(_NO_STORE) else "private, no-cache"

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if headers.get("Cache-Control", "no-cache") == "no-cache":
                headers["Cache-Control"] = cache
            headers.add_vary_header("Cookie, Authorization")
        await send(message)

    return sent
