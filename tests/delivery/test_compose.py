"""docker-compose.yml against the Compose specification and this package; pinned versions and the bill of materials."""

import importlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import pytest
import yaml

from app.cli import make_parser
from app.queue import PROCESS_RUN, SWEEP, make_celery
from app.settings import Settings
from tests.embedded.processes import wait_for
from tests.services.redis_server import free_port

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
SECRETS = {
    "DATABASE_URL": {"migrate", "web", "worker"},
    "BROKER_URL": {"web", "worker", "beat"},
    "S3_SECRET_ACCESS_KEY": {"web", "worker"},
    "OIDC_CLIENT_SECRET": {"web"},
    "METRICS_TOKEN": {"web"},
    "SMTP_PASSWORD": {"worker"},
}
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("threewalls:")]
SETTINGS = {f"THREEWALLS_{name.upper()}" for name in Settings.model_fields}


def documented_variables() -> dict[str, str]:
    """Return name -> comment above it, from .env.example; a disabled variable is written `#NAME=value`."""
    result: dict[str, str] = {}
    comment: list[str] = []
    for line in (ROOT / ".env.example").read_text().splitlines():
        if assignment := re.fullmatch(r"#?([A-Z][A-Z0-9_]*)=.*", line):
            result[assignment[1]] = " ".join(comment)
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:])
        else:
            comment = []
    return result


def test_the_file_follows_the_compose_specification() -> None:
    package = Path(check_jsonschema.__file__).parent
    schema = json.loads((package / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)


def test_no_container_can_write_outside_its_volumes_or_gain_a_privilege() -> None:
    for name, service in SERVICES.items():
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"]), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"], name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
        assert service["pids_limit"] > 0, name
        assert "user" in service or name in OURS, name  # ours is USER of the Dockerfile


def test_only_our_services_reach_the_stores_and_the_stores_reach_nothing() -> None:
    assert COMPOSE["networks"]["stores"] == {"internal": True}
    for name, service in SERVICES.items():
        assert service["networks"] == (["default", "stores"] if name in OURS else ["stores"]), name
        assert "ports" not in service or name == "web", name


