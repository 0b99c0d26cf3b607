"""Static files: our stylesheets and scripts, Vega among them (`make vega` builds it), htmx from the django-htmx wheel.

Every address contains a hash of the content, so that browsers may cache files for a year and never use old ones.
"""

import hashlib
import importlib.util
import re
from functools import lru_cache
from pathlib import Path

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.settings import RESOURCES
from app.web.access_rule import Open, requires

STATIC = RESOURCES / "static"
FOREVER = "public, max-age=31536000, immutable"


class _HashedStatic(StaticFiles):
    """Files requested with their hash (`?v=`) never change; others are checked again.

    Of a file with a compressed copy (`.br`), browsers that read Brotli get the copy.
    """

    async def get_response(self, path: str, scope: Scope) -> Response:
        accepted = Headers(scope=scope).get("accept-encoding", "")
        has_copy = self.lookup_path(f"{path}.br")[1] is not None
        compressed = has_copy and "br" in re.split(r"[\s,;]+", accepted)
        response = await super().get_response(f"{path}.br" if compressed else path, scope)
        if has_copy:
            response.headers.add_vary_header("Accept-Encoding")
        if compressed and response.status_code == 200:
            response.headers["Content-Encoding"] = "br"
        hashed = scope.get("query_string", b"").startswith(b"v=") and response.status_code in (200, 304)
        response.headers["Cache-Control"] = FOREVER if hashed else "no-cache"
        return response


def mount_assets(app: FastAPI) -> None:
    """Serve `/static/...`, `/assets/htmx.js` and the icon that browsers always request."""
    app.mount("/static", requires(Open.ALWAYS)(_HashedStatic(directory=STATIC)), name="static")
    app.add_api_route("/favicon.ico", _serve_icon, include_in_schema=False)
    app.add_api_route("/assets/htmx.js", _serve_htmx, include_in_schema=False)


def asset_url(name: str) -> str:
    """Return the address, with the content hash, of a file in `static/` or of `htmx.js`."""
    path = htmx_path() if name == "htmx.js" else STATIC / name
    folder = "assets" if name == "htmx.js" else "static"
    return f"/{folder}/{name}?v={_hash_of(path, path.stat().st_mtime_ns)}"


@lru_cache
def htmx_path() -> Path:
    """Return the path of htmx 2 in the django-htmx wheel, which is not imported because Django is not installed."""
    spec = importlib.util.find_spec("django_htmx")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("django-htmx is not installed: run `make setup`")
    return Path(spec.origin).parent / "static" / "django_htmx" / "htmx-2.min.js"


@requires(Open.ALWAYS)
def _serve_icon() -> FileResponse:
    return FileResponse(STATIC / "favicon.svg", media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})


@requires(Open.ALWAYS)
def _serve_htmx() -> FileResponse:
    return FileResponse(htmx_path(), media_type="text/javascript", headers={"Cache-Control": FOREVER})


@lru_cache(maxsize=64)
def _hash_of(path: Path, _changed_ns: int) -> str:
    """Return the hash of a file, cached by path and time of change."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
