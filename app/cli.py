"""The `threewalls` command (docs/cli.md): client, service, database, and analysis of local logs.

Each command imports what it needs when it runs: the client needs few packages, the service many.
"""

import argparse
import gc
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from app.analysis.options import FINE, UNREAD, UNREADABLE, USAGE, add_commands, with_candidate
from app.client import options as client
from app.client.errors import CRASH, OUTCOME_OF_CODE, add_allow, apply_allow
from app.client.terminal import describe_unexpected, fault_tolerant_output
from app.embedded.start_up import StartUp
from app.errors import InvalidMetadata, ThreewallsError, Unavailable, UnreadLog, UsageError

if TYPE_CHECKING:
    from app.analysis.reading import ReadLog
    from app.domain.logs.line_template import LineTemplate
    from app.domain.run import ParsedLog
    from app.settings import Settings
    from app.storage.backup import Manifest

DATA_VARIABLE = "THREEWALLS_DATA_DIR"
STANDARD_INPUT = Path("-")
INTERRUPTED = 130
"""Exit code of shells for a command that Ctrl-C stopped."""
MOST_WEB_PROCESSES = 64
OWNER_ONLY = 0o077
"""The mask of files that others may not read."""
EXTRA_OF_COMMAND = {"analyze": "analyze", "compare": "analyze", "profile": "analyze", "mcp": "mcp"}
"""The extra of the package that a command needs; `server` for all others except those of the client."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (docs/cli.md). 1 is a regression, or a blocker of `check`."""
    with fault_tolerant_output() as output:
        options = None
        try:
            words = with_candidate(sys.argv[1:] if arguments is None else arguments)
            options = client.parse_words(make_parser(), words)
            run = _of_client if options.command in client.COMMANDS else _of_server
            code = _mcp(options) if options.command == "mcp" else run(options)
        except KeyboardInterrupt:
            code = INTERRUPTED
        except Exception as error:  # Python would exit with 1, which means a regression
            code = _unexpected("" if options is None else options.command, error)
        sys.stdout.flush()
        if output.lost_because:
            print(f"threewalls: the output could not be written: {output.lost_because}.", file=sys.stderr)
            return code or UNREADABLE
        return code


def _unexpected(command: str, error: Exception) -> int:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] not in ("app", "workers"):
        print(
            f"threewalls: `{command}` needs the package {error.name}, which is not installed: pip install "
            f"'path/to/threewalls[{EXTRA_OF_COMMAND.get(command, 'server')}]'. Without an extra, only "
            f"{', '.join(client.COMMANDS)} work.",
            file=sys.stderr,
        )
        return CRASH
    if command not in client.COMMANDS:  # operators of a service need the traceback
        traceback.print_exception(error)
    print(f"threewalls: {describe_unexpected(error)}", file=sys.stderr)
    return UNREADABLE if isinstance(error, OSError) else CRASH


def _of_client(options: argparse.Namespace) -> int:
    from app.client.commands import run

    return run(options)


def _mcp(options: argparse.Namespace) -> int:
    from app.agents.server import run

    return run(options)


