"""Room on the disks that uploads are written to: of the data, of the logs, and of temporary files."""

import os
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from app.errors import DiskFull
from app.settings import Settings


def free_bytes(settings: Settings) -> int:
    """Of the fullest of these disks. Raises DiskFull for one that cannot be written."""
    return min(_free_bytes(folder) for folder in _folders(settings))


def require_room(settings: Settings, new_bytes: int) -> None:
    """Raise DiskFull where an upload of so many bytes would leave less than THREEWALLS_MIN_FREE_BYTES."""
    free = free_bytes(settings) if settings.min_free_bytes else 0
    if settings.min_free_bytes and free - new_bytes < settings.min_free_bytes:
        raise DiskFull(
            f"The disk of the service has {free:,} bytes left, and {settings.min_free_bytes:,} are kept free "
            "(THREEWALLS_MIN_FREE_BYTES). Nothing was kept. Tell the administrator, and upload again later."
        )


def _folders(settings: Settings) -> list[Path]:
    folders = [Path(tempfile.gettempdir())]
    if settings.embedded:
        folders.append(settings.data_dir)
    if urlsplit(settings.resolved_artifact_url).scheme != "s3":
        folders.append(Path(settings.resolved_artifact_url))
    return folders


def _free_bytes(folder: Path) -> int:
    while not folder.exists():  # it is made with the first file
        folder = folder.parent
    if not os.access(folder, os.W_OK):
        raise DiskFull("A disk of the service is not writable. Tell the administrator, and upload again later.")
    return shutil.disk_usage(folder).free
