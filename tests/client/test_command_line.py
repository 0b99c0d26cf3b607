"""Parsing of the command line, and output."""

import gzip
import io
import json
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import Engine, update

import threewalls_entry
from app.analysis import options as local
from app.cli import main, make_parser
from app.client import errors, upload
from app.client.account import caller_text
from app.client.commands import runs_table
from app.client.delivery import ProgressLine
from app.client.options import parse_words
from app.client.report import exit_code_of, run_number, verdict_text
from app.client.terminal import one_line, plain
from app.client.upload import upload_key
from app.domain.report.values import FAILED, FINE
from app.errors import OverQuota, UsageError
from app.main import create_app
from app.settings import Settings
from app.storage.database import transaction
from app.storage.tables import HeartbeatRow, utc_now
from tests.client.answering import Answer, answering
from tests.client.commands import Done, job_environment, threewalls
from tests.conftest import OPEN_TO
from tests.embedded.processes import Running, wait_for
from tests.in_process import served
from tests.notifications.certificate import make_certificate
from tests.training_logs import training_log

TWO_MB = 2_000_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("words", "wait", "logs"),
    [
        (["train.log", "--wait"], 600, ["train.log"]),
        (["--wait", "train.log"], 600, ["train.log"]),
        (["--wait", "60", "train.log"], 60, ["train.log"]),
        (["--wait=5", "train.log"], 5, ["train.log"]),
        (["train.log"], None, ["train.log"]),
        (["--", "--wait"], None, ["--wait"]),
    ],
)
def test_wait_takes_no_log_for_seconds(words: list[str], wait: float | None, logs: list[str]) -> None:
    options = parse_words(make_parser(), ["upload", *words])
    assert (options.wait, [str(log) for log in options.logs]) == (wait, logs)


@pytest.mark.parametrize("text", ["17", "http://a.example.org/runs/17", "https://a/b/runs/17?x=1#log"])
def test_a_run_is_a_number_or_an_address(text: str) -> None:
    assert run_number(text) == 17


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "runs/17", "http://a/regressions/17", "²", str(2**31)])
def test_an_invalid_run_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        run_number(text)


def test_exit_codes_are_the_same_everywhere() -> None:
    assert (errors.FINE, errors.USAGE, errors.SERVICE) == (FINE, local.USAGE, FAILED)
    assert (errors.SERVICE, errors.CRASH) == (local.UNREADABLE, threewalls_entry.CRASH)


def test_a_verdict_that_is_not_there_is_not_green() -> None:
    assert exit_code_of({"status": "pending", "exit_code": None}) == exit_code_of({}) == errors.SERVICE
    assert exit_code_of({"exit_code": 5}) == 5


def test_a_report_for_a_terminal_contains_no_escape_sequence() -> None:
    row = {"figure": "step time", "baseline": "400 ms", "candidate": "440 ms", "change": "10 % slower", "decision": "x"}
    report = {
        "headline": "regression\x1b[2J: step time", "baseline": "baseline: 12 runs", "moved": [row],
        "verdict": {"suspects": [{"reason": "code\n\x07"}, {"field": "tp", "reason": "It is 4."}]}, "problems": [],
        "regressions": [
            {"id": 3, "address": "http://a/regressions/3", "summary": {"state_text": "open", "text": "Slow since #9."}}
        ],
        "next_step": {"title": "t\x1b]0;x", "url": "http://a"},
    }  # fmt: skip
    lines = verdict_text(report)
    assert all(line.isprintable() for line in lines)
    assert "step time  400 ms  440 ms  10 % slower    x" in lines
    assert "suspect: code" in lines
    assert "suspect: tp: It is 4." in lines


def test_an_inconclusive_report_says_what_would_decide() -> None:
    advice = "3 more runs of this commit would decide if the difference stays the same."
    lines = verdict_text({"headline": "inconclusive: step time", "baseline": "12 runs", "what_would_decide": advice})
    assert lines == ["inconclusive: step time", "12 runs", "", advice]


