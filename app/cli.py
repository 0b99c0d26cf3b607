"""The `threewalls` command: serve, demo, migrate."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from app.errors import ThreewallsError
from app.settings import ROOT, Settings, get_settings

DATA_VARIABLE = "THREEWALLS_DATA_DIR"
USAGE_ERROR = 2
SERVICE_ERROR = 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0, 2 for a wrong command line or setting, 3 when the service cannot do it."""
    options = make_parser().parse_args(arguments)
    _choose_data_folder(options)
    try:
        settings = get_settings()
    except ValueError as error:
        print(f"threewalls: a setting is not valid\n{error}", file=sys.stderr)
        return USAGE_ERROR
    try:
        _COMMANDS[options.command](options, settings)
    except ThreewallsError as error:
        print(f"threewalls: {error.detail}", file=sys.stderr)
        return SERVICE_ERROR
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="threewalls", description="Tracks the performance of Mixture-of-Experts training."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="start the service: web server and worker in one command")
    demo = commands.add_parser("demo", help="the same, with a project of generated runs to look at")
    migrate = commands.add_parser("migrate", help="bring the database to this version's tables")
    for command in (serve, demo):
        command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        command.add_argument(
            "--port", default=8000, type=_port, help="port to listen on, 0 for a free one (default: 8000)"
        )
    for command, folder in ((serve, "data"), (demo, "demo-data"), (migrate, "data")):
        command.add_argument(
            "--data", type=Path, metavar="DIR", help=f"folder for all data (default: {DATA_VARIABLE}, or {folder})"
        )
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 0 to 65535")
    return port


def _choose_data_folder(options: argparse.Namespace) -> None:
    # By the environment, because the worker process reads its settings from there.
    if options.data is not None:
        os.environ[DATA_VARIABLE] = str(options.data.resolve())
    elif options.command == "demo":
        os.environ.setdefault(DATA_VARIABLE, str(ROOT / "demo-data"))


def _serve(options: argparse.Namespace, settings: Settings) -> None:
    from app.embedded.service import serve

    serve(settings, options.host, options.port)


def _demo(options: argparse.Namespace, settings: Settings) -> None:
    from app.demo.seed import seed
    from app.embedded.service import serve

    serve(settings, options.host, options.port, seed=seed(settings))


def _migrate(_: argparse.Namespace, settings: Settings) -> None:
    from app.storage.database import migrate

    migrate(settings)


_COMMANDS = {"serve": _serve, "demo": _demo, "migrate": _migrate}

if __name__ == "__main__":
    sys.exit(main())
