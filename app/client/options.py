"""The options of the client's commands. This module imports nothing slow."""

from __future__ import annotations

import argparse
from pathlib import Path

from app.client.errors import add_allow

URL, PROJECT, TOKEN, SPOOL = "THREEWALLS_URL", "THREEWALLS_PROJECT", "THREEWALLS_TOKEN", "THREEWALLS_SPOOL"
DEFAULT_URL = "http://127.0.0.1:8000"
RETRIES = 5


def add_post_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("post on the change", "Posts the report, or updates an earlier post.")
    forge = group.add_mutually_exclusive_group()
    forge.add_argument("--github", dest="forge", action="store_const", const="github", help="a comment and a check")
    forge.add_argument("--gitlab", dest="forge", action="store_const", const="gitlab", help="a note and a status")
    group.add_argument("--repo", default="", metavar="OWNER/NAME", help="repository (default: from the CI job)")
    group.add_argument(
        "--change", default=0, type=_number, metavar="N", help="pull or merge request (default: from the CI job)"
    )
    group.add_argument("--sha", default="", help="commit of the check (default: the head of the change)")
    group.add_argument(
        "--key", default="", metavar="NAME", help="name of the comment and check (default: the CI job, or the stack)"
    )
    group.add_argument(
        "--forge-url", default="", metavar="URL", help="address of your own forge (default: from the CI job)"
    )
    group.add_argument(
        "--no-verdict", default="", metavar="WHY", help="post a neutral check instead of a RUN, if none was uploaded"
    )
    group.add_argument(
        "--label", type=_label, metavar="NAME",
        help="label for the change while a comment on it shows a regression",
    )  # fmt: skip
    group.add_argument("--no-comment", action="store_true", help="post only the check")
    group.add_argument("--no-check", action="store_true", help="post only the comment")
    parser.set_defaults(forge=None)


def _label(text: str) -> str:
    name = text.strip()
    if not 0 < len(name) <= 50 or "," in name or not name.isprintable():
        raise argparse.ArgumentTypeError(f"{text!r} is not a label: 1 to 50 characters without a comma")
    return name


