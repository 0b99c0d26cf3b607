"""deploy/proxy: the real nginx and Caddy, with TLS, in front of the real service."""

import gzip
import http.client
import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import Message
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.settings import Settings
from app.storage import users
from app.storage.database import make_engine, transaction
from tests.client.commands import threewalls
from tests.embedded.processes import Running, running, wait_for
from tests.services.redis_server import free_port
from tests.services.scaled import new_token
from tests.training_logs import training_log

EXAMPLES = Path(__file__).resolve().parents[2] / "deploy/proxy"
NAME = "localhost"
CLIENT = "127.0.0.7"
"""The address that the test connects from; the proxies connect to the service from 127.0.0.1."""
PASSWORD = "a password of hers"
LIMIT = 4 * 1024**2
pytestmark = pytest.mark.server


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes


@dataclass(frozen=True)
class Proxy:
    port: int
    plain_port: int
    certificate: Path

    def ask(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        context = ssl.create_default_context(cafile=str(self.certificate))
        secure = http.client.HTTPSConnection(NAME, self.port, context=context, source_address=(CLIENT, 0), timeout=300)
        return ask(secure, method, path, body, headers or {})


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> Answer:
    with closing(connection):
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return Answer(response.status, response.headers, response.read())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("certificate")
    files = folder / "threewalls.crt", folder / "threewalls.key"
    files[0].write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    no_password = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password))
    return files


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_file: Path) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("proxied") / "data"
    data.mkdir()
    shutil.copy(migrated_file, data)
    engine = make_engine(Settings(data_dir=data))
    with transaction(engine) as session:
        users.create_user(session, "ada", by="test", password=PASSWORD, administrator=True)
    engine.dispose()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("THREEWALLS_TRUSTED_PROXIES", "127.0.0.1")
        patched.setenv("THREEWALLS_PASSWORD_MEMORY_MIB", "1")
        with running("serve", data) as house:
            yield house


