"""The entry point of the `threewalls` command: puts its own code first on the import path, then runs `app.cli`.

A training job may have packages on PYTHONPATH whose names collide with `app`, `workers` or a package that Threewalls
needs. Until the path is corrected, this module imports only `os` and `sys`.
"""

import os
import sys

CRASH = 70
"""A broken installation (EX_SOFTWARE of sysexits.h). Python would exit with 1, which means a regression."""


def main() -> int:
    """Run one command and return its exit code (docs/cli.md)."""
    try:
        _put_own_code_first()
        from app.cli import main as run  # noqa: PLC0415  needs the path

        return run()
    except Exception as error:
        print(
            f"threewalls: the installation is broken, reinstall threewalls: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return CRASH


def _put_own_code_first() -> None:
    """Move the entries of PYTHONPATH and the working folder behind the standard library and installed packages."""
    own = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120
    added = {os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep)}  # noqa: PTH100
    added = (added | set(sys.path[:1])) - {own}
    installed = [path for path in sys.path if path not in added]
    sys.path[:] = [
        *installed,
        *([] if own in installed else [own]),
        *(path for path in sys.path if path in added),
    ]


if __name__ == "__main__":
    sys.exit(main())