def test_a_broken_limit_is_named_with_any_verdict() -> None:
    limit = "Step time is 439.3 ms; the limit is at most 430.0 ms."
    report = {"headline": "no baseline", "baseline": "baseline: none", "verdict": {"limits_broken": [limit]}}
    assert verdict_text(report) == ["no baseline", "baseline: none", "", limit]


def test_a_report_names_the_options_that_state_missing_fields() -> None:
    missing = {"fields_to_supply": ["model", "env"]}
    lines = verdict_text({"headline": "no baseline", "baseline": "baseline: none", "verdict": missing})
    assert lines[2].endswith(": --set model=VALUE --set env.NAME=VALUE")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["upload", "train.log", "--model", "Qwen3-30B-A3B"], "--set model=Qwen3-30B-A3B"),
        (["upload", "train.log", "--seq-len=4096"], "--set seq_len=4096"),
        (["upload", "--model", "Qwen3-30B-A3B"], "--set model=VALUE"),
        (["runs", "--tp", "2"], ""),
    ],
)
def test_a_field_as_an_option_is_refused_with_what_to_type(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_words(make_parser(), words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.partition("is stated with ")[2].strip() == hint


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ({"verdict": "no_baseline", "badge": "inconclusive", "label": "alternates"}, "inconclusive, alternates"),
        ({"verdict": "regression", "badge": "regression", "label": "slower, unconfirmed"}, "slower, unconfirmed"),
        ({"verdict": "no_baseline", "badge": "regression", "label": ""}, "regression"),
        ({"verdict": "no_change", "badge": "no_change", "label": ""}, "no change"),
        ({"verdict": "", "badge": "", "side": "candidate", "experiment_id": 4}, "B of experiment #4"),
    ],
)
def test_a_list_of_runs_has_the_words_of_the_pages(item: dict[str, object], words: str) -> None:
    run = {"id": 1, "created_at": "2026-09-01T01:00:00Z", "name": "n", "branch": "main", "status": "ready"}
    _, row = runs_table({"items": [run | item], "pages": 1})
    assert f"  {words}  " in row


def test_control_characters_become_spaces() -> None:
    assert plain("a\x1b[31mb\x9b\n") == "a [31mb \n"
    assert one_line(" a\n\tb\r ") == "a b"


def test_a_bar_on_a_terminal_and_few_lines_in_a_log() -> None:
    times = iter([0.0, 1.0, 1.01, 40.0])
    terminal = Terminal()
    bar = ProgressLine(terminal, lambda: next(times))
    bar(500_000, TWO_MB)
    bar(600_000, TWO_MB)
    bar.line("Retrying.")
    assert " 25% of 2.0 MB, 0.5 MB/s" in terminal.getvalue()
    assert terminal.getvalue().count("\r") == 2
    assert terminal.getvalue().endswith("\r\x1b[Kthreewalls: Retrying.\n")
    times = iter([0.0, 1.0, 31.0])
    log = io.StringIO()
    quiet = ProgressLine(log, lambda: next(times))
    quiet(1, TWO_MB)
    quiet(TWO_MB, TWO_MB)
    assert log.getvalue() == "threewalls: 100% of 2.0 MB, 0.1 MB/s\n"


def test_a_key_is_that_of_content_and_job() -> None:
    key = upload_key({"a": 1}, "job 1", ("log", "x", "ff"))
    assert key == upload_key({"a": 1}, "job 1", ("log", "x", "ff"))
    assert len({key, upload_key({"a": 2}, "job 1"), upload_key({"a": 1}, "job 2", ("log", "x", "ff"))}) == 3
    assert len(key) <= 255


