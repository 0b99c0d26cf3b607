"""Static files: stylesheets and scripts, including Vega (`make vega` builds it), and htmx from the django-htmx wheel.

Every address contains a hash of the content, so that browsers can cache files for a year and never use outdated ones.
"""

import hashlib
import importlib.util
import io
import re
import zipfile
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

import threewalls
from app.settings import RESOURCES
from app.web.access_rule import Open, requires

STATIC = RESOURCES / "static"
FOREVER = "public, max-age=31536000, immutable"


class _HashedStatic(StaticFiles):
    """Static files. Browsers cache those that they request with a hash (`?v=`), and revalidate others.

    If a file has a compressed copy (`.br`), browsers that support Brotli get the copy.
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
    """Serve `/static/...`, `/assets/htmx.js` and the icon that browsers request by default."""
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
    """Return the hash of a file, cached by path and modification time."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


# --- `/client/threewalls.pyz`: the client of this version as one file, for jobs that cannot install packages.

router = APIRouter(prefix="/client", include_in_schema=False)

_APP, _LIBRARY = Path(__file__).resolve().parents[1], Path(threewalls.__path__[0])
_MAIN = """\
import sys

if sys.version_info < (3, 9):
    sys.stderr.write("threewalls: this client needs Python 3.9 or newer, not %d.%d.\\n" % sys.version_info[:2])
    sys.exit(70)

from app.client.one_file import main

sys.exit(main())
"""


@router.get("/threewalls.pyz")
@requires(Open.ALWAYS)
def download_client(request: Request) -> Response:
    """Return the one-file client: no log-in, because it contains nothing but public code."""
    content, tag = one_file()
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Disposition": 'attachment; filename="threewalls.pyz"'}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.get("/threewalls.pyz.sha256")
@requires(Open.ALWAYS)
def show_checksum() -> Response:
    """Return the checksum in the format of `sha256sum --check`."""
    digest = hashlib.sha256(one_file()[0]).hexdigest()
    return Response(f"{digest}  threewalls.pyz\n", media_type="text/plain")


@lru_cache
def one_file() -> tuple[bytes, str]:
    """Return the executable archive and its entity tag. The same version gives the same bytes."""
    released = version("threewalls")
    texts = {
        "__main__.py": _MAIN,
        f"threewalls-{released}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: threewalls\nVersion: {released}\n",
    }
    sources = [_APP / "__init__.py", _APP / "errors.py", *(_APP / "client").glob("*.py")]
    texts |= {f"app/{path.relative_to(_APP).as_posix()}": path.read_text(encoding="utf-8") for path in sources}
    texts |= {f"threewalls/{path.name}": path.read_text(encoding="utf-8") for path in _LIBRARY.glob("*.py")}
    file = io.BytesIO()
    file.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(texts):
            archive.writestr(zipfile.ZipInfo(name), texts[name], zipfile.ZIP_DEFLATED)
    content = file.getvalue()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
