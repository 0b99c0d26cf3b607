"""The options of the client's commands. Imports nothing that takes time."""

import argparse
from pathlib import Path

from app.client.errors import add_allow
from app.client.service import DEFAULT_URL, PROJECT, RETRIES, SPOOL, URL

# --- The options of `threewalls report --github` and `--gitlab`. Imports nothing that takes time.


def add_post_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("on the change", "Post it, or bring up to date what an earlier run posted.")
    forge = group.add_mutually_exclusive_group()
    forge.add_argument("--github", dest="forge", action="store_const", const="github", help="a comment and a check")
    forge.add_argument("--gitlab", dest="forge", action="store_const", const="gitlab", help="a note and a status")
    group.add_argument("--repo", default="", metavar="OWNER/NAME", help="repository (default: that of the job)")
    group.add_argument(
        "--change", default=0, type=_number, metavar="N", help="pull or merge request (default: the job's)"
    )
    group.add_argument("--sha", default="", help="commit of the check (default: the head of the change)")
    group.add_argument("--key", default="", metavar="NAME", help="name of this comment and check (default: the stack)")
    group.add_argument("--forge-url", default="", metavar="URL", help="a forge of your own (default: that of the job)")
    group.add_argument(
        "--no-verdict", default="", metavar="WHY", help="instead of a RUN, when none could be uploaded: a neutral check"
    )
    group.add_argument("--no-comment", action="store_true", help="only the check")
    group.add_argument("--no-check", action="store_true", help="only the comment")
    parser.set_defaults(forge=None)