def _of_server(options: argparse.Namespace) -> int:
    gc.set_threshold(100_000)  # collections during imports take a tenth of a short command
    _choose_data_folder(options)
    from app.settings import get_settings

    try:
        settings = get_settings()
    except ValueError as error:
        print(f"threewalls: invalid setting (docs/settings.md)\n{error}", file=sys.stderr)
        return USAGE
    if settings.embedded and hasattr(options, "data"):
        os.umask(OWNER_ONLY)  # files that this process and its children write are private
    try:
        return _COMMANDS[options.command](options, settings) or FINE
    except ThreewallsError as error:
        print(f"threewalls: {_describe(error)}", file=sys.stderr)
        if isinstance(error, UnreadLog):
            return apply_allow(options.allow, OUTCOME_OF_CODE[UNREAD], UNREAD)
        return USAGE if isinstance(error, UsageError | InvalidMetadata) else UNREADABLE


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="threewalls", description="Tracks the performance of Mixture-of-Experts training."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="start the service: web server and worker in one command")
    demo = commands.add_parser("demo", help="start the service with two projects of example runs")
    demo.add_argument(
        "--generated-only", action="store_true", help="leave out the project of real runs from Megatron-LM's public CI"
    )
    migrate = commands.add_parser("migrate", help="migrate the database to this version")
    upgrade = commands.add_parser("upgrade", help="migrate the database, or report what a migration will do")
    upgrade.add_argument(
        "--check", action="store_true", help="change nothing; list pending migrations, what they lock, and an estimate"
    )
    for command in (serve, demo):
        command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
        command.add_argument(
            "--port", default=8000, type=_port, help="port to listen on, 0 for a free one (default: 8000)"
        )
    serve.add_argument(
        "--web-processes",
        default=1,
        type=_processes,
        metavar="N",
        help="processes that answer requests, with a broker and PostgreSQL only (default: 1)",
    )
    verify = commands.add_parser(
        "verify", help="check the database and read every stored log, or every file of a backup"
    )
    backup = commands.add_parser("backup", help="copy the database and all stored files, while the service runs")
    restore = commands.add_parser("restore", help="restore a backup into an empty service")
    take = commands.add_parser("export-project", help="write all runs and files of a project to one archive")
    take.add_argument("project", metavar="PROJECT", help="name of the project")
    bring = commands.add_parser("import-project", help="create a project from an archive of export-project")
    bring.add_argument("--as", dest="name", default="", metavar="NAME", help="another name for the project")
    for command in (take, bring):
        command.add_argument("file", type=Path, metavar="FILE.tar", help="the archive")
    backup.add_argument(
        "target", metavar="TARGET", help="FILE.tar, a folder, or s3://bucket/prefix; the latter two hold many backups"
    )
    backup.add_argument(
        "--keep", type=_at_least_one, default=0, metavar="N", help="keep the newest N of many backups (default: all)"
    )
    restore.add_argument("source", metavar="SOURCE", help="FILE.tar, a folder, or s3://bucket/prefix")
    verify.add_argument("source", nargs="?", default="", metavar="SOURCE", help="a backup to check instead")
    for command in (restore, verify):
        command.add_argument("--id", default="", help="which backup of a folder or store (default: the newest)")
    rebuild = commands.add_parser("rebuild-standings", help="rank every stack again")
    rebuild.add_argument("--check", action="store_true", help="write nothing; exit with 3 if a standing differs")
    admin = commands.add_parser("admin", help="create an administrator, or set the password of a user")
    actions = admin.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="create an administrator; from then on all users log in")
    reset = actions.add_parser("reset-password", help="set the password of a user and end all sessions of that user")
    for action in (create, reset):
        action.add_argument("name", metavar="NAME", help="user name, as shown next to changes of this user")
        action.epilog = (
            "The password is read from THREEWALLS_ADMIN_PASSWORD, else from the terminal, else from the first line of "
            "standard input."
        )
    for command, folder in (
        (serve, "data"), (demo, "demo-data"), (migrate, "data"), (upgrade, "data"), (verify, "data"), (backup, "data"),
        (restore, "data"),
        (take, "data"), (bring, "data"),
        (rebuild, "data"), (create, "data"), (reset, "data"),
    ):  # fmt: skip
        command.add_argument(
            "--data", type=Path, metavar="DIR", help=f"data folder (default: {DATA_VARIABLE}, or {folder})"
        )
    rules = commands.add_parser("check-rules", help="check your own rule files, without a server")
    rules.add_argument(
        "folder", nargs="?", type=Path, metavar="DIR", help="folder of rule files (default: THREEWALLS_RULES_DIR)"
    )
    add_commands(commands)
    add_allow(commands.choices["compare"])
    client.add_commands(commands)
    mcp = commands.add_parser("mcp", help="offer runs, verdicts and suggestions to agents (docs/agents.md)")
    mcp.add_argument("--url", default="", help=f"address of the service (default: {client.URL})")
    mcp.add_argument("--http", action="store_true", help="streamable HTTP instead of standard input and output")
    mcp.add_argument("--host", default="127.0.0.1", help="with --http: address to listen on (default: %(default)s)")
    mcp.add_argument("--port", default=8001, type=_port, help="with --http: port to listen on (default: %(default)s)")
    mcp.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME",
        help="with --http: host name and port by which a proxy reaches the server; repeatable",
    )  # fmt: skip
    mcp.add_argument("--allow-writes", action="store_true", help="also offer the tool that plans experiments")
    client.describe_commands(commands)
    client.describe_commands(actions)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is requested, because that is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from app.client.service import client_version

        print(f"threewalls {client_version()}")
        parser.exit()


