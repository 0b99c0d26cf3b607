"""Delivery to the service: which answers are retried, and the spool, which survives kills."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.client import spool
from app.client.delivery import sync
from app.client.errors import Refused, Unreachable
from app.client.service import ClientSettings, Service, read_settings
from app.client.upload import Upload, read_upload
from app.errors import UsageError
from tests.client.answering import Answer, Answering, answering
from tests.client.commands import job_environment, threewalls
from tests.embedded.processes import Running
from tests.training_logs import training_log
from threewalls.transport import pauses, retry_after_seconds

URL = "http://service.example.org"
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=30).filter(
    lambda name: name not in (".", "..") and len(name.encode()) < 200
)
META = st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=8) | st.lists(st.text()))


def make_upload(folder: Path, **meta: object) -> Upload:
    folder.mkdir(exist_ok=True)
    (folder / "train.log").write_bytes(b"iteration 1\n")
    return read_upload(logs=[folder / "train.log"], meta=meta)


def run_answer(run_id: int, *, created: bool = True) -> Answer:
    return Answer(202, {"id": run_id, "url": f"{URL}/runs/{run_id}", "status": "received", "created": created})


@settings(max_examples=40, deadline=None)
@given(files=st.dictionaries(NAMES, st.binary(max_size=200), min_size=1, max_size=3), meta=META, job=st.text())
def test_stored_values_are_restored_unchanged(files: dict[str, bytes], meta: dict[str, object], job: str) -> None:
    with tempfile.TemporaryDirectory() as place_of_both:
        folder, spool_folder = Path(place_of_both) / "logs", Path(place_of_both) / "spool"
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        upload = read_upload(logs=[folder / name for name in files], meta=meta, job_key=job)
        place = spool.put(spool_folder, upload, URL)
        for file in folder.iterdir():
            file.unlink()  # the workspace of the job is removed
        (result,), strange = spool.waiting(spool_folder)
        assert (result.folder, result.url, result.upload.key, strange) == (place, URL, upload.key, [])
        assert dict(result.upload.meta) == meta
        assert [(item.field, item.name, item.sha256) for item in result.upload.files] == [
            (item.field, item.name, item.sha256) for item in upload.files
        ]
        assert [item.path.read_bytes() for item in result.upload.files] == list(files.values())


def test_the_same_upload_is_stored_once_and_another_one_separately(tmp_path: Path) -> None:
    spool_folder = tmp_path / "spool"
    upload = make_upload(tmp_path / "a")
    assert spool.put(spool_folder, upload, URL) == spool.put(spool_folder, upload, URL)
    spool.put(spool_folder, make_upload(tmp_path / "a", name="other"), URL)
    assert len(spool.waiting(spool_folder)[0]) == len(list(spool_folder.iterdir())) == 2


def test_others_cannot_read_it(tmp_path: Path) -> None:
    place = spool.put(tmp_path / "spool", make_upload(tmp_path / "a"), URL)
    assert stat.S_IMODE(place.stat().st_mode) == stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in place.iterdir()} == {0o600}


def test_a_spool_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(spool.SpoolError, match="not saved"):
        spool.put(tmp_path / "file" / "spool", make_upload(tmp_path / "a"), URL)


def test_kill_9_while_it_is_filled_leaves_nothing_half(tmp_path: Path) -> None:
    spool_folder = tmp_path / "spool"
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "train.log").write_bytes(os.urandom(4 << 20))
    program = (
        "from pathlib import Path; from app.client import spool; from app.client.upload import read_upload\n"
        "for n in range(10_000):\n"
        f"    upload = read_upload(logs=[Path({str(tmp_path / 'a' / 'train.log')!r})], meta={{'n': n}})\n"
        f"    spool.put(Path({str(spool_folder)!r}), upload, {URL!r}); print(n, flush=True)\n"
    )
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        uploads, strange = spool.waiting(spool_folder)
        assert strange == []
        for upload in uploads:
            again = read_upload(logs=[upload.upload.files[0].path], meta={})
            assert again.files[0].sha256 == upload.upload.files[0].sha256
    spool.sweep(spool_folder, now=time.time() + 2 * 24 * 3600)
    assert {item.name[0] for item in spool_folder.iterdir()}.isdisjoint({"."})


def test_uploads_claimed_by_another_sync_are_left_to_it(tmp_path: Path) -> None:
    spool_folder = tmp_path / "spool"
    spool.put(spool_folder, make_upload(tmp_path / "a"), URL)
    (waiting,), _ = spool.waiting(spool_folder)
    with (
        spool.lock(waiting) as locked,
        answering(run_answer(1)) as house,
        Service(ClientSettings(house.url)) as service,
    ):
        assert locked
        done = sync(service, spool_folder, everything=True, say=lambda _: None)
        assert (done.busy, done.sent, house.asked) == (1, [], [])
    spool.remove(waiting)
    with spool.lock(waiting) as locked:
        assert not locked


def test_only_what_is_for_this_service_is_sent_to_it(tmp_path: Path) -> None:
    spool_folder = tmp_path / "spool"
    spool.put(spool_folder, make_upload(tmp_path / "a"), URL)
    with answering(run_answer(7)) as house, Service(ClientSettings(house.url)) as service:
        done = sync(service, spool_folder, everything=False, say=lambda _: None)
        assert (done.elsewhere, house.asked) == ({URL: 1}, [])
        done = sync(service, spool_folder, everything=True, say=lambda _: None)
        assert [run.id for run in done.sent] == [7]
    assert list(spool_folder.iterdir()) == []


def test_what_waits_for_another_address_is_named_and_no_success(tmp_path: Path) -> None:
    spool_folder = tmp_path / "spool"
    for number in range(2):
        spool.put(spool_folder, make_upload(tmp_path / "a", name=str(number)), URL)
    with answering(run_answer(7)) as house:
        done = threewalls(house.url, tmp_path, "sync", "--spool", str(spool_folder), "--json")
        assert (done.code, done.document["elsewhere"], house.asked) == (3, {URL: 2}, [])
        assert f"2 uploads wait for {URL}" in done.err
        assert threewalls(house.url, tmp_path, "sync", "--spool", str(spool_folder), "--all").code == 0


def test_refused_uploads_stay_and_the_rest_is_sent(tmp_path: Path) -> None:
    spool_folder = tmp_path / "spool"
    for number in range(2):
        spool.put(spool_folder, make_upload(tmp_path / "a", name=str(number)), URL)
    refused = Answer(422, {"detail": "This is not a text log."})
    with answering(refused, run_answer(7)) as house, Service(ClientSettings(house.url)) as service:
        done = sync(service, spool_folder, everything=True, say=lambda _: None)
        keys = [headers["Idempotency-Key"] for _, _, headers, _ in house.asked]
    assert len(set(keys)) == 2
    assert "not a text log" in done.failed[0]
    assert [item.upload.key for item in spool.waiting(spool_folder)[0]] == keys[:1]


def test_the_token_is_not_in_the_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "tw_" + "x" * 43
    (tmp_path / "train.log").write_text("iteration 1\n")
    env = {**os.environ, "THREEWALLS_TOKEN": token, "THREEWALLS_URL": "http://127.0.0.1:1"}
    words = [sys.executable, "-m", "app.cli", "upload", str(tmp_path / "train.log"), "--retries", "0", "--json"]
    words += ["--spool", str(tmp_path / "spool")]
    done = subprocess.run(words, env=env, capture_output=True, timeout=300, check=False)
    assert done.returncode == 3
    assert Path(json.loads(done.stdout)["spooled"]).parent == tmp_path / "spool"
    everything = done.stdout + done.stderr
    for file in (tmp_path / "spool").rglob("*"):
        everything += file.read_bytes() if file.is_file() else b""
    assert token.encode() not in everything


def test_a_folder_that_is_not_an_upload_is_reported_and_kept(tmp_path: Path) -> None:
    spool_folder = tmp_path / "spool"
    (spool_folder / "mine").mkdir(parents=True)
    broken = spool.put(spool_folder, make_upload(tmp_path / "a"), URL)
    (broken / spool.MANIFEST).write_text('{"version": 99}')
    uploads, strange = spool.waiting(spool_folder)
    assert uploads == []
    assert len(strange) == 2


def test_where_it_is(tmp_path: Path) -> None:
    assert spool.spool_folder({}, "here") == Path("here")
    assert spool.spool_folder({"THREEWALLS_SPOOL": "/s", "XDG_CACHE_HOME": "/c"}) == Path("/s")
    assert spool.spool_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/threewalls/spool")
    assert spool.spool_folder({}).parts[-3:] == (".cache", "threewalls", "spool")


def test_nothing_to_upload_is_a_wrong_command_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_upload(logs=[tmp_path], meta={})


@pytest.mark.parametrize(
    ("status", "title"),
    [(503, "A service did not answer"), (503, "The service is overloaded"), (507, "The disk is full")],
)
def test_uploads_that_the_service_cannot_accept_wait_and_are_sent_later(
    tmp_path: Path, status: int, title: str
) -> None:
    problem = {"title": title, "status": status, "detail": "Try again later."}
    full = Answer(status, problem, {"Retry-After": "0", "Content-Type": "application/problem+json"})
    (tmp_path / "train.log").write_bytes(b"iteration 1\n")
    with answering(full) as house:
        uploaded = threewalls(house.url, tmp_path, "upload", str(tmp_path / "train.log"), "--retries", "1")
        assert uploaded.code == 3
        assert len(list(tmp_path.rglob("upload.json"))) == 1
        house.answers = [run_answer(7)]
        sent = threewalls(house.url, tmp_path, "sync")
    assert (sent.code, list(tmp_path.rglob("upload.json"))) == (0, [])


# --- kill -9 of a sync in the worst moment: the service has stored the upload, and its answer is on the way.


@contextmanager
def answers_withheld(service: str) -> Iterator[tuple[str, threading.Event]]:
    """A relay that forwards requests to the service but drops the answers; the event is set after the first one."""
    there = urlsplit(service)
    answered = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:

        def carry() -> None:
            client, _ = door.accept()
            with client, socket.create_connection((there.hostname, there.port)) as onward:
                reader = threading.Thread(target=lambda: onward.recv(1) and answered.set(), daemon=True)
                reader.start()
                while data := _received(client):
                    onward.sendall(data)
                onward.shutdown(socket.SHUT_RDWR)
                reader.join()

        carrier = threading.Thread(target=carry, daemon=True)
        carrier.start()
        yield f"http://127.0.0.1:{door.getsockname()[1]}", answered
        carrier.join(10)


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(64 * 1024)
    except ConnectionResetError:  # it was killed
        return b""


def test_it_is_neither_lost_nor_doubled(server: Running, tmp_path: Path) -> None:
    project, spool_folder = "client-killed", str(tmp_path / "spool")
    log = tmp_path / "train.log"
    log.write_bytes(training_log(step_time_ms=409))
    stated = ("upload", str(log), "--project", project, "--spool", spool_folder)
    assert threewalls(server.address, tmp_path, *stated, "--offline").code == 0
    with answers_withheld(server.address) as (address, answered):
        command = [sys.executable, "-m", "app.cli", "sync", "--all", "--spool", spool_folder]
        process = subprocess.Popen(command, env=job_environment(address, tmp_path), stderr=subprocess.DEVNULL)
        assert answered.wait(60)
        process.kill()
        process.wait()
    assert len(list((tmp_path / "spool").iterdir())) == 1
    done = threewalls(server.address, tmp_path, "sync", "--json", "--spool", spool_folder)
    assert (done.code, [item["created"] for item in done.document["sent"]]) == (0, [False]), done.err
    assert list((tmp_path / "spool").iterdir()) == []
    items = httpx2.get(f"{server.address}/api/v1/runs", params={"project": project}, timeout=300).json()["items"]
    assert len(items) == 1
    assert threewalls(server.address, tmp_path, *stated).out.endswith("(already uploaded)\n")


TOKEN = "tw_" + "s3cret" * 7
FINE = Answer(200, {"fine": True})


def get_runs(house: Answering, retries: int = 3, token: str = "") -> tuple[object, list[float], list[str]]:
    """Return the result, the pauses, and the messages."""
    slept: list[float] = []
    messages: list[str] = []
    settings = ClientSettings(house.url, token=token, retries=retries)
    with Service(settings, say=messages.append, sleep=slept.append) as service:
        try:
            return service.get("/api/v1/runs").json(), slept, messages
        except (Refused, Unreachable) as error:
            return error, slept, messages


@pytest.mark.parametrize("first", [Answer(503), Answer(500), Answer(502), Answer(0)], ids=lambda item: str(item.status))
def test_what_may_pass_is_tried_again(first: Answer) -> None:
    with answering(first, first, FINE) as house:
        result, slept, messages = get_runs(house)
    assert result == {"fine": True}
    assert len(slept) == len(messages) == 2
    assert 0.5 <= slept[0] <= 1 <= slept[1] <= 2


def test_retry_after_is_obeyed() -> None:
    with answering(Answer(429, headers={"Retry-After": "7"}), FINE) as house:
        result, slept, _ = get_runs(house)
    assert (result, slept) == ({"fine": True}, [7.0])


def test_a_service_that_requests_an_hour_counts_as_unreachable() -> None:
    with answering(Answer(503, headers={"Retry-After": "3600"})) as house:
        result, slept, _ = get_runs(house)
    assert isinstance(result, Unreachable)
    assert slept == []


def test_after_all_attempts_it_is_unreachable() -> None:
    with answering(Answer(503, {"detail": "The disk is full."})) as house:
        result, slept, _ = get_runs(house, retries=2)
        assert len(house.asked) == 3
    assert isinstance(result, Unreachable)
    assert "The disk is full." in result.detail
    assert len(slept) == 2


def test_a_refusal_is_reported_and_not_retried() -> None:
    body = {"detail": "No \x1b[31mred.", "errors": [{"field": "meta.gpus", "message": "a number"}], "offset": 5}
    with answering(Answer(409, body)) as house:
        result, slept, _ = get_runs(house)
    assert isinstance(result, Refused)
    assert (result.status, result.offset, slept) == (409, 5, [])
    assert "\x1b" not in result.detail
    assert result.errors[0].field == "meta.gpus"


def test_no_redirect_is_followed_with_the_token() -> None:
    with answering(FINE) as other, answering(Answer(302, headers={"Location": other.url})) as house:
        result, _, _ = get_runs(house, token=TOKEN)
        assert isinstance(result, Refused)
        assert other.asked == []


def test_the_token_is_sent_and_never_printed() -> None:
    with answering(Answer(401, {"detail": "The token is over."})) as house:
        result, _, messages = get_runs(house, token=TOKEN)
        assert house.asked[0][2]["Authorization"] == f"Bearer {TOKEN}"
    assert TOKEN not in f"{result!r} {result} {messages} {ClientSettings('http://x', token=TOKEN)!r}"


def test_pauses_grow_and_differ_between_jobs() -> None:
    longest = list(pauses(7, lambda: 1.0))
    assert longest == [1, 2, 4, 8, 16, 30, 30]
    assert list(pauses(3, lambda: 0.0)) == [0.5, 1, 2]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120", 120.0), ("Sat, 21 Nov 2026 04:00:30 GMT", 30.0), ("Sat, 21 Nov 2026 03:00:00 GMT", 0.0), ("soon", None)],
)
def test_retry_after_is_a_number_or_a_date(text: str, seconds: float | None) -> None:
    assert retry_after_seconds(text, datetime(2026, 11, 21, 4, 0, tzinfo=UTC)) == seconds


def test_options_win_over_variables() -> None:
    env = {"THREEWALLS_URL": "https://a.example.org/", "THREEWALLS_PROJECT": "moe", "THREEWALLS_TOKEN": f" {TOKEN}\n"}
    assert read_settings(env) == ClientSettings("https://a.example.org", "moe", TOKEN)
    assert read_settings(env, url="https://b.example.org", project="other").project == "other"


@pytest.mark.parametrize(
    "url", ["ftp://a", "a.example.org", "https://", "https://a:99999", "https://u:pw@a", "http://a?b"]
)
def test_an_invalid_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_settings({"THREEWALLS_URL": url})
    assert "pw" not in refused.value.detail.replace("password", "")


def test_a_token_with_a_line_break_inside_is_refused_without_showing_it() -> None:
    with pytest.raises(UsageError) as refused:
        read_settings({"THREEWALLS_TOKEN": f"{TOKEN}\nX-Other: 1"})
    assert TOKEN not in refused.value.detail
