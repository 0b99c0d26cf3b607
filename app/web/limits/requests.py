"""So many requests a minute of each token, person, or address that said neither.

Who is known is counted by who they are and not by where they come from: jobs behind one address do not stand in each
other's way, and whoever only guesses does not stand in theirs.
"""

from limits import RateLimitItemPerMinute
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from app.settings import Settings
from app.web.access.credentials import Caller
from app.web.access.route_table import Found
from app.web.error_pages import answer
from app.web.limits.counting import Counting
from app.web.limits.places import address_of, network_of

UPLOADS = ("POST /api/v1/runs", "POST /upload")


class RequestLimits:
    """A service without log-ins limits nobody: only its own machine reaches it."""

    def __init__(self, settings: Settings, counting: Counting) -> None:
        self._counting = counting
        self._requests = _a_minute(settings.requests_per_minute)
        self._uploads = _a_minute(settings.uploads_per_minute)

    async def refusal(self, request: Request, caller: Caller, found: Found | None) -> Response | None:
        """429 to whoever asks too often."""
        if caller.access.is_open:
            return None
        whom = who(request, caller)
        if seconds := await self._over(self._requests, "request", whom):
            return _too_many(request, "requests", self._requests, seconds)
        is_upload = found is not None and found.route.key in UPLOADS
        if is_upload and (seconds := await self._over(self._uploads, "upload", whom)):
            return _too_many(request, "uploads", self._uploads, seconds)
        return None

    async def _over(self, limit: RateLimitItemPerMinute | None, kind: str, whom: str) -> int:
        if limit is None:
            return 0
        if self._counting.waits:
            return await run_in_threadpool(self._counting.over, limit, kind, whom)
        return self._counting.over(limit, kind, whom)


def who(request: Request, caller: Caller) -> str:
    """Whom a request is counted for. A person counts once, in however many browsers."""
    if caller.access.person:
        return f"person {caller.access.person.user_id}"
    return f"token {caller.key[:32]}" if caller.key else f"address {network_of(address_of(request))}"


def too_often(request: Request, detail: str, seconds: int) -> Response:
    response = answer(request, 429, "Too often", f"{detail} Nothing was kept. Try again in {in_words(seconds)}.")
    response.headers["Retry-After"] = str(seconds)
    response.headers["Cache-Control"] = "no-store"
    return response


def in_words(seconds: int) -> str:
    if seconds == 0:
        return ""
    if seconds < 120:
        return f"{seconds} seconds" if seconds != 1 else "a second"
    return f"{-(-seconds // 60)} minutes"


def _too_many(request: Request, what: str, limit: RateLimitItemPerMinute | None, seconds: int) -> Response:
    most = limit.amount if limit else 0
    return too_often(request, f"These are more than {most:,} {what} a minute, the limit of this service.", seconds)


def _a_minute(most: int) -> RateLimitItemPerMinute | None:
    return RateLimitItemPerMinute(most) if most else None