def _number(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is not the number of a change")
    return int(text)


WAIT_SECONDS = 600
COMMANDS = ("upload", "sync", "import", "report", "rerun", "bisect", "runs", "correct", "token", "doctor")
IMPORT_SOURCES = ("wandb", "mlflow", "tensorboard", "csv")


def describe_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Begin the help of each command with its line in the list of commands."""
    for listed in commands._choices_actions:
        line = listed.help or ""
        commands.choices[listed.dest].description = f"{line[:1].upper()}{line[1:]}."


def add_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_upload(commands)
    _add_import(commands)
    sync = commands.add_parser("sync", help="send the uploads that wait in the spool")
    sync.add_argument("--all", action="store_true", help="also send uploads that were meant for another service")
    sync.add_argument("--list", action="store_true", help="only list the uploads")
    report = commands.add_parser("report", help="print the verdict of a run; it sets the exit code")
    report.add_argument("run", nargs="*", metavar="RUN", help="number or address; several runs of one job are allowed")
    printed = report.add_mutually_exclusive_group()
    printed.add_argument("--markdown", action="store_true", help="print the comment for a change")
    printed.add_argument("--json", action="store_true", help="print one JSON document per line and run")
    add_post_options(report)
    _add_wait(report)
    rerun = commands.add_parser("rerun", help="print or start the reruns that would decide a verdict")
    rerun.add_argument("run", metavar="RUN", help="number or address of a run")
    action = rerun.add_mutually_exclusive_group()
    action.add_argument("--print", action="store_true", help="only print the request (the default)")
    action.add_argument("--exec", default="", metavar="CMD", help="run this shell command once for each rerun")
    rerun.add_argument("--json", action="store_true", help="print one JSON document")
    _add_wait(rerun)
    _add_bisect(commands)
    _add_runs(commands)
    _add_correct(commands)
    token = commands.add_parser("token", help="show the scopes of THREEWALLS_TOKEN, or manage the tokens of a project")
    doctor = commands.add_parser("doctor", help="check service, token, clock, proxies, spool and logs")
    doctor.add_argument("logs", nargs="*", type=Path, metavar="LOG", help="log files to check")
    for command in (sync, token, doctor):
        command.add_argument("--json", action="store_true", help="print one JSON document (docs/cli.md)")
    for name in COMMANDS:
        _add_service(commands.choices[name])
    _add_tokens(token)
    for name in ("upload", "sync", "doctor"):
        commands.choices[name].add_argument(
            "--spool", metavar="DIR", help=f"folder of waiting uploads (default: {SPOOL}, or the user's cache)"
        )


def _add_upload(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    upload = commands.add_parser("upload", help="upload the logs and metadata of a run")
    upload.add_argument(
        "logs",
        nargs="+",
        type=Path,
        metavar="LOG",
        help="log files of one run (plain, .gz or .zst), or a folder of them; - for standard input",
    )
    upload.add_argument(
        "--each", default="", choices=("job", "file", "none"),
        help="one run per job, per file, or one for all files (default: per job for a folder, else one)",
    )  # fmt: skip
    upload.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="document of the run (docs/documents.md)",
    )
    upload.add_argument("--events", type=Path, action="append", default=[], metavar="FILE", help="TensorBoard events")
    upload.add_argument(
        "--profile",
        type=Path,
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE",
        help="GPU traces of the run, one for each rank (docs/profiles.md)",
    )
    upload.add_argument(
        "--meta", action="append", default=[], metavar="FILE|JSON", help="metadata of the run, as in docs/api.md"
    )
    upload.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="one field of the metadata")
    upload.add_argument(
        "--format", default="", choices=("auto", "log", "iterations", "bencher"),
        help="training log, table of iterations (JSON, JSONL, CSV) or Bencher (default: by content)",
    )  # fmt: skip
    upload.add_argument(
        "--read-as", default="", metavar="LINE",
        help="a step line of an unknown trainer with placeholders: 'step {iteration}: {step_time_s} s'",
    )  # fmt: skip
    upload.add_argument("--lenient", action="store_true", help="accept --set with unknown fields")
    upload.add_argument("--name", default="", help="name of the run")
    upload.add_argument(
        "--purpose", default="", choices=("ci", "experiment", "release"), help="purpose of the run (default: ci)"
    )
    upload.add_argument("--tag", action="append", default=[], help="tag of the run; repeatable")
    upload.add_argument("--no-ci", action="store_true", help="do not read metadata from the CI job")
    upload.add_argument("--key", default="", help="idempotency key (default: computed from content and job)")
    _add_wait(upload)
    upload.add_argument("--json", action="store_true", help="print one JSON document (docs/cli.md)")
    spooling = upload.add_mutually_exclusive_group()
    spooling.add_argument("--spool-ok", action="store_true", help="exit with 0 if the upload waits in the spool")
    spooling.add_argument("--no-spool", action="store_true", help="do not spool if the service is unreachable")
    spooling.add_argument("--offline", action="store_true", help="write to the spool only, for a later sync")
    follow = upload.add_argument_group("growing log")
    follow.add_argument(
        "--follow", action="store_true", help="send the log while it grows, and close the run at its end"
    )
    follow.add_argument("--until-pid", type=_process, metavar="PID", help="stop when this process has ended")
    follow.add_argument(
        "--until-idle", type=_seconds, metavar="SECONDS", help="stop when the log has not grown for this long"
    )
    follow.add_argument("--until-text", default="", metavar="TEXT", help="stop when the log contains this text")
    follow.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="SECONDS", help="pause between reads (default: %(default)s)"
    )


def _add_bisect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    search = commands.add_parser("bisect", help="name the next commit to measure, to find the cause of a change")
    search.add_argument("run", metavar="RUN", help="number or address of a run of the bad commit")
    search.add_argument(
        "--good", default="", metavar="COMMIT", help="last good commit (default: that of the newest run before)"
    )
    search.add_argument("--bad", default="", metavar="COMMIT", help="bad commit (default: that of the run)")
    search.add_argument(
        "--metric",
        choices=("step_time_ms", "peak_memory_gib"),
        default="",
        help="what to judge by (default: step time, or peak memory if that alone regressed)",
    )
    search.add_argument(
        "--repository",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="checkout of the history (default: this folder)",
    )
    search.add_argument("--json", action="store_true", help="print one JSON document")


def _add_import(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    history = commands.add_parser("import", help="upload the runs of another tool; can be repeated")
    history.add_argument("source", choices=IMPORT_SOURCES, help="the tool, or csv for a folder of tables")
    history.add_argument(
        "where", metavar="DIR_OR_URL", help="folder of its runs, or address of an MLflow server or W&B project"
    )
    history.add_argument("--dry-run", action="store_true", help="list and check the runs, store nothing")
    history.add_argument(
        "--map",
        action="append",
        default=[],
        metavar="KEY=FIELD",
        help="configuration key that sets this contract field",
    )
    history.add_argument(
        "--column", action="append", default=[], metavar="NAME=COLUMN",
        help="metric to read as this column, as in --column perf/iter=step_time_s",
    )  # fmt: skip
    history.add_argument("--purpose", default="ci", choices=("ci", "experiment", "release"), help="purpose of the runs")
    history.add_argument("--tag", action="append", default=[], help="tag of all runs; repeatable")
    history.add_argument("--json", action="store_true", help="print one JSON document (docs/cli.md)")


def _add_tokens(token: argparse.ArgumentParser) -> None:
    """Add the subcommands of `token`. They have no defaults, which would override options before the subcommand."""
    token.set_defaults(user="")
    commands = token.add_subparsers(dest="of_project", metavar="COMMAND")
    commands.add_parser("list", help="list all tokens of the project, including inactive ones")
    create = commands.add_parser(
        "create", help="create a token; its secret is printed only once, alone on standard output"
    )
    create.add_argument("--name", required=True, help="name of the token")
    create.add_argument(
        "--scope", action="append", choices=("upload", "read", "triage"), help="scope; repeatable (default: upload)"
    )
    create.add_argument("--expires", default="", metavar="90d|DATE|never", help="expiry (default: one year)")
    revoke = commands.add_parser("revoke", help="revoke a token immediately")
    revoke.add_argument("which", metavar="TOKEN", help="number (first column of list) or name")
    describe_commands(commands)
    for command in commands.choices.values():
        command.add_argument(
            "--user", default=argparse.SUPPRESS,
            help="your user name (a maintainer of the project); the password is read from THREEWALLS_PASSWORD, the "
            "terminal or standard input",
        )  # fmt: skip
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
        command.add_argument("--url", default=argparse.SUPPRESS, help="address of the service")
        command.add_argument("--project", default=argparse.SUPPRESS, help=f"project (default: {PROJECT})")


def _add_runs(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    runs = commands.add_parser("runs", help="list runs")
    runs.add_argument(
        "q", nargs="?", default="", metavar="WORDS", help="words in the name, branch, commit, model or GPU"
    )
    for name, runs_with in RUN_FILTERS.items():
        runs.add_argument(f"--{name}", default="", help=f"only runs {runs_with}")
    runs.add_argument("--sort", default="", help="column to sort by; prefix - for descending: --sort=-created")
    runs.add_argument("--page", type=int, default=1, help="number of the page (default: %(default)s)")
    runs.add_argument("--limit", type=int, default=20, help="runs per page, at most 200 (default: %(default)s)")
    runs.add_argument("--json", action="store_true", help="print the answer of GET /api/v1/runs")


CORRECTED = ("name", "branch", "commit", "commit_time", "job", "notes")
"""Texts that `correct` changes, by their names in the API."""


def _add_correct(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    correct = commands.add_parser("correct", help="correct what runs state: name, tags, commit, job, project, notes")
    correct.add_argument("runs", nargs="+", metavar="RUN", help="numbers or addresses of runs")
    for name in CORRECTED:
        option, words = f"--{name.replace('_', '-')}", name.replace("_", " ")
        correct.add_argument(option, dest=f"new_{name}", metavar="TEXT", help=f"new {words}")
    correct.add_argument(
        "--tag", action="append", dest="new_tags", metavar="TAG", help="new tag; repeatable, replaces all tags"
    )
    correct.add_argument("--move-to", dest="new_project", metavar="PROJECT", help="move the runs to this project")
    correct.add_argument("--reason", default="", help="recorded in the audit log")
    correct.add_argument("--json", action="store_true", help="print one JSON document")


RUN_FILTERS = {
    "model": "of this model",
    "gpu": "on this GPU",
    "dispatcher": "with this dispatcher",
    "status": "with this status: ready, failed, unread, ...",
    "outcome": "with this outcome: completed, out_of_memory, ...",
    "verdict": "with this verdict, as lists show it",
    "purpose": "with this purpose: ci, experiment or release",
    "branch": "of this branch",
    "evidence": "with this evidence level",
    "tag": "with this tag",
    "commit": "of this commit, or of all that begin with these digits",
    "job": "of this CI job",
    "user": "uploaded by this user or token",
    "cluster": "on this cluster",
    "container": "in this container",
    "since": "uploaded since this time: 7d, or ISO 8601",
    "until": "uploaded before this time: 7d, or ISO 8601",
}


def _add_service(command: argparse.ArgumentParser) -> None:
    command.add_argument("--url", help=f"address of the service (default: {URL}, or {DEFAULT_URL})")
    command.add_argument("--project", help=f"project (default: {PROJECT}, or the project of the token)")
    command.add_argument(
        "--retries", type=int, default=RETRIES,
        help="further attempts if the service is unreachable (default: %(default)s)",
    )  # fmt: skip


def _add_wait(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--wait", type=_seconds, default=None, metavar="SECONDS",
        help=f"wait for the verdict ({WAIT_SECONDS} seconds by default); it sets the exit code",
    )  # fmt: skip
    add_allow(command)


def parse_words(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Return the options. An unknown option of a command with `--set` may be a field of the metadata."""
    options, unknown = parser.parse_known_args(_with_wait(words))
    if unknown:
        is_field = hasattr(options, "set") and unknown[0].startswith("--")
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_as_setting(unknown) if is_field else ''}")
    return options


def _as_setting(unknown: list[str]) -> str:
    name, _, value = unknown[0].removeprefix("--").partition("=")
    following = unknown[1] if len(unknown) > 1 and not unknown[1].startswith("-") else "VALUE"
    return f"; see --help. A field of the metadata is stated with --set {name.replace('-', '_')}={value or following}"


def _with_wait(arguments: list[str]) -> list[str]:
    """Give `--wait` without seconds its default, so that argparse does not parse the following log as seconds."""
    words = list(arguments)
    for index, word in enumerate(words):
        if word == "--":
            break
        following = words[index + 1] if index + 1 < len(words) else ""
        if word == "--wait" and not _is_seconds(following):
            words[index] = f"--wait={WAIT_SECONDS}"
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a process id")
    return number


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e7:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