REPORT = {
    "run": {"id": "9", "address": "http://a/runs/9"}, "status": "judged", "headline": "regression \u2212 9 %",
    "baseline": "12 runs", "exit_code": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("pipe", "code"),
    [
        ("threewalls report 9", 1),
        ("threewalls report 9 | true", 1),  # a reader that stops does not change the verdict
        ("PYTHONIOENCODING=cp1252 threewalls report 9", 1),
        ("threewalls report 9 > /dev/full", 1),
        ("threewalls report 9 >&- 2>&-", 1),
        ("threewalls upload - <&-", 3),
        ("threewalls runs", 3),  # the answer is not a list of runs
    ],
)
def test_only_a_verdict_of_regression_is_exit_code_1(pipe: str, code: int, tmp_path: Path) -> None:
    with answering(Answer(200, REPORT)) as house:
        line = f'set -o pipefail; threewalls() {{ {sys.executable} -m app.cli "$@"; }}; {pipe}'
        env = job_environment(house.url, tmp_path)
        done = subprocess.run(["bash", "-c", line], env=env, capture_output=True, timeout=300, check=False)
    assert done.returncode == code, done.stderr
    assert b"Traceback" not in done.stderr


REPORTS = {outcome: {**REPORT, "exit_code": code} for code, outcome in errors.OUTCOME_OF_CODE.items()} | {
    "no-verdict": {**REPORT, "status": "pending", "exit_code": None}
}


def test_only_an_outcome_that_is_allowed_becomes_0(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for outcome, document in REPORTS.items():
        with answering(Answer(200, document)) as house:
            for allowed in ("no-baseline,inconclusive", "unread", "failed", "no-verdict", "regression,failed"):
                code = main(["report", "9", f"--url={house.url}", "--allow", allowed])
                verdict = document["exit_code"] if outcome != "no-verdict" else 3
                wanted = 0 if outcome in allowed.split(",") else verdict
                names_outcome = f"--allow {outcome}" in capfd.readouterr().err
                if (code, names_outcome) != (wanted, wanted != verdict):
                    wrong.append((outcome, allowed, code, names_outcome))
    assert wrong == []


def test_only_no_verdict_allows_an_unreachable_service(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_bytes(training_log())
    upload = ("upload", str(tmp_path / "train.log"), "--retries=0", "--no-ci", "--spool", str(tmp_path / "spool"))
    codes = {}
    for words in (
        ("report", "9", "--retries=0"), ("report", "9", "--retries=0", "--allow=no-verdict"),
        ("report", "9", "--retries=0", "--allow=failed"), (*upload, "--wait", "--allow=no-verdict"),
        (*upload, "--wait", "--allow=no-baseline"), (*upload, "--wait", "--allow=no-verdict", "--no-spool"),
        (*upload, "--allow=no-verdict"), ("report", "9", "--allow=green"),
    ):  # fmt: skip
        codes[words[-1], words[0], len(words)] = threewalls("http://127.0.0.1:1", tmp_path, *words).code
    assert list(codes.values()) == [3, 0, 3, 0, 3, 3, 2, 2]


def test_the_worst_run_that_is_not_allowed_decides(tmp_path: Path) -> None:
    answers = [Answer(200, {**REPORT, "run": {"id": "9", "address": "x"}, "exit_code": code}) for code in (4, 5, 0)]
    codes = []
    for allowed in ("no-baseline", "inconclusive", "no-baseline,inconclusive"):
        with answering(*answers) as house:
            codes.append(main(["report", "7", "8", "9", f"--url={house.url}", "--allow", allowed]))
    assert codes == [5, 4, 0]


@pytest.mark.parametrize(
    ("caller", "text"),
    [
        ({"kind": "everyone", "name": ""}, "no token is needed"),
        ({"kind": "nobody", "name": ""}, "THREEWALLS_TOKEN"),
        ({"kind": "person", "name": "mara"}, "mara"),
        ({"kind": "token", "name": "ci", "project": "moe", "scopes": ["read"], "expires_at": None}, "never"),
    ],
)
def test_what_a_token_may_do(caller: dict[str, object], text: str) -> None:
    assert text in "\n".join(caller_text(caller))


# --- Unexpected conditions: the client exits with 3 and a one-line reason, never with 1, which means a regression.


HTML = {"Content-Type": "text/html"}
STRANGERS = [
    Answer(200, b"<html>Log in</html>", HTML), Answer(204, b""), Answer(200, {"hello": 1}), Answer(200, [1]),
    Answer(200, b"no gzip", {"Content-Encoding": "gzip"}), Answer(302, b"", {"Location": "https://sso.example.org"}),
    Answer(404, b"<html>", HTML), Answer(413, b"<html>", HTML), Answer(200, b"[" * 100_000),
    Answer(422, {"detail": "no", "errors": [1, "two"]}),
]  # fmt: skip
Called = Callable[..., Done]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Called:
    """A command of the client, in this process."""

    def called(url: str, *words: str, **env: str) -> Done:
        with monkeypatch.context() as patched:
            for name, value in job_environment(url, tmp_path, **env).items():
                patched.setenv(name, value)
            code = main(list(words))
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return called


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "train.log"
    path.write_bytes(training_log())
    return str(path)


def waits(folder: Path) -> int:
    return len(list((folder / ".cache").rglob("upload.json")))


@pytest.mark.parametrize("stranger", STRANGERS, ids=lambda item: f"{item.status}-{str(item.body)[:9]}")
def test_a_server_that_is_not_threewalls_is_named_and_the_log_kept(
    stranger: Answer, call: Called, log: str, tmp_path: Path
) -> None:
    with answering(stranger) as house:
        done = call(house.url, "upload", log, "--retries", "0", "--json")
        assert (done.code, done.document["exit_code"], waits(tmp_path)) == (3, 3, 1), done.err
        assert done.document["spooled"] in done.err
        assert house.url in done.document["error"]
        assert len(done.err.splitlines()) == 1 + len(done.document["errors"])
        for words in (("doctor",), ("report", "7"), ("runs",), ("token",)):
            other = call(house.url, *words, "--retries", "0", "--json")
            assert other.code == (2 if stranger.status == 422 and words != ("doctor",) else 3), (words, other.err)
            assert isinstance(other.document, dict)
            assert "unexpected error" not in other.err


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SSL_CERT_FILE", "/none.pem"), ("SSL_CERT_FILE", "/etc/hostname"), ("HTTPS_PROXY", "socks5://user:hunter2@proxy:1"),
        ("HTTPS_PROXY", "gopher://proxy:1"), ("HTTP_PROXY", "http://[::"),
    ],
)  # fmt: skip
def test_proxies_and_certificates_that_cannot_be_are_named(
    variable: str, value: str, call: Called, log: str, tmp_path: Path
) -> None:
    done = call("https://127.0.0.1:1", "upload", log, **{variable: value})
    assert (done.code, waits(tmp_path)) == (3, 1), done.err
    assert variable in done.err
    assert "hunter2" not in done.err
    checked = call("https://127.0.0.1:1", "doctor", **{variable: value})
    assert checked.code == 3
    assert variable in checked.out.splitlines()[0]