def _processes(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_WEB_PROCESSES:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MOST_WEB_PROCESSES}, not {text!r}")
    return int(text)


def _at_least_one(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return port


def _choose_data_folder(options: argparse.Namespace) -> None:
    # Set in the environment, from which the worker process reads its settings.
    if getattr(options, "data", None) is not None:
        os.environ[DATA_VARIABLE] = str(options.data.resolve())
    elif options.command == "demo":
        from app.settings import data_home

        os.environ.setdefault(DATA_VARIABLE, str(data_home() / "demo-data"))


def _serve(options: argparse.Namespace, settings: "Settings") -> None:
    gc.disable()  # until the server answers: collections during imports take a fifth of the start
    start = StartUp()
    from app.embedded.service import serve

    serve(settings, options.host, options.port, start, web_processes=options.web_processes)


def _demo(options: argparse.Namespace, settings: "Settings") -> None:
    gc.disable()  # as above
    start = StartUp()
    from app.demo.seed import seed
    from app.embedded.service import serve

    serve(settings, options.host, options.port, start, seed=seed(settings, with_public_ci=not options.generated_only))


def _migrate(_: argparse.Namespace, settings: "Settings") -> None:
    from app.storage.database import migrate

    print(f"The database has the newest revision, {migrate(settings)}.")


def _upgrade(options: argparse.Namespace, settings: "Settings") -> None:
    if not options.check:
        return _migrate(options, settings)
    from app.storage.upgrade import describe, plan_upgrade

    for line in describe(plan_upgrade(settings)):
        print(line)
    return None


def _verify(options: argparse.Namespace, settings: "Settings") -> int:
    from app.pipeline.receive import verify
    from app.storage.visible import see_every_project

    if options.source:
        from app.storage.backup import check_backup

        _refuse_for_tar(options.source, "--id", options.id)
        manifest = check_backup(settings, options.source, snapshot=options.id)
        print(f"Backup {manifest.id} is complete: {_contents(manifest)}.")
        return FINE
    see_every_project()
    return UNREADABLE if verify(settings) else FINE


def _backup(options: argparse.Namespace, settings: "Settings") -> None:
    from app.domain.numbers import plural
    from app.storage.backup import back_up
    from app.storage.visible import see_every_project

    _refuse_for_tar(options.target, "--keep", options.keep)
    see_every_project()
    copied = back_up(settings, options.target, keep=options.keep)
    print(f"Backup {copied.manifest.id} of {options.target}: {_contents(copied.manifest)}.")
    print(f"{plural(copied.new_objects, 'new file')} copied, {copied.new_bytes:,} bytes.")


def _refuse_for_tar(where: str, option: str, value: object) -> None:
    if value and where.endswith(".tar"):
        raise UsageError(
            f"{option} is for a folder or store with many backups, but {where} is one backup in one file. Leave out "
            f"{option}, or name a folder."
        )


def _restore(options: argparse.Namespace, settings: "Settings") -> None:
    from app.storage.backup import restore

    _refuse_for_tar(options.source, "--id", options.id)
    manifest = restore(settings, options.source, snapshot=options.id)
    print(f"Restored backup {manifest.id}: {_contents(manifest)}. Start the service, or check it: threewalls verify.")


def _export_project(options: argparse.Namespace, settings: "Settings") -> None:
    from app.pipeline.project_archive import export_project
    from app.storage.database import make_engine, require_migrated
    from app.storage.log_files import LogFiles
    from app.storage.visible import see_every_project

    see_every_project()
    require_migrated(settings)
    engine, part = make_engine(settings), options.file.with_name(f"{options.file.name}.part")
    try:
        with part.open("wb") as file:
            file.writelines(export_project(engine, LogFiles.from_settings(settings), options.project))
        part.replace(options.file)
    except OSError as error:
        raise Unavailable(f"{options.file} cannot be written: {error.strerror}.") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        engine.dispose()
    print(f"Project {options.project} is in {options.file}, {options.file.stat().st_size:,} bytes.")


def _import_project(options: argparse.Namespace, settings: "Settings") -> None:
    from app.pipeline.project_archive import describe, import_project
    from app.storage.audit import SERVICE
    from app.storage.database import make_engine, require_migrated
    from app.storage.log_files import LogFiles
    from app.storage.visible import see_every_project

    see_every_project()
    require_migrated(settings)
    engine = make_engine(settings)
    try:
        log_files = LogFiles.from_settings(settings)
        print(describe(import_project(engine, log_files, options.file, slug=options.name, who=SERVICE)))
    finally:
        engine.dispose()


def _contents(manifest: "Manifest") -> str:
    from app.domain.numbers import plural

    missing = len(manifest.missing)
    lost = f", {missing:,} of which were already missing before the backup" if missing else ""
    return (
        f"{manifest.database} database of {manifest.database_bytes:,} bytes, {plural(manifest.objects, 'file')}{lost}"
    )


def _rebuild_standings(options: argparse.Namespace, settings: "Settings") -> int:
    from app.pipeline.rank import rebuild_standings
    from app.storage.visible import see_every_project

    see_every_project()
    return rebuild_standings(settings, check=options.check)


def _admin(options: argparse.Namespace, settings: "Settings") -> None:
    from app.access.members import run_admin
    from app.storage.visible import see_every_project

    see_every_project()
    run_admin(options, settings)


def _check_rules(options: argparse.Namespace, settings: "Settings") -> int:
    from app.analysis.check import check_rules

    return check_rules(options.folder, settings)


def _analyze(options: argparse.Namespace, settings: "Settings") -> int:
    from app.analysis.commands import analyze

    return analyze(options, _log_reader(settings))


def _compare(options: argparse.Namespace, settings: "Settings") -> int:
    from app.analysis.commands import compare

    code = compare(options, _log_reader(settings))
    return apply_allow(options.allow, OUTCOME_OF_CODE[code], code)


def _profile(options: argparse.Namespace, settings: "Settings") -> int:
    from app.analysis.profile import profile

    return profile(options, settings)


def _check(options: argparse.Namespace, settings: "Settings") -> int:
    from app.analysis.check import check

    return check(options, settings)


def _log_reader(settings: "Settings") -> "ReadLog":
    """Return a function that reads local logs within the limits of an upload and refuses what an upload refuses."""
    from app.domain.logs import parse_log
    from app.pipeline.uploaded_file import Decompressed, Limits, checked

    def read_log(path: Path, template: "LineTemplate | None") -> "tuple[ParsedLog, str]":
        try:
            with _opened(path) as file:
                chunks = Decompressed(file, path.name, Limits.from_settings(settings))
                return parse_log(checked(chunks, "log", path.name), template), chunks.cut
        except OSError as error:
            raise ThreewallsError(f"{path} cannot be read: {error.strerror}.") from error

    return read_log


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open the file, or a copy of a pipe: the first bytes of a log are read twice."""
    with path.open("rb") if path != STANDARD_INPUT else sys.stdin.buffer as file:
        if file.seekable():
            yield file
            return
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(file, copy)
            yield copy


def _describe(error: ThreewallsError) -> str:
    """Return the message and each invalid field, without the sentence that applies to uploads only."""
    fields = "".join(f"\n  {field.field}: {field.message}" for field in error.errors)
    return error.detail.replace(" Nothing was saved.", "") + fields


_COMMANDS: dict[str, Callable[[argparse.Namespace, "Settings"], int | None]] = {
    "serve": _serve,
    "demo": _demo,
    "migrate": _migrate,
    "upgrade": _upgrade,
    "verify": _verify,
    "export-project": _export_project,
    "import-project": _import_project,
    "backup": _backup,
    "restore": _restore,
    "rebuild-standings": _rebuild_standings,
    "check-rules": _check_rules,
    "admin": _admin,
    "analyze": _analyze,
    "compare": _compare,
    "profile": _profile,
    "check": _check,
}

if __name__ == "__main__":
    sys.exit(main())