def test_redis_answers_only_with_its_password_and_the_queue_has_it(tmp_path: Path) -> None:
    port = free_port()
    shell = [part.replace("$$", "$").replace(" /tmp", f" {tmp_path}") for part in SERVICES["redis"]["command"]]
    shell[-1] += f" --port {port} --bind 127.0.0.1"
    environment = {"PATH": os.environ["PATH"], "REDISCLI_AUTH": "secret"}
    assert SERVICES["redis"]["environment"]["REDISCLI_AUTH"] == "${REDIS_PASSWORD:?set it in .env}"
    address = SERVICES["web"]["environment"]["THREEWALLS_BROKER_URL"]
    broker_url = re.sub(r"\$\{REDIS_PASSWORD:\?[^}]*\}", "secret", address).replace("redis:6379", f"127.0.0.1:{port}")
    ask = ["redis-cli", "-p", str(port), *SERVICES["redis"]["healthcheck"]["test"][2:]]

    def ping(password: str) -> subprocess.CompletedProcess[str]:
        with_password = environment | {"REDISCLI_AUTH": password}
        return subprocess.run(ask, env=with_password, capture_output=True, text=True, timeout=300, check=False)

    with subprocess.Popen(shell, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(lambda: ping("secret").returncode == 0, "Redis")
            assert ping("").returncode == 1
            assert "secret" not in Path(f"/proc/{process.pid}/cmdline").read_text()
            with make_celery(Settings(broker_url=broker_url)).connection_for_read() as connection:
                connection.ensure_connection(max_retries=1, timeout=5)
        finally:
            process.kill()


def test_the_image_that_serves_has_nothing_to_build_or_install_with() -> None:
    build, serving = DOCKERFILE.rsplit("\nFROM ", 1)
    assert "pip uninstall --yes uv setuptools pip" in build
    assert "pip uninstall --yes --root-user-action=ignore wheel setuptools pip" in serving
    assert not re.search(r"\b(pip install|uv |apt-get|requirements)", serving)
    assert not re.search(r"^(pip|setuptools|uv|wheel)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)


def test_our_image_has_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {SERVICES[name]["image"] for name in OURS} == {f"threewalls:{project['version']}"}


def test_web_and_workers_share_image_and_data() -> None:
    assert set(OURS) == {"migrate", "web", "worker", "beat"}
    for key in ("image", "volumes"):
        assert len({json.dumps(SERVICES[name][key], sort_keys=True) for name in OURS}) == 1


def test_every_setting_reaches_the_service_and_secrets_only_the_containers_that_use_them() -> None:
    environments = {name: set(SERVICES[name]["environment"]) for name in OURS}
    assert not any("env_file" in service for service in SERVICES.values())
    assert environments["web"] | environments["worker"] | environments["beat"] == SETTINGS
    secrets = {f"THREEWALLS_{name.upper()}" for name, field in Settings.model_fields.items() if not field.repr}
    assert {f"THREEWALLS_{name}" for name in SECRETS} == secrets
    for name, containers in SECRETS.items():
        assert {c for c, names in environments.items() if f"THREEWALLS_{name}" in names} == containers, name


def test_the_programs_of_a_backup_run_with_the_libraries_that_the_image_copies(tmp_path: Path) -> None:
    """Runs the commands of the Dockerfile on the PostgreSQL of this machine."""
    stage = re.search(r"^FROM postgres:(\d+)\S* AS postgres\nRUN (.*?[^\\])\n", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert stage
    assert re.search(rf"^ +image: postgres:{stage[1]}\.", TEXT, re.MULTILINE)  # pg_dump must not be older
    installed = max(Path("/usr/lib/postgresql").iterdir(), key=lambda folder: int(folder.name))
    script = stage[2].replace(f"/usr/lib/postgresql/{stage[1]}", str(installed)).replace("/opt/", f"{tmp_path}/opt/")
    (tmp_path / "bin").mkdir()
    subprocess.run(
        ["sh", "-ec", script.replace("/usr/local/bin/", f"{tmp_path}/bin/").replace("\\\n", "")],
        check=True,
        timeout=300,
    )
    for program in ("pg_dump", "pg_restore"):
        command = [tmp_path / "bin" / program, "--version"]
        shown = subprocess.run(command, env={}, capture_output=True, text=True, timeout=300, check=True).stdout
        assert f"(PostgreSQL) {installed.name}." in shown
    libraries = {file.name.partition(".so")[0] for file in (tmp_path / "opt/postgresql/lib").iterdir()}
    assert "libpq" in libraries
    assert "libc" not in libraries


def test_the_image_is_built_once() -> None:
    assert [name for name, service in SERVICES.items() if "build" in service] == ["migrate"]


def test_migrations_run_once_before_everything_else() -> None:
    for name in set(OURS) - {"migrate"}:
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["restart"] == "no"
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


@pytest.mark.parametrize("service", ["web", "worker", "postgres", "redis"])
def test_services_with_an_endpoint_have_a_health_check(service: str) -> None:
    assert {"test", "interval", "timeout", "retries"} <= SERVICES[service]["healthcheck"].keys()


def test_every_variable_of_the_file_is_documented() -> None:
    used = set(re.findall(r"\$\{([A-Z_]+)", TEXT))
    assert used <= documented_variables().keys()


def test_every_setting_is_documented_with_its_meaning() -> None:
    documented = documented_variables()
    for name, field in Settings.model_fields.items():
        assert field.description in documented.get(f"THREEWALLS_{name.upper()}", ""), name


def test_every_variable_of_ours_is_a_setting() -> None:
    named = {name for name in documented_variables() if name.startswith("THREEWALLS_")}
    for service in OURS:
        named |= {name for name in SERVICES[service]["environment"] if name.startswith("THREEWALLS_")}
    assert named <= SETTINGS


@pytest.mark.parametrize("service", OURS)
def test_every_command_is_one_that_the_package_has(service: str) -> None:
    program, *arguments = SERVICES[service]["command"]
    scripts = {script.name for script in importlib.metadata.entry_points(group="console_scripts")}
    assert program in scripts
    if program == "threewalls":
        make_parser().parse_args(arguments)
    else:
        assert arguments[0] == "-A"
        application = importlib.import_module(arguments[1])
        assert arguments[2] in {"worker", "beat"}
        assert {PROCESS_RUN, SWEEP} <= application.app.tasks.keys()


def test_the_image_starts_a_command_that_the_package_has() -> None:
    commands = re.findall(r"^CMD (\[.*\])$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    program, *arguments = json.loads(commands[-1])
    assert program == "threewalls"
    make_parser().parse_args(arguments)


LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-build.lock")
DIGEST = "sha256:" + "5e" * 32


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that pin something, to be changed."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci", ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
    shutil.copytree(ROOT / "static/vega", tmp_path / "static/vega")
    for name in (*LOCKS, "pyproject.toml", "Dockerfile", "docker-compose.yml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def run(checkout: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, checkout / ".ci" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def replace(file: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, file.read_text(), flags=re.MULTILINE)
    assert count, pattern
    file.write_text(text)


def test_pinned_versions_have_no_known_vulnerability(checkout: Path) -> None:
    checked = run(checkout, "pinned_versions.py")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_pin_with_a_hole_is_named_with_its_advisory(checkout: Path) -> None:
    replace(checkout / "requirements.lock", "^starlette==.* ", "starlette==0.49.0 ")
    replace(checkout / "Dockerfile", r"python:3\.11\.\d+", "python:3.11.13")
    replace(checkout / "docker-compose.yml", r"redis:[\d.]+", "redis:8.0.1")
    replace(checkout / ".ci/minimum-versions.yml", "^  urllib3:", "  urllib-three:")
    checked = run(checkout, "pinned_versions.py")
    assert checked.returncode == 1
    lines = {line.split(" ")[0].rstrip(":"): line for line in checked.stdout.splitlines()}
    assert set(lines) == {"starlette", "python:3.11.13-slim-bookworm", "redis:8.0.1-bookworm", "urllib-three"}
    assert "CVE-2026-54283" in lines["starlette"]
    assert "CVE-2026-24515" in lines["python:3.11.13-slim-bookworm"]


def test_a_release_needs_the_digest_of_every_image_and_pinning_adds_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No registry is reached by tests: a program of this name answers as Docker's does.
    programs = checkout / "programs"
    programs.mkdir()
    (programs / "docker").write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo {DIGEST}\n')
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    pin = [checkout / ".ci/pin-images"]

    for name in ("Dockerfile", "docker-compose.yml"):  # as before the first time
        (checkout / name).write_text(re.sub(r"@sha256:\S+", "", (checkout / name).read_text()))
    assert run(checkout, "pinned_versions.py", "--release").returncode == 1
    assert subprocess.run([*pin, "--check"], timeout=300, check=False).returncode == 1
    subprocess.run(pin, timeout=300, check=True)
    pinned = [
        line for name in ("Dockerfile", "docker-compose.yml") for line in (checkout / name).read_text().splitlines()
    ]
    assert sum(DIGEST in line for line in pinned) == 4
    assert run(checkout, "pinned_versions.py", "--release").returncode == 0
    assert subprocess.run([*pin, "--check"], timeout=300, check=False).returncode == 0

    replace(checkout / "docker-compose.yml", "5e" * 32, "6f" * 32)  # the tag was rebuilt since
    assert subprocess.run([*pin, "--check"], timeout=300, check=False).returncode == 1
    subprocess.run(pin, timeout=300, check=True)
    assert "6f" * 32 not in (checkout / "docker-compose.yml").read_text()


def test_the_bill_of_materials_lists_what_the_image_installs_and_the_base_images(checkout: Path) -> None:
    document = json.loads(run(checkout, "sbom.py").stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    versions = {component["purl"] for component in document["components"]}
    assert len(versions) == len(document["components"])
    locked = re.findall(r"^([a-z0-9-]+)==([^ ;]+)( ;)?", (checkout / "requirements.lock").read_text(), re.MULTILINE)
    assert {f"pkg:pypi/{name}@{version}" for name, version, marker in locked if not marker} <= versions
    assert not {purl for purl in versions if purl.startswith(("pkg:pypi/django@", "pkg:pypi/colorama@"))}
    locked_scripts = json.loads((checkout / ".ci/vega/package-lock.json").read_text())["packages"]
    scripts = {purl for purl in versions if purl.startswith("pkg:npm/vega")}
    assert f"pkg:npm/vega-view@{locked_scripts['node_modules/vega-view']['version']}" in scripts
    kinds = {component["name"] for component in document["components"] if component["type"] == "container"}
    assert kinds == {"postgres", "python", "redis"}
    needed = {purl for entry in document["dependencies"] for purl in entry["dependsOn"]}
    assert {purl for purl in versions if purl.startswith("pkg:pypi/")} == needed
