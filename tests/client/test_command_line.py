"""What is read from the command line, and what is printed."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

import threewalls_entry
from app.analysis import options as local
from app.cli import main, make_parser
from app.client import errors
from app.client.account import caller_text
from app.client.delivery import Progress
from app.client.errors import UsageError
from app.client.options import with_wait
from app.client.report import exit_code_of, run_number, verdict_text
from app.client.terminal import one_line, plain
from app.client.upload import upload_key
from app.domain.report.exit_codes import FAILED, FINE
from tests.client.answering import Answer, answering
from tests.client.commands import job_environment, threewalls
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
    options = make_parser().parse_args(with_wait(["upload", *words]))
    assert (options.wait, [str(log) for log in options.logs]) == (wait, logs)


@pytest.mark.parametrize("text", ["17", "http://a.example.org/runs/17", "https://a/b/runs/17?x=1#log"])
def test_a_run_is_a_number_or_an_address(text: str) -> None:
    assert run_number(text) == 17


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "runs/17", "http://a/regressions/17", "²", str(2**31)])
def test_what_is_no_run_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        run_number(text)


def test_exit_codes_are_the_same_everywhere() -> None:
    assert (errors.FINE, errors.USAGE, errors.SERVICE) == (FINE, local.USAGE, FAILED)
    assert (errors.SERVICE, errors.CRASH) == (local.UNREADABLE, threewalls_entry.CRASH)


def test_a_verdict_that_is_not_there_is_not_green() -> None:
    assert exit_code_of({"status": "pending", "exit_code": None}) == exit_code_of({}) == errors.SERVICE
    assert exit_code_of({"exit_code": 5}) == 5


def test_a_report_for_a_terminal_holds_no_escape_sequence() -> None:
    row = {"figure": "step time", "baseline": "400 ms", "candidate": "440 ms", "change": "10 % slower", "decision": "x"}
    report = {
        "headline": "regression\x1b[2J: step time", "baseline": "baseline: 12 runs", "moved": [row],
        "verdict": {"suspects": [{"reason": "code\n\x07"}, {"field": "tp", "reason": "It is 4."}]}, "problems": [],
        "regressions": [{"id": 3, "state": "open", "address": "http://a/regressions/3"}],
        "next_step": {"title": "t\x1b]0;x", "url": "http://a"},
    }  # fmt: skip
    lines = verdict_text(report)
    assert all(line.isprintable() for line in lines)
    assert "step time  400 ms  440 ms  10 % slower    x" in lines
    assert "suspect: code" in lines
    assert "suspect: tp: It is 4." in lines


def test_an_inconclusive_report_says_what_would_decide() -> None:
    said = "3 more runs of this commit would decide if the difference stays the same."
    lines = verdict_text({"headline": "inconclusive: step time", "baseline": "12 runs", "what_would_decide": said})
    assert lines == ["inconclusive: step time", "12 runs", "", said]


def test_control_characters_become_spaces() -> None:
    assert plain("a\x1b[31mb\x9b\n") == "a [31mb \n"
    assert one_line(" a\n\tb\r ") == "a b"


def test_a_bar_on_a_terminal_and_few_lines_in_a_log() -> None:
    times = iter([0.0, 1.0, 1.01, 40.0])
    terminal = Terminal()
    bar = Progress(terminal, lambda: next(times))
    bar(500_000, TWO_MB)
    bar(600_000, TWO_MB)
    bar.line("Retrying.")
    assert " 25% of 2.0 MB, 0.5 MB/s" in terminal.getvalue()
    assert terminal.getvalue().count("\r") == 2
    assert terminal.getvalue().endswith("\r\x1b[Kthreewalls: Retrying.\n")
    times = iter([0.0, 1.0, 31.0])
    log = io.StringIO()
    quiet = Progress(log, lambda: next(times))
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
        ("threewalls runs", 3),  # what answers is no list of runs
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
                said = f"--allow {outcome}" in capfd.readouterr().err
                if (code, said) != (wanted, wanted != verdict):
                    wrong.append((outcome, allowed, code, said))
    assert wrong == []


def test_a_service_that_is_away_is_no_verdict_and_only_that_allows_it(tmp_path: Path) -> None:
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
    ("found", "told"),
    [
        ({"kind": "everyone", "name": ""}, "no token is needed"),
        ({"kind": "nobody", "name": ""}, "THREEWALLS_TOKEN"),
        ({"kind": "person", "name": "mara"}, "mara"),
        ({"kind": "token", "name": "ci", "project": "moe", "scopes": ["read"], "expires_at": None}, "never"),
    ],
)
def test_what_a_token_is_for(found: dict[str, object], told: str) -> None:
    assert told in "\n".join(caller_text(found))
