"""docker-compose.yml against the Compose specification, and against what this package really has."""

import importlib
import importlib.metadata
import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import check_jsonschema
import jsonschema
import pytest
import yaml

from app.cli import make_parser
from app.queue import PROCESS_RUN, SWEEP
from app.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = [name for name, service in SERVICES.items() if service["image"].startswith("threewalls:")]
SETTINGS = {f"THREEWALLS_{name.upper()}" for name in Settings.model_fields}


def documented_variables() -> dict[str, str]:
    """Name -> comment above it, of .env.example; a variable that is off stands as `#NAME=value`."""
    found: dict[str, str] = {}
    comment: list[str] = []
    for line in (ROOT / ".env.example").read_text().splitlines():
        if assignment := re.fullmatch(r"#?([A-Z][A-Z0-9_]*)=.*", line):
            found[assignment[1]] = " ".join(comment)
            comment = []
        elif line.startswith("# "):
            comment.append(line[2:])
        else:
            comment = []
    return found


def images() -> Iterator[str]:
    yield from (service["image"] for service in SERVICES.values())
    yield from re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_the_file_follows_the_compose_specification() -> None:
    package = Path(check_jsonschema.__file__).parent
    schema = json.loads((package / "builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)


@pytest.mark.parametrize("image", sorted(set(images())))
def test_every_image_is_pinned_to_a_full_version(image: str) -> None:
    assert re.fullmatch(r"[a-z/]+:\d+\.\d+(\.\d+)?(-[a-z-]+)?", image)


def test_our_image_has_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {SERVICES[name]["image"] for name in OURS} == {f"threewalls:{project['version']}"}


def test_web_and_workers_share_image_settings_and_data() -> None:
    assert set(OURS) == {"migrate", "web", "worker", "beat"}
    for key in ("image", "environment", "volumes"):
        assert len({json.dumps(SERVICES[name][key], sort_keys=True) for name in OURS}) == 1


def test_the_image_is_built_once() -> None:
    assert [name for name, service in SERVICES.items() if "build" in service] == ["migrate"]


def test_migrations_run_once_before_everything_else() -> None:
    for name in set(OURS) - {"migrate"}:
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["restart"] == "no"
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}


@pytest.mark.parametrize("service", ["web", "worker", "postgres", "redis"])
def test_services_that_can_be_asked_have_a_health_check(service: str) -> None:
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
