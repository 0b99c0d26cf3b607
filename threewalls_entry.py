"""The `threewalls` command: puts the code that was installed with it first on the path, then runs `app.cli`.

A training job may have packages of its own on PYTHONPATH, and one of them may be called `app`, `workers` or like a
package that Threewalls needs. Until the path is right, this module imports `os` and `sys` only.
"""

import os
import sys

CRASH = 70
"""A broken installation, EX_SOFTWARE of sysexits.h. Python's own code would be 1, and that is a regression."""


def main() -> int:
    """Run one command and return its exit code (docs/cli.md)."""
    try:
        _put_own_code_first()
        from app.cli import main as run  # noqa: PLC0415  needs the path

        return run()
    except Exception as error:
        print(f"threewalls: the installation is broken: {type(error).__name__}: {error}", file=sys.stderr)
        return CRASH


def _put_own_code_first() -> None:
    """Move what PYTHONPATH and the working folder add behind the standard library and the installed packages."""
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
