"""What browsers load: our own stylesheet and scripts, htmx out of the django-htmx wheel, Vega out of vl-convert.

Every address carries a hash of its content, so that answers may be kept for a year and no page sees an old script.
"""

import gzip
import hashlib
import importlib.util
import os
import subprocess
import sys
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from threading import Lock

from fastapi import FastAPI, Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from app.errors import NotFound, Unavailable
from app.settings import RESOURCES, get_settings
from app.web.access_rule import Open, requires

STATIC = RESOURCES / "static"
FOREVER = "public, max-age=31536000, immutable"
_BUILD_SECONDS = 120
_building = Lock()

_WRITE_BUNDLE = "import sys, vl_convert; sys.stdout.buffer.write(vl_convert.javascript_bundle().encode())"


class _HashedStatic(StaticFiles):
    """Files asked for with their hash (`?v=`) never change; without it browsers ask again."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        hashed = scope.get("query_string", b"").startswith(b"v=") and response.status_code in (200, 304)
        response.headers["Cache-Control"] = FOREVER if hashed else "no-cache"
        return response


def mount_assets(app: FastAPI) -> None:
    """Serve `/static/...`, `/assets/htmx.js` and `/assets/vega-<hash>.js`."""
    app.mount("/static", requires(Open.ALWAYS)(_HashedStatic(directory=STATIC)), name="static")
    app.add_api_route("/assets/htmx.js", _serve_htmx, include_in_schema=False)
    app.add_api_route("/assets/{name}", _serve_bundle, include_in_schema=False)


def asset_url(name: str) -> str:
    """Address of a file of `static/`, of `htmx.js` or of the chart script `vega.js`, with its content hash."""
    if name == "vega.js":
        return f"/assets/{vega_bundle().name}"
    path = htmx_path() if name == "htmx.js" else STATIC / name
    folder = "assets" if name == "htmx.js" else "static"
    return f"/{folder}/{name}?v={_hash_of(path, path.stat().st_mtime_ns)}"


@lru_cache
def htmx_path() -> Path:
    """htmx 2 in the django-htmx wheel, found without importing it: Django itself is not installed."""
    spec = importlib.util.find_spec("django_htmx")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("django-htmx is not installed: run `make setup`")
    return Path(spec.origin).parent / "static" / "django_htmx" / "htmx-2.min.js"


def vega_bundle() -> Path:
    """Return the script that draws charts, with its packed copy (`.js.gz`) beside it.

    Rendering it takes two processor seconds, so it is kept in the cache folder, once per version of vl-convert.
    """
    folders = _bundle_folders()
    mark = f"vl{version('vl-convert-python')}"
    with _building:
        for folder in folders:
            if bundles := sorted(folder.glob(f"vega-{mark}-*.js")):
                return bundles[0]
        script = _build_bundle()
        name = f"vega-{mark}-{hashlib.sha256(script).hexdigest()[:16]}.js"
        for folder in folders:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # The packed copy goes first: a process that finds the script finds its packed copy too.
                _write_whole(folder / f"{name}.gz", gzip.compress(script, 9, mtime=0))
                _write_whole(folder / name, script)
            except OSError:  # such as a home folder that is read-only
                continue
            return folder / name
    raise Unavailable(f"The chart script cannot be written to {' or '.join(map(str, folders))}.")


def _bundle_folders() -> tuple[Path, ...]:
    """The user's cache folder, then the data folder."""
    kept = get_settings().data_dir / "assets"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # never raises
    return (Path(cache) / "threewalls", kept) if Path(cache).is_absolute() else (kept,)


def _build_bundle() -> bytes:
    """In a process of its own: vl-convert starts threads, and the embedded worker forks from ours."""
    done = subprocess.run(
        [sys.executable, "-c", _WRITE_BUNDLE], stdout=subprocess.PIPE, timeout=_BUILD_SECONDS, check=True
    )
    return done.stdout


def _write_whole(path: Path, content: bytes) -> None:
    """Write beside and rename: a reader or a second process sees all of the file or none."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


@requires(Open.ALWAYS)
def _serve_htmx() -> FileResponse:
    return FileResponse(htmx_path(), media_type="text/javascript", headers={"Cache-Control": FOREVER})


@requires(Open.ALWAYS)
def _serve_bundle(request: Request, name: str) -> FileResponse:
    path = vega_bundle()
    if name != path.name:
        raise NotFound("There is no such file. Reload the page: it names the one in use.")
    headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        path = path.with_name(f"{path.name}.gz")
    return FileResponse(path, media_type="text/javascript", headers=headers)


@lru_cache(maxsize=64)
def _hash_of(path: Path, _changed_ns: int) -> str:
    """The time of the last change is part of the key, so that an edited stylesheet shows at once."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":  # an image is built with the script in it
    print(vega_bundle())