@contextmanager
def started(command: list[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            wait_for(lambda: answers(port) or process.poll() is not None, "the proxy")
            assert process.poll() is None, log.read_text()
            yield
        finally:
            process.terminate()


def answers(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, service: Running,
    certificate: tuple[Path, Path],
) -> Iterator[Proxy]:  # fmt: skip
    """Start the example with other ports, name, certificate and a limit of 4 MiB."""
    folder = tmp_path_factory.mktemp(request.param)
    port, plain_port = free_port(), free_port()
    upstream = service.address.removeprefix("http://")
    if request.param == "nginx":
        site = (EXAMPLES / "nginx.conf").read_text()
        changes = [
            (r"listen 443 ", f"listen 127.0.0.1:{port} "), (r"listen 80;", f"listen 127.0.0.1:{plain_port};"),
            (r"\n *listen \[::\].*", ""), (r"threewalls\.example\.org", NAME), (r"127\.0\.0\.1:8000", upstream),
            (r"/etc/ssl/threewalls\.crt", str(certificate[0])), (r"/etc/ssl/threewalls\.key", str(certificate[1])),
            (r"client_max_body_size 2g", f"client_max_body_size {LIMIT}"),
        ]  # fmt: skip
        temporary = " ".join(
            f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        head = f"pid {folder}/pid; error_log stderr; daemon off; events {{}}"
        text = f"{head}\nhttp {{ access_log off; {temporary}\n{changed(site, changes)}\n}}\n"
        file = folder / "nginx.conf"
        command = ["nginx", "-p", str(folder), "-c", str(file)]
    else:
        changes = [
            (r"\{\n\tservers", f"{{\n\tadmin off\n\thttp_port {plain_port}\n\thttps_port {port}\n\tservers"),
            (r"threewalls\.example\.org \{", f"{NAME} {{\n\ttls {certificate[0]} {certificate[1]}"),
            (r"127\.0\.0\.1:8000", upstream), (r"> 2147483648`", f"> {LIMIT}`"),
        ]  # fmt: skip
        text = changed((EXAMPLES / "Caddyfile").read_text(), changes)
        file = folder / "Caddyfile"
        command = ["caddy", "run", "--config", str(file), "--adapter", "caddyfile"]
    file.write_text(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOME", str(folder))
        with started(command, port, folder / "output.txt"):
            yield Proxy(port, plain_port, certificate[0])


def changed(text: str, changes: list[tuple[str, str]]) -> str:
    for pattern, new in changes:
        text, count = re.subn(pattern, new, text)
        assert count, pattern
    return text


def test_the_service_sees_the_address_of_the_client_and_https(proxy: Proxy) -> None:
    form = f"name=ada&password={PASSWORD.replace(' ', '+')}".encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": f"https://{NAME}:{proxy.port}"}
    forged = {"X-Forwarded-For": "203.0.113.66", "X-Forwarded-Proto": "http"}
    answer = proxy.ask("POST", "/login", form, headers | forged)
    assert answer.status == 303, answer.body
    cookie = answer.headers["Set-Cookie"]
    assert "secure" in cookie.lower()
    answer = proxy.ask("GET", "/api/v1/account/sessions", headers={"Cookie": cookie.partition(";")[0]})
    sessions = json.loads(answer.body)
    assert CLIENT in {session["address"] for session in sessions["items"]}


def test_pages_are_compressed_once_and_plain_http_is_redirected(proxy: Proxy) -> None:
    answer = proxy.ask("GET", "/login", headers={"Accept-Encoding": "gzip"})
    assert (answer.status, answer.headers["Content-Encoding"]) == (200, "gzip")
    assert b"<form" in gzip.decompress(answer.body)
    plain = http.client.HTTPConnection("127.0.0.1", proxy.plain_port, timeout=300)
    redirect = ask(plain, "GET", "/runs?page=2", b"", {"Host": NAME})
    assert redirect.status == 308
    assert redirect.headers["Location"].endswith("/runs?page=2")


def test_a_body_passes_as_it_comes_up_to_the_limit(proxy: Proxy, upload_token: str) -> None:
    boundary = "b0undary"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="log"; filename="a.log"\r\n\r\n'.encode()
    end = f"\r\n--{boundary}--\r\n".encode()
    headers = {"Authorization": f"Bearer {upload_token}", "Content-Type": f"multipart/form-data; boundary={boundary}"}
    log = training_log(iterations=40)
    size = LIMIT - 4096
    padding = f"{proxy.port} ".encode().ljust(size - len(log) - len(head) - len(end) - 1, b"x") + b"\n"
    answer = proxy.ask("POST", "/api/v1/runs", head + padding + log + end, headers)
    assert answer.status == 202, answer.body
    # Refused by its head, before any of the body is sent.
    answer = proxy.ask("POST", "/api/v1/runs", b"", headers | {"Content-Length": str(LIMIT + 1)})
    assert answer.status == 413, answer.body


def test_the_client_follows_a_growing_log_and_waits_for_its_verdict(
    proxy: Proxy, upload_token: str, tmp_path: Path
) -> None:
    log = tmp_path / "train.log"
    lines = (f"{proxy.port}\n".encode() + training_log(iterations=50)).splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:30]))
    results = []
    url, env = (
        f"https://{NAME}:{proxy.port}",
        {"SSL_CERT_FILE": str(proxy.certificate), "THREEWALLS_TOKEN": upload_token},
    )
    words = ("upload", str(log), "--follow", "--interval", "0.05", "--no-ci", "--until-text", "job ended", "--wait")
    client = threading.Thread(target=lambda: results.append(threewalls(url, tmp_path, *words, "--json", **env)))
    client.start()

    def read(path: str) -> Any:
        return json.loads(proxy.ask("GET", path, headers={"Authorization": f"Bearer {upload_token}"}).body)

    def receiving() -> bool:
        runs = read("/api/v1/runs?page_size=1")["items"]
        return bool(runs) and read(f"/api/v1/runs/{runs[0]['id']}")["receiving"]

    wait_for(receiving, "the first part of the log")
    with log.open("ab") as file:
        file.write(b"".join(lines[30:]) + b"job ended\n")
    client.join(300)
    assert results[0].code == 4, results[0].err  # no baseline
    assert results[0].document["report"]["status"] == "judged"


@pytest.fixture(scope="module")
def upload_token(service: Running) -> str:
    return new_token(Settings(data_dir=service.data), "moe")