@contextmanager
def self_signed(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A service with a certificate from a private authority, and a list of all connections."""
    connections: list[str] = []

    class Server(HTTPServer):
        def get_request(self) -> tuple[Any, Any]:
            connections.append("one")
            return super().get_request()

        def handle_error(self, *_: object) -> None:
            """A client that does not trust the certificate is not an error of the server."""

    server = Server(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(make_certificate(folder, "IP:127.0.0.1"), folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_address[1]}", connections
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_an_untrusted_certificate_is_not_retried(call: Called, log: str, tmp_path: Path) -> None:
    with self_signed(tmp_path) as (url, connections):
        done = call(url, "upload", log)
        assert (done.code, len(connections), waits(tmp_path)) == (3, 1, 1), done.err
        assert "SSL_CERT_FILE" in done.err


@pytest.mark.parametrize(
    ("answer", "spooled"),
    [
        (Answer(401, {"title": "Who asks?", "detail": "The token is over."}), True),
        (Answer(403, {"title": "Not allowed", "detail": "It may not upload."}), True),
        (Answer(413, {"title": OverQuota.title, "detail": "Full."}), True),
        (Answer(413, {"title": "The upload is too large", "detail": "Too large."}), False),
        (Answer(422, {"title": "This is not a text log", "detail": "Binary."}), False),
        (Answer(409, {"title": "This key is already used", "detail": "Another."}), False),
    ],
)
def test_uploads_that_may_be_accepted_later_are_spooled_with_exit_code_3(
    answer: Answer, spooled: bool, call: Called, log: str, tmp_path: Path
) -> None:
    with answering(answer) as house:
        done = call(house.url, "upload", log, "--spool-ok", "--json")
        assert (done.code, waits(tmp_path)) == (3, int(spooled)), done.err
        assert answer.body["detail"] in done.document["error"]
        assert bool(done.document["spooled"]) is spooled is ("threewalls sync" in done.err)
        without = call(house.url, "upload", log, "--no-spool")
        assert (without.code, answer.body["detail"] in without.err) == (3, True)


def test_an_unreachable_service_and_a_full_spool_are_both_reported(call: Called, log: str) -> None:
    done = call("http://127.0.0.1:1", "upload", log, "--retries", "0", "--spool", "/dev/null/spool", "--json")
    assert done.code == 3
    assert "could not be reached" in done.document["error"]
    assert "/dev/null/spool" in done.document["error"]


def test_unreadable_files_are_reported_by_name(call: Called, log: str, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for words in (
        ("upload", str(tmp_path / "loop")), ("upload", f"{log}/inside"), ("upload", str(tmp_path / ("x" * 300))),
        ("upload", str(tmp_path / ("x" * 300)), "--follow"), ("sync", "--spool", log), ("doctor", f"{log}/inside"),
    ):  # fmt: skip
        done = call("http://127.0.0.1:1", *words, "--retries", "0")
        assert done.code == 3, (words, done.err)
        assert "unexpected error" not in done.err
        assert str(tmp_path) in done.err + done.out


def test_a_defect_of_ours_is_70_and_a_line_with_its_place(
    call: Called, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.client.upload_command.surrounding_job", lambda *_: {}["nothing"])
    done = call("http://127.0.0.1:1", "upload", log, "--json")
    assert (done.code, len(done.err.splitlines())) == (70, 1)
    assert "KeyError: 'nothing' (test_command_line.py:" in done.err
    assert done.document["exit_code"] == 70
    monkeypatch.setattr("app.cli.make_parser", lambda: {}["nothing"])
    assert call("http://127.0.0.1:1", "upload", log).code == 70


def test_wrong_words_are_a_matter_of_usage(call: Called, log: str) -> None:
    for words in (("--until-idle", "3"), ("--key", "naïve")):
        assert call("http://127.0.0.1:1", "upload", log, *words).code == 2
    for words in (("upload", log, "--wait=abc"), ("report", "7", "--json", "--markdown")):
        with pytest.raises(SystemExit) as ended:
            parse_words(make_parser(), list(words))
        assert ended.value.code == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["report"], "Print the verdict of a run; it sets the exit code."),
        (["token", "revoke"], "Revoke a token immediately."),
        (["admin", "create"], "Create an administrator; from then on all users log in."),
    ],
)
def test_the_help_of_a_command_says_what_it_does(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args([*words, "--help"])
    assert ended.value.code == 0
    assert line in capsys.readouterr().out


def test_names_that_are_not_text_and_pipes_are_uploaded(server: Running, tmp_path: Path) -> None:
    text = training_log(step_time_ms=417)
    (tmp_path / "caf\udce9.log").write_bytes(text)
    (tmp_path / "rank1.log.gz").write_bytes(gzip.compress(training_log(step_time_ms=418)))
    line = (
        f"mkfifo rank2.log; cat *caf* > rank2.log & {sys.executable} -m app.cli upload *caf* <(zcat rank1.log.gz) "
        "rank2.log --project client-names --json"
    )
    env = job_environment(server.address, tmp_path, PYTHONPATH=str(Path(__file__).parents[2]))
    done = subprocess.run(["bash", "-c", line], env=env, cwd=tmp_path, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    run = httpx2.get(f"{server.address}/api/v1/runs/{json.loads(done.stdout)['id']}", timeout=300).json()
    assert {file["name"]: file["size_bytes"] for file in run["files"]} == {
        "caf?.log": len(text), "train.log": len(text), "rank2.log": len(text),
    }  # fmt: skip


def test_an_empty_log_exits_with_3_and_invalid_metadata_with_2(
    server: Running, call: Called, log: str, tmp_path: Path
) -> None:
    (tmp_path / "empty.log").touch()
    (tmp_path / "binary.log").write_bytes(bytes(range(256)) * 100)
    for name in ("empty.log", "binary.log"):
        done = call(server.address, "upload", str(tmp_path / name), "--json")
        assert (done.code, done.document["id"], done.document["exit_code"]) == (3, None, 3)
        assert name in done.document["error"]
        assert call(server.address, "doctor", str(tmp_path / name)).code == 3
    done = call(server.address, "upload", log, "--set", "gpus=many", "--json")
    assert (done.code, done.document["errors"][0]["field"]) == (2, "meta.gpus")
    assert waits(tmp_path) == 0


def test_an_unknown_field_is_refused_unless_lenient(server: Running, call: Called, log: str, tmp_path: Path) -> None:
    words = ("upload", log, "--project", "client-strict", "--set", "gpuu=H100", "--set", "seq_len=4096", "--json")
    done = call(server.address, *words)
    assert (done.code, [error["field"] for error in done.document["errors"]]) == (2, ["meta.gpuu"]), done.err
    following = call(server.address, *words, "--follow", "--until-idle", "0")
    assert (following.code, waits(tmp_path)) == (2, 0), following.err
    assert call(server.address, "analyze", log, "--set", "gpuu=H100").code == 2
    assert call(server.address, "analyze", log, "--set", "gpuu=H100", "--lenient").code == 0
    lenient = call(server.address, *words, "--lenient")
    assert (lenient.code, any("gpuu" in warning for warning in lenient.document["warnings"])) == (0, True), lenient.err
    file = call(server.address, "upload", log, "--project", "client-strict", "--meta", '{"our_own": 1}', "--json")
    assert file.code == 0, "a file of metadata may hold what only its owner understands"


def test_a_project_with_another_default_branch_gets_the_reason_and_the_setting(
    server: Running, call: Called, tmp_path: Path
) -> None:
    words = ("--project", "client-master", "--no-ci", "--set", "branch=master", "--set", "gpu=H100")
    for number in range(2):
        log = tmp_path / f"{number}.log"
        log.write_bytes(training_log(step_time_ms=430 + number))
        done = call(server.address, "upload", str(log), *words, "--set", f"commit={number}abcdef0", "--wait")
        assert done.code == 4, done.err
    first, second = done.out.splitlines()[1:3]
    assert [word for word in ("master", "main", "baseline_branch") if word not in first] == [], first
    assert "master" in second or "main" in second, second
    run = httpx2.get(f"{server.address}/api/v1/runs?project=client-master", timeout=300).json()["items"][0]["id"]
    verdict = httpx2.get(f"{server.address}/api/v1/runs/{run}/verdict", timeout=300).json()
    assert verdict["baseline"]["other_branch"] == {"baseline_branch": "main", "branches": ["master"], "runs": 1}
    comment = httpx2.get(f"{server.address}/api/v1/runs/{run}/report.md", timeout=300).text
    assert "baseline" in comment.splitlines()[0]
    assert "master" in comment.splitlines()[0]
    page = httpx2.get(f"{server.address}/runs/{run}", timeout=300).text
    assert "baseline_branch" in page


def test_a_run_without_enough_disk_space_does_not_begin(
    server: Running, call: Called, log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "PIECE_BYTES", 4096)
    quota = f"{server.address}/api/v1/projects/client-full/quota"
    runs = f"{server.address}/api/v1/runs?project=client-full"
    small = call(server.address, "upload", log, "--project", "client-full", "--set", "gpu=H100", "--json")
    assert small.code == 0, small.err
    size = Path(log).stat().st_size
    assert httpx2.put(quota, json={"quota_bytes": size + 100, "author": "mara"}, timeout=300).status_code == 200
    Path(log).write_bytes(training_log(step_time_ms=444))
    done = call(server.address, "upload", log, "--project", "client-full", "--json")
    assert (done.code, waits(tmp_path)) == (3, 1)
    assert "quota" in done.document["error"]
    assert httpx2.get(runs, timeout=300).json()["total"] == 1
    assert httpx2.put(quota, json={"quota_bytes": 0, "author": "mara"}, timeout=300).status_code == 200
    assert call(server.address, "sync").code == 0
    assert httpx2.get(runs, timeout=300).json()["total"] == 2


def test_a_run_that_never_received_a_byte_is_not_a_near_miss(server: Running, call: Called, log: str) -> None:
    runs = f"{server.address}/api/v1/runs"
    meta = {"meta": (None, json.dumps({"project": "client-ghost", "gpu": "H100"}))}
    ghost = httpx2.post(f"{runs}?complete=false", files=meta, timeout=300).json()["id"]
    wait_for(lambda: httpx2.get(f"{runs}/{ghost}", timeout=300).json()["status"] == "ready", "its reading")
    done = call(server.address, "upload", log, "--project", "client-ghost", "--wait", "--json")
    assert (done.code, done.document["report"]["verdict"]["nearest_misses"]) == (4, []), done.err


def test_a_cut_file_in_pieces_keeps_its_warning_and_many_files_go(
    server: Running, call: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "FORM_FILES", 1)
    logs = [training_log(step_time_ms=451), training_log(step_time_ms=452)]
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(logs[0])[:-40])
    (tmp_path / "b.log").write_bytes(logs[1])
    words = ("upload", str(tmp_path / "a.log.gz"), str(tmp_path / "b.log"), "--project", "client-cut", "--json")
    done = call(server.address, *words, "--wait")
    again = call(server.address, *words)
    assert (done.document["created"], again.document["created"]) == (True, False), done.err
    run = httpx2.get(f"{server.address}/api/v1/runs/{done.document['id']}", timeout=300).json()
    assert [file["name"] for file in run["files"]] == ["a.log", "b.log"]
    assert any("a.log is gzip" in warning for warning in run["warnings"]), run["warnings"]


def test_a_run_of_another_service_is_not_mistaken_for_a_local_run(server: Running, call: Called, log: str) -> None:
    run_id = call(server.address, "upload", log, "--project", "client-own", "--wait", "--json").document["id"]
    port = server.address.rpartition(":")[2]
    for base in ("http://other.example.org", f"http://localhost:{port}", f"{server.address}/elsewhere"):
        foreign = call(server.address, "report", f"{base}/runs/{run_id}")
        assert (foreign.code, foreign.out) == (2, ""), foreign.err
    own = call(f"http://localhost:{port}", "report", f"http://LOCALHOST:{port}/runs/{run_id}#log")
    assert own.code == 4, own.err


def test_the_version_is_shown(tmp_path: Path) -> None:
    done = threewalls("http://127.0.0.1:1", tmp_path, "--version")
    assert (done.code, done.out.startswith("threewalls ")) == (0, True)


# --- The command against a service whose workers all stopped.


@pytest.fixture
def address(settings: Settings) -> Iterator[str]:
    with served(create_app(settings, open_to=OPEN_TO)) as address:
        yield address


def test_waiting_clients_learn_since_when_nothing_is_processed(address: str, engine: Engine, tmp_path: Path) -> None:
    since = utc_now() - timedelta(minutes=17)
    with transaction(engine) as session:
        session.execute(update(HeartbeatRow).values(seen_at=since))
    (tmp_path / "train.log").write_bytes(training_log())
    sent = threewalls(address, tmp_path, "upload", str(tmp_path / "train.log"), "--wait", "1")
    assert sent.code == 3
    assert f"{since:%Y-%m-%d %H:%M:%S} UTC" in sent.out
    report = threewalls(address, tmp_path, "report", "1", "--json").document
    assert (report["status"], report["nothing_processed_since"]) == ("pending", since.isoformat())
    with transaction(engine) as session:
        session.execute(update(HeartbeatRow).values(seen_at=utc_now()))
    assert threewalls(address, tmp_path, "report", "1", "--json").document["nothing_processed_since"] is None
