"""Static files: our stylesheet and scripts, htmx from the django-htmx wheel, Vega from vl-convert.

Every address contains a hash of the content, so that browsers may cache files for a year and never use old ones.
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
    """Files requested with their hash (`?v=`) never change; others are checked again."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        hashed = scope.get("query_string", b"").startswith(b"v=") and response.status_code in (200, 304)
        response.headers["Cache-Control"] = FOREVER if hashed else "no-cache"
        return response


def mount_assets(app: FastAPI) -> None:
    """Serve `/static/...`, `/assets/htmx.js`, `/assets/vega-<hash>.js` and the icon that browsers ask for unasked."""
    app.mount("/static", requires(Open.ALWAYS)(_HashedStatic(directory=STATIC)), name="static")
    app.add_api_route("/favicon.ico", _serve_icon, include_in_schema=False)
    app.add_api_route("/assets/htmx.js", _serve_htmx, include_in_schema=False)
    app.add_api_route("/assets/{name}", _serve_bundle, include_in_schema=False)


def asset_url(name: str) -> str:
    """Return the address, with the content hash, of a file in `static/`, of `htmx.js` or of the charts' `vega.js`."""
    if name == "vega.js":
        return f"/assets/{vega_bundle().name}"
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


def vega_bundle() -> Path:
    """Return the script that draws charts; its compressed copy (`.js.gz`) is in the same folder.

    Building it takes two processor seconds, so it is cached once per version of vl-convert.
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
                # The compressed copy first, so that it exists whenever the script does.
                _write_whole(folder / f"{name}.gz", gzip.compress(script, 9, mtime=0))
                _write_whole(folder / name, script)
            except OSError:  # for example a read-only home folder
                continue
            return folder / name
    raise Unavailable(f"The chart script cannot be written to {' or '.join(map(str, folders))}.")


def _bundle_folders() -> tuple[Path, ...]:
    """Return the user's cache folder and the data folder."""
    data = get_settings().data_dir / "assets"
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111  # never raises
    return (Path(cache) / "threewalls", data) if Path(cache).is_absolute() else (data,)


def _build_bundle() -> bytes:
    """Build the script in another process: vl-convert starts threads, and the embedded worker forks from ours."""
    command = [sys.executable, "-c", _WRITE_BUNDLE]
    return subprocess.run(command, stdout=subprocess.PIPE, timeout=_BUILD_SECONDS, check=True).stdout


def _write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary file and rename it, so that other processes see the whole file or none."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


@requires(Open.ALWAYS)
def _serve_icon() -> FileResponse:
    return FileResponse(STATIC / "favicon.svg", media_type="image/svg+xml", headers={"Cache-Control": "max-age=86400"})


@requires(Open.ALWAYS)
def _serve_htmx() -> FileResponse:
    return FileResponse(htmx_path(), media_type="text/javascript", headers={"Cache-Control": FOREVER})


@requires(Open.ALWAYS)
def _serve_bundle(request: Request, name: str) -> FileResponse:
    path = vega_bundle()
    if name != path.name:
        raise NotFound("This file does not exist. Reload the page to get its current URL.")
    headers = {"Cache-Control": FOREVER, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        path = path.with_name(f"{path.name}.gz")
    return FileResponse(path, media_type="text/javascript", headers=headers)


@lru_cache(maxsize=64)
def _hash_of(path: Path, _changed_ns: int) -> str:
    """Return the hash of a file, cached by path and time of change."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


if __name__ == "__main__":  # the build of the container image runs this
    print(vega_bundle())