def _number(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError("a change has a number")
    return int(text)


WAIT_SECONDS = 600
Commands = "argparse._SubParsersAction[argparse.ArgumentParser]"
COMMANDS = ("upload", "sync", "report", "runs", "token", "doctor")


def add_commands(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    _add_upload(commands)
    sync = commands.add_parser("sync", help="send the uploads that wait in the spool")
    sync.add_argument("--all", action="store_true", help="also those that were made for another service")
    sync.add_argument("--list", action="store_true", help="send nothing, say what waits")
    report = commands.add_parser("report", help="the verdict of a run, with its exit code")
    report.add_argument("run", nargs="*", metavar="RUN", help="its number or its address; several of one job")
    printed = report.add_mutually_exclusive_group()
    printed.add_argument("--markdown", action="store_true", help="the comment to post on a change")
    printed.add_argument("--json", action="store_true", help="print a JSON document a run, each in a line")
    add_post_options(report)
    _add_wait(report)
    _add_runs(commands)
    token = commands.add_parser("token", help="what the token in THREEWALLS_TOKEN is for; or tokens of a project")
    doctor = commands.add_parser("doctor", help="check service, token, clock, proxies, spool and logs")
    doctor.add_argument("logs", nargs="*", type=Path, metavar="LOG", help="log files that are to be uploaded")
    for command in (sync, token, doctor):
        command.add_argument("--json", action="store_true", help="print one JSON document (docs/cli.md)")
    for name in COMMANDS:
        _add_service(commands.choices[name])
    _add_tokens(token)
    for name in ("upload", "sync", "doctor"):
        commands.choices[name].add_argument(
            "--spool", metavar="DIR", help=f"folder of uploads that wait (default: {SPOOL}, or the user's cache)"
        )


def _add_upload(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    upload = commands.add_parser("upload", help="upload a run from a job: logs and what is known of them")
    upload.add_argument(
        "logs",
        nargs="+",
        type=Path,
        metavar="LOG",
        help="log files of one run, plain, .gz or .zst; a folder: all in it",
    )
    upload.add_argument("--config", type=Path, action="append", default=[], metavar="FILE", help="document beside it")
    upload.add_argument("--events", type=Path, action="append", default=[], metavar="FILE", help="TensorBoard events")
    upload.add_argument(
        "--meta", action="append", default=[], metavar="FILE|JSON", help="metadata of the run, as in docs/api.md"
    )
    upload.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one field of the metadata")
    upload.add_argument("--lenient", action="store_true", help="keep what --set names and no field is")
    upload.add_argument("--name", default="", help="what people call the run")
    upload.add_argument("--purpose", default="", choices=("ci", "experiment", "release"), help="ci without it")
    upload.add_argument("--tag", action="append", default=[], help="a word to find it by; may be repeated")
    upload.add_argument("--no-ci", action="store_true", help="state nothing of the CI job that this runs in")
    upload.add_argument("--key", default="", help="Idempotency-Key in place of one made of content and job")
    _add_wait(upload)
    upload.add_argument("--json", action="store_true", help="print one JSON document (docs/cli.md)")
    kept = upload.add_mutually_exclusive_group()
    kept.add_argument("--spool-ok", action="store_true", help="exit code 0 when the upload waits in the spool")
    kept.add_argument("--no-spool", action="store_true", help="keep nothing when the service cannot be reached")
    kept.add_argument("--offline", action="store_true", help="put it into the spool at once, for a later sync")
    follow = upload.add_argument_group("a log that grows")
    follow.add_argument(
        "--follow", action="store_true", help="send the log while it grows, and close the run at its end"
    )
    follow.add_argument("--until-pid", type=_process, metavar="PID", help="it ends when this process is gone")
    follow.add_argument("--until-idle", type=_seconds, metavar="SECONDS", help="it ends when nothing came for so long")
    follow.add_argument("--until-text", default="", metavar="TEXT", help="it ends when the log holds this")
    follow.add_argument("--interval", type=_seconds, default=2.0, metavar="SECONDS", help="pause between looks (2)")


def _add_tokens(token: argparse.ArgumentParser) -> None:
    """For people. What stands before the word counts too, so nothing here has a default of its own."""
    token.set_defaults(user="")
    commands = token.add_subparsers(dest="of_project", metavar="COMMAND")
    commands.add_parser("list", help="all tokens of the project, also those that are over")
    create = commands.add_parser("create", help="make one; its secret is printed once, alone on standard output")
    create.add_argument("--name", required=True, help="what it is for")
    create.add_argument("--scope", action="append", choices=("upload", "read", "triage"), help="upload without it")
    create.add_argument("--expires", default="", metavar="90d|DATE|never", help="in a year without it")
    revoke = commands.add_parser("revoke", help="from now on it opens nothing")
    revoke.add_argument("which", metavar="TOKEN", help="its number, as listed, or its name")
    for command in commands.choices.values():
        command.add_argument(
            "--user", default=argparse.SUPPRESS,
            help="who you are: a maintainer of the project; the password is asked, or read from standard input or "
            "THREEWALLS_PASSWORD",
        )  # fmt: skip
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
        command.add_argument("--url", default=argparse.SUPPRESS, help="address of the service")
        command.add_argument("--project", default=argparse.SUPPRESS, help=f"project (default: {PROJECT})")


def _add_runs(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    runs = commands.add_parser("runs", help="list runs, with the filters of the service")
    runs.add_argument("q", nargs="?", default="", metavar="WORDS", help="words in name, branch, commit, model or GPU")
    for name in RUN_FILTERS:
        runs.add_argument(f"--{name}", default="", help=f"only of this {name}")
    runs.add_argument("--sort", default="", help="a column, with - in front for descending: --sort=-created")
    runs.add_argument("--page", type=int, default=1)
    runs.add_argument("--limit", type=int, default=20, help="runs a page, 200 at most (default: %(default)s)")
    runs.add_argument("--json", action="store_true", help="print what GET /api/v1/runs answers")


RUN_FILTERS = ("model", "gpu", "dispatcher", "status", "outcome", "verdict", "purpose", "branch", "evidence")


def _add_service(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", help=f"address of the service (default: {URL}, or {DEFAULT_URL})")
    command.add_argument("--project", help=f"project (default: {PROJECT}, or that of the token)")
    command.add_argument(
        "--retries", type=int, default=RETRIES, help="further attempts when the service is away (default: %(default)s)"
    )


def _add_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--wait", type=_seconds, default=None, metavar="SECONDS",
        help=f"wait for the verdict, {WAIT_SECONDS} seconds if not said; it decides the exit code",
    )  # fmt: skip
    add_allow(command)


def with_wait(arguments: list[str]) -> list[str]:
    """`--wait` alone gets its default, so that it does not take the log behind it for a number of seconds."""
    words = list(arguments)
    for at, word in enumerate(words):
        if word == "--":
            break
        follows = words[at + 1] if at + 1 < len(words) else ""
        if word == "--wait" and not _is_seconds(follows):
            words[at] = f"--wait={WAIT_SECONDS}"
    return words


def _is_seconds(text: str) -> bool:
    try:
        _seconds(text)
    except argparse.ArgumentTypeError:
        return False
    return not Path(text).exists()


def _process(text: str) -> int:
    number = int(text)
    if not 0 < number < 2**31:
        raise argparse.ArgumentTypeError("must be the number of a process")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds
