"""deploy/helm by Helm's own library, against the schemas of Kubernetes; deploy/systemd by systemd-analyze."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

from app.settings import Settings
from tests.cases import every_case

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy/helm/threewalls"
UNITS = ROOT / "deploy/systemd"
VERSIONS = ("1.25", "1.34")
"""The oldest version that Chart.yaml accepts, and a recent one."""
NEEDED: dict[str, Any] = {"publicUrl": "https://threewalls.example.org"}
FULL: dict[str, Any] = NEEDED | {
    "artifactUrl": "s3://bucket/logs",
    "image": {"digest": "sha256:" + "5e" * 32},
    "imagePullSecrets": [{"name": "registry"}],
    "settings": {"THREEWALLS_SMTP_HOST": "mail.example.org", "THREEWALLS_SMTP_PORT": 25, "THREEWALLS_PERFETTO": True},
    "rules": {"ours.yaml": "rules: []\n"},
    "web": {"replicas": 1, "processes": 4},
    "ingress": {"enabled": True, "className": "nginx", "tlsSecret": "tls", "annotations": {"a": "b"}},
    "serviceAccount": {"name": "ours"},
    "nodeSelector": {"pool": "services"},
    "tolerations": [{"key": "services", "operator": "Exists"}],
}
SECRETS = {
    "web": {
        "database-url", "broker-url", "s3-access-key-id", "s3-secret-access-key", "oidc-client-secret", "metrics-token",
    },
    "worker": {"database-url", "broker-url", "s3-access-key-id", "s3-secret-access-key", "smtp-user", "smtp-password"},
    "beat": {"broker-url"},
    "migrate": {"database-url"},
}  # fmt: skip


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="demo", namespace="perf")
    texts = [text for name, text in files.items() if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def pods(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the pod specification of each component."""
    specs = [
        document["spec"]["template"]["spec"] for document in documents if document["kind"] in ("Deployment", "Job")
    ]
    return {spec["containers"][0]["name"]: spec for spec in specs}


@pytest.mark.parametrize("values", [NEEDED, FULL], ids=["needed", "full"])
def test_the_chart_passes_the_lint_and_renders_what_kubernetes_accepts(values: dict[str, Any]) -> None:
    report = helm_python.lint(str(CHART), values, strict=True)
    assert [message for message in report["messages"] if message["severity"] > 1] == []
    documents = render(values)
    for version in VERSIONS:
        with every_case() as case:
            for document in documents:
                with case(f"{document['kind']} {document['metadata']['name']}, Kubernetes {version}"):
                    kubernetes_validate.validate(document, version, strict=True)
    kinds = sorted(document["kind"] for document in documents)
    assert ("PersistentVolumeClaim" in kinds) == (values is NEEDED)
    assert ("Ingress" in kinds) == (values is FULL)


def test_each_container_is_confined_and_has_only_its_own_secrets() -> None:
    for values in (NEEDED, FULL):
        for name, spec in pods(render(values)).items():
            container = spec["containers"][0]
            assert spec["securityContext"]["runAsNonRoot"], name
            assert not spec["automountServiceAccountToken"], name
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }, name  # fmt: skip
            assert container["resources"]["limits"]["memory"], name
            keys = {entry["valueFrom"]["secretKeyRef"]["key"] for entry in container["env"] if "valueFrom" in entry}
            assert keys == SECRETS[name], name
            names = [entry["name"] for entry in container["env"]]
            assert len(names) == len(set(names)), name
            assert {variable.removeprefix("THREEWALLS_").lower() for variable in names} <= Settings.model_fields.keys()
            volumes = {volume["name"] for volume in spec["volumes"]}
            assert volumes == {mount["name"] for mount in container["volumeMounts"]}, name


def test_containers_run_the_commands_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    specs = pods(render(NEEDED))
    assert specs.keys() == {name for name, service in services.items() if service["image"].startswith("threewalls:")}
    for name, spec in specs.items():
        command = spec["containers"][0]["command"]
        assert command[: len(services[name]["command"])] == services[name]["command"], name


def test_the_chart_has_the_version_of_the_package_and_the_user_of_the_image() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user
    context = pods(render(NEEDED))["web"]["securityContext"]
    assert (str(context["runAsUser"]), str(context["fsGroup"])) == user.groups()


@pytest.mark.parametrize(
    "wrong",
    [
        {"publicUrl": "threewalls.example.org"},
        {"settings": {"THREEWALLS_SMTP_PASSWORD": "in plain text"}},
        {"image": {"digest": "5e"}},
        {"replicas": 3},
    ],
)
def test_wrong_values_are_refused_before_anything_is_installed(wrong: dict[str, Any]) -> None:
    with helm_python.Chart.load(str(CHART)) as chart, pytest.raises(helm_python.HelmError):
        chart.validate_schema(NEEDED | wrong)


def test_systemd_accepts_the_units_and_finds_them_confined(tmp_path: Path) -> None:
    units = tmp_path / "units"
    shutil.copytree(UNITS, units)
    programs = Path(sys.executable).parent
    names = []
    for file in units.glob("*.service"):
        text = file.read_text()
        program = re.search(r"^ExecStart=(/opt/threewalls/bin/\S+)", text, re.MULTILINE)
        assert program, file.name
        file.write_text(text.replace("/opt/threewalls/bin", str(programs)))
        if file.stem.endswith("@"):
            names.append(f"{file.stem}1.service")
            (units / names[-1]).symlink_to(file.name)
        else:
            names.append(file.name)
    assert len(names) == 4
    for name in names:
        checked = subprocess.run(
            ["systemd-analyze", "verify", f"./{name}"],
            cwd=units, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert (checked.returncode, checked.stderr) == (0, ""), name
        # Exposure from 0 (confined) to 100; a unit without any confinement has 96.
        subprocess.run(
            ["systemd-analyze", "security", "--offline=yes", "--threshold=20", f"./{name}"],
            cwd=units, capture_output=True, timeout=300, check=True,
        )  # fmt: skip
