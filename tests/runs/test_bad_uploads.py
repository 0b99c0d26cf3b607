"""Uploads that cannot become a run are refused with the reason, and leave no trace."""

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Iterator

import pytest
import zstandard
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.main import create_app
from app.settings import Settings
from tests.conftest import OPEN_TO
from tests.runs.uploading import LOG, assert_problem, traces, upload


def zip_of(content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as members:
        members.writestr("train.log", content)
    return archive.getvalue()


def tar_of(content: bytes) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as members:
        member = tarfile.TarInfo("train.log")
        member.size = len(content)
        members.addfile(member, io.BytesIO(content))
    return archive.getvalue()


def bomb() -> bytes:
    """200 MB of one short line, in 200 kB."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9) as stream:
        for _ in range(200):
            stream.write(b"A\n" * 500_000)
    return packed.getvalue()


PACKED = gzip.compress(LOG)
FROZEN = zstandard.compress(LOG * 50)


@pytest.fixture(autouse=True)
def no_trace(engine: Engine, settings: Settings) -> Iterator[None]:
    yield
    assert traces(engine, settings) == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b" \n\n \t\n", "contains no text"),
        (gzip.compress(b""), "is empty"),
        (os.urandom(100_000), "is binary data"),
        (b"\0" * 10_000, "contains no text"),
        (zip_of(LOG), "is a zip archive"),
        (tar_of(LOG), "is a tar archive"),
        (gzip.compress(tar_of(LOG)), "is a tar archive"),
        (b"\x7fELF\x02\x01\x01" + bytes(100), "is an ELF program"),
        (b"%PDF-1.7\n" + LOG, "is a PDF document"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is a PNG image"),
        (gzip.compress(PACKED), "is compressed twice"),
        (LOG.decode().encode("utf-16"), "is UTF-16 text"),
        (PACKED[:20], "ends before any text could be read"),
        (b"\x1f\x8bno gzip at all", "damaged after 0 bytes"),
        (PACKED[:500] + b"\xff" * 8 + PACKED[508:], "damaged"),
        (PACKED + b"and more", "damaged"),
        (zstandard.compress(LOG)[:40], "ends before any text could be read"),
        (FROZEN + b"and more", "damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_is_not_a_log_is_rejected_with_its_reason(client: TestClient, content: bytes, words: str) -> None:
    assert_problem(upload(client, content, name="train.log.gz"), 422, "train.log.gz", words, "Nothing was saved")


def test_a_gzip_bomb_is_refused(client: TestClient) -> None:
    assert_problem(upload(client, bomb()), 413, "200 times its size")


def test_a_zstd_bomb_is_refused(client: TestClient) -> None:
    assert_problem(upload(client, zstandard.compress(b"A\n" * 100_000_000)), 413, "200 times its size")


def test_a_log_that_is_too_large_when_decompressed_is_refused(settings: Settings) -> None:
    small = TestClient(create_app(settings.model_copy(update={"max_log_bytes": 5000}), open_to=OPEN_TO))
    assert_problem(upload(small, PACKED), 413, "5,000 bytes", "when decompressed")


def test_a_bad_second_log_takes_the_first_along(client: TestClient) -> None:
    assert_problem(upload(client, LOG, b""), 422, "is empty")


def test_bad_metadata_keep_no_log(client: TestClient) -> None:
    assert_problem(upload(client, LOG, meta={"gpus": -8}), 422, field="meta.gpus")


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ("{gpus: 8}", "is not JSON"),
        ("[1, 2]", "not an object"),
        ('"text"', "not an object"),
        ('{"mfu": NaN}', "NaN is not a JSON number"),
        ('{"mfu": 1e999}', "too large a number"),
        ('{"name": "a\\u0000b"}', "is not text"),
        ('{"name": "\\ud800"}', "is not text"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 50 + "1" + "}" * 50, "nested more than"),
        ('{"a": ' + "9" * 5000 + "}", "an integer has too many digits"),
    ],
)
def test_invalid_metadata_are_rejected(client: TestClient, meta: str, words: str) -> None:
    assert_problem(upload(client, LOG, meta=meta), 422, words)


def test_metadata_that_are_too_large_are_refused(client: TestClient) -> None:
    answer = upload(client, LOG, meta={"notes": "x" * 300_000})
    assert_problem(answer, 422, "262,144 bytes", "Nothing was saved", "Shorten", field="meta")


def test_metadata_as_a_file_have_the_same_limit(client: TestClient) -> None:
    files = [("log", ("a.log", LOG)), ("meta", ("meta.json", json.dumps({"notes": "x" * 300_000}).encode()))]
    assert_problem(client.post("/api/v1/runs", files=files), 422, "262,144 bytes", "Shorten", field="meta")


def test_the_error_of_an_upload_without_a_log_names_the_sent_parts(client: TestClient) -> None:
    answer = client.post("/api/v1/runs", files=[("logs", ("train.log", LOG))])
    assert_problem(answer, 422, "contains no log", "`logs`", "Parts are `log`", field="logs")


@pytest.mark.parametrize("name", ["metadata", "foo", "files[]", "Log", ""])
def test_an_unknown_part_is_refused_by_name(client: TestClient, name: str) -> None:
    for content in ((None, "{}"), ("a.json", b"{}")):
        answer = client.post("/api/v1/runs", files=[("log", ("a.log", LOG)), (name, content)])
        assert_problem(answer, 422, f"`{name}`", "`log`, `config`, `events`, `meta`", "Nothing was saved", field=name)


def test_metadata_are_sent_once(client: TestClient) -> None:
    meta = [("meta", (None, "{}")), ("meta", ("meta.json", b"{}"))]
    answer = client.post("/api/v1/runs", files=[("log", ("a.log", LOG)), *meta])
    assert_problem(answer, 422, "2 times", "one JSON object", field="meta")


@pytest.mark.parametrize(
    ("content_type", "body", "words", "field"),
    [
        ("multipart/form-data", b"--b\r\n", "without a boundary", "Content-Type"),
        ("multipart/form-data; boundary=b", b"no form at all", "not a complete multipart form", "body"),
        ("multipart/form-data; boundary=other", b"--b\r\nContent-Disposition: form-data\r\n", "boundary", "body"),
        ("multipart/form-data; boundary=b", b"--b\r\nContent-Disposition: form-data\r\n\r\nx", "truncated", "body"),
    ],
)
def test_a_broken_form_is_explained(client: TestClient, content_type: str, body: bytes, words: str, field: str) -> None:
    for address in ("/api/v1/runs", "/upload"):
        answer = client.post(address, content=body, headers={"Content-Type": content_type})
        assert_problem(answer, 400, words, "Nothing was saved", "HTTP client", field=field)


def test_an_unreadable_document_does_not_become_a_run(client: TestClient) -> None:
    answer = client.post("/api/v1/runs", files=[("config", ("notes.yaml", b"colour: green\n"))])
    assert_problem(answer, 422, "notes.yaml is not a readable document")


def test_a_log_sent_as_text_is_explained(client: TestClient) -> None:
    answer = client.post("/api/v1/runs", files=[("log", (None, "some text"))])
    assert_problem(answer, 422, "not a file", "-F log=@FILE")


def test_an_invalid_form_is_refused(client: TestClient) -> None:
    assert_problem(client.post("/api/v1/runs", json={"log": "text"}), 415, "multipart/form-data")


def test_too_many_files_are_refused(client: TestClient) -> None:
    assert_problem(upload(client, *[LOG] * 65), 400, "Too many files")


@pytest.mark.parametrize("key", ["", "k" * 256, "t\tab"])
def test_a_key_that_is_not_a_key_is_rejected(client: TestClient, key: str) -> None:
    assert_problem(upload(client, LOG, key=key), 422, "Idempotency-Key")


def test_a_negative_wait_is_refused(client: TestClient) -> None:
    assert_problem(upload(client, LOG, wait=-1), 422, field="wait")
