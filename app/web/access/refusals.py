"""What somebody hears who may not: 401 for machines and a way to log in for people, 403 with what is missing, 404."""

from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from app.domain.access.principal import Anonymous, Principal, missing
from app.domain.access.roles import Action
from app.web.access.whom_to_ask import Refusal
from app.web.error_pages import answer, is_machine
from app.web.templating import asked_by_part, leave_for, render_error

_NOBODY = "This needs a log-in."
_BEARER = 'Bearer realm="threewalls"'


def not_logged_in(request: Request, why: str = "") -> Response:
    """401, or the log-in page to a browser that wants to see a page."""
    if not why:
        if (page := asked_by_part(request)) is not None:
            return leave_for(login_address(page), 401)
        if not is_machine(request) and request.method in ("GET", "HEAD"):
            return RedirectResponse(login_address(str(request.url)), 303, {"Cache-Control": "no-store"})
    detail = why or (
        f"{_NOBODY} Send a token of the project as `Authorization: Bearer tw_...`, or log in at /login."
        if is_machine(request)
        else f"{_NOBODY} Log in at /login, then do it again. Nothing was kept."
    )
    response = answer(request, 401, "Not logged in", detail)
    response.headers["WWW-Authenticate"] = _BEARER if not why else f'{_BEARER}, error="invalid_token"'
    return response


def forbidden(request: Request, principal: Principal, action: Action, own: Action | None = None) -> Response:
    """`own`: what would be enough for a token about a run that it brought itself."""
    if isinstance(principal, Anonymous):
        return not_logged_in(request)
    return answer(request, 403, "Not allowed", missing(principal, action, own) + _kept(request))


def forbidden_person(request: Request, told: Refusal) -> Response:
    detail = told.detail + _kept(request)
    if is_machine(request):
        return answer(request, 403, "Not allowed", detail)
    return render_error(request, 403, "Not allowed", detail, told.back)


def refused(request: Request, title: str, detail: str, command: str = "") -> Response:
    """`command`: what to do about it, as a sentence that ends with a line to copy."""
    return answer(request, 403, title, f"{detail}{_kept(request)} {command}".rstrip())


def not_there(request: Request, owner: str, value: str) -> Response:
    """The same for what does not exist and what is not the caller's business."""
    return answer(
        request, 404, "Not found", f"There is no {owner} {value[:100]} here that you may see.{_kept(request)}"
    )


def login_address(wanted: str) -> str:
    """Where to log in and come back from to the page that was wanted."""
    return leading_back("/login", wanted)


def leading_back(first: str, wanted: str) -> str:
    parts = urlsplit(wanted)
    return f"{first}?{urlencode({'next': parts.path + (f'?{parts.query}' if parts.query else '')})}"


def _kept(request: Request) -> str:
    return "" if request.method in ("GET", "HEAD") else " Nothing was kept."
