"""What files and runs are called that a client names, or does not."""

from pathlib import PurePosixPath

from app.runs.upload import Kind

UNNAMED = "run"
"""Name of a run that began without a file, until its first log comes."""
_MAX_FILE_NAME = 200
_SUFFIXES = (".gz", ".zst", ".log", ".txt")


def file_name(sent: str, kind: Kind = "log") -> str:
    """The last part of the name, without what no file system or header should see."""
    name = PurePosixPath(sent.replace("\\", "/")).name
    name = "".join(c for c in name if c.isprintable()).strip()
    return name[-_MAX_FILE_NAME:] or f"{kind}.txt"


def run_name(file_name: str) -> str:
    """Return the name of a run after its first log: the file's, without its suffixes."""
    name = file_name
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name or UNNAMED
