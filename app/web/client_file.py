"""`/client/threewalls.pyz`: the client of this version in one file, for jobs that cannot install packages."""

import hashlib
import io
import zipfile
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

import threewalls
from app.web.access_rule import Open, requires

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
