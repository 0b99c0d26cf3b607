"""The installed package: the wheel outside any checkout, each extra with only its own dependencies, the entry point.

All packages come from this environment, so no package index is used. Not tested: that pip builds the wheel in
isolation.
"""

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from importlib.util import cache_from_source
from pathlib import Path

import httpx2
import pytest
from packaging.requirements import Requirement

from tests.embedded.processes import PLAIN_HTTP, Running, running
from tests.training_logs import training_log

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("app", "workers", "threewalls", "templates", "static", "migrations", "docs", "deploy")
_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "threewalls_entry.py")


def build_wheel(folder: Path) -> Path:
    """Build it from a copy in `folder`, so that it contains nothing from an earlier build."""
    source = folder / "source"
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        shutil.copy(ROOT / name, source)
    options = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", folder, source], check=True, timeout=300)
    return next(folder.glob("threewalls-*.whl"))


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def needed_by(requirements: Iterable[str], extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """Return the names of distributions and of their dependencies."""
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not any(
            requirement.marker.evaluate({"extra": extra}) for extra in (extras or {""})
        ):
            continue
        if requirement.name == "threewalls":
            yield from needed_by(text for extra in requirement.extras for text in EXTRAS[extra])
        elif requirement.name != "django":  # overrides.txt
            yield requirement.name
            needs = importlib.metadata.requires(requirement.name) or []
            yield from needed_by(needs, frozenset(requirement.extras))


def link_distribution(name: str, target: Path) -> None:
    """Link its files and their bytecode, because compiling a thousand modules again takes ten seconds."""
    for file in importlib.metadata.files(name) or ():
        source = Path(str(file.locate()))
        if ".." in file.parts or not source.is_file():
            continue
        link(target / file, source)
        if source.suffix == ".py" and (compiled := Path(cache_from_source(source))).exists():
            link(target / file.parent / "__pycache__" / compiled.name, compiled)


def link(path: Path, source: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(source)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the environment."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=300)
    python = folder / "venv/bin/python"
    install = ["install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", wheel]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, timeout=300)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    for name in set(needed_by([*PROJECT["dependencies"], *EXTRAS["server"]])):
        link_distribution(name, site)
    return folder / "venv"


@pytest.fixture
def command(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The installed command, in an empty folder and home."""
    for name in [name for name in os.environ if name.startswith(("THREEWALLS_", "PYTHONPATH", "XDG_DATA"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = str(installed / "bin/threewalls")
    monkeypatch.setattr("tests.embedded.processes.COMMAND", [path])
    return path


@pytest.mark.server
def test_what_the_service_reads_is_in_it(command: str, installed: Path) -> None:
    (site,) = (installed / "lib").glob("python*/site-packages")
    folders = {name: site / "app/_resources" / name for name in ("templates", "static", "migrations", "docs")}
    missing = [
        str(file.relative_to(ROOT))
        for name, folder in folders.items()
        for file in (ROOT / name).rglob("*.md" if name == "docs" else "*.*")
        if "__pycache__" not in file.parts and not (folder / file.relative_to(ROOT / name)).exists()
    ]
    files = [path for path in (ROOT / "app").rglob("*.*") if path.suffix in (".yaml", ".toml", ".gz")]
    data = [file for file in files if not (site / file.relative_to(ROOT)).exists()]
    assert (missing, data) == ([], [])


@pytest.fixture
def training_repository(tmp_path: Path) -> Path:
    """A checkout with packages named like ours and like our dependencies; importing any of them fails."""
    for name in ("app", "workers", "httpx2", "celery", "sqlalchemy"):
        (tmp_path / "repository" / name).mkdir(parents=True)
        (tmp_path / "repository" / name / "__init__.py").write_text(f"raise RuntimeError('the {name} of the job')\n")
    return tmp_path / "repository"


@pytest.mark.server
def test_migrate_and_serve_run_next_to_the_packages_of_a_job(
    command: str, tmp_path: Path, training_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(training_repository))  # the worker does not import them either
    monkeypatch.chdir(training_repository)
    subprocess.run([command, "migrate"], check=True, timeout=300)
    data = tmp_path / ".local/share/threewalls/data"
    assert (data / "threewalls.db").exists(), "data do not lie among the packages"
    with running("serve", data) as house:
        files = {"log": ("train.log", training_log())}
        run = httpx2.post(f"{house.address}/api/v1/runs", files=files, timeout=300, verify=PLAIN_HTTP).json()["id"]
        report = httpx2.get(f"{house.address}/api/v1/runs/{run}/report?wait=120", timeout=300, verify=PLAIN_HTTP).json()
        assert report["status"] == "judged", house.output
        codes = {
            path: httpx2.get(house.address + path, timeout=300, verify=PLAIN_HTTP).status_code
            for path in ("/", f"/runs/{run}", "/plan")
        }
    assert set(codes.values()) == {200}, codes


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that contains only the client and its dependencies."""
    folder = tmp_path_factory.mktemp("alone")
    target = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    for name in set(needed_by(PROJECT["dependencies"])):
        link_distribution(name, target)
    return target


@pytest.fixture(scope="module")
def analysing(alone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the extra `analyze`."""
    target = tmp_path_factory.mktemp("analysing") / "site"
    shutil.copytree(alone, target, symlinks=True)
    for name in set(needed_by(EXTRAS["analyze"])):
        link_distribution(name, target)
    return target


def run(alone: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """-S and -I: only Python's standard library and that folder can be imported, nothing from this environment."""
    program = f"import sys; sys.path.insert(0, {str(alone)!r}); from app.cli import main; sys.exit(main())"
    plain = {"PATH": os.environ["PATH"], "HOME": str(alone.parent)}
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *words],
        env=plain | env, capture_output=True, text=True, timeout=300, check=False, cwd=alone.parent,
    )  # fmt: skip


@pytest.mark.server
def test_analyze_and_compare_need_no_package_of_the_service(analysing: Path, tmp_path: Path) -> None:
    for name in ("main", "change"):
        (tmp_path / f"{name}.log").write_bytes(training_log())
    main, change = str(tmp_path / "main.log"), str(tmp_path / "change.log")
    assert not [path for path in analysing.iterdir() if path.name in ("fastapi", "sqlalchemy", "celery", "redis")]
    for words, code in (
        (["analyze", main, "--json"], 0),
        (["compare", "--baseline", main, "--json", "--", change], 5),
        (["serve"], 70),
    ):
        done = run(analysing, *words)
        assert done.returncode == code, done.stderr
        assert not done.stdout or json.loads(done.stdout)["schema"].startswith("threewalls.")


@pytest.mark.server
def test_it_is_small(alone: Path) -> None:
    names = {path.name.partition("-")[0] for path in alone.glob("*.dist-info")}
    assert names == {"threewalls", "zstandard"}


@pytest.mark.server
def test_it_uploads_and_returns_the_verdict(alone: Path, server: Running, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_bytes(training_log(step_time_ms=407))
    words = ("upload", str(log), "--project", "client-alone", "--set", "gpu=H100", "--wait", "--json")
    done = run(alone, *words, THREEWALLS_URL=server.address)
    assert done.returncode == 4, done.stderr
    assert json.loads(done.stdout)["report"]["verdict"]["verdict"] == "no_baseline"
    assert run(alone, "doctor", str(log), THREEWALLS_URL=server.address).returncode == 0


@pytest.mark.server
@pytest.mark.parametrize(
    ("command", "extra"), [("serve", "server"), ("analyze train.log", "analyze"), ("migrate", "server")]
)
def test_what_needs_more_packages_says_which_extra(alone: Path, command: str, extra: str) -> None:
    done = run(alone, *command.split())
    assert done.returncode == 70
    assert f"pip install 'path/to/threewalls[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.server
def test_help_names_every_command(alone: Path) -> None:
    output = run(alone, "--help").stdout
    assert {"upload", "sync", "report", "runs", "token", "doctor", "serve"} <= set(
        re.findall(r"^    (\S+)", output, re.M)
    )


def curl_job(folder: Path, address: str) -> tuple[str, dict[str, str]]:
    """The documented script, and the environment of a job in a checkout of the branch `work`."""
    text = (ROOT / "docs/ci.md").read_text()
    script = re.search(r"## Without the client\n.*?```sh\n(.*?)```", text, re.DOTALL)
    assert script is not None
    (folder / "train.log").write_bytes(training_log(step_time_ms=408))
    subprocess.run(["git", "init", "-q", "-b", "work", folder], check=True, timeout=300)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, "commit", "-qm", "x", "--allow-empty"], cwd=folder, check=True, timeout=300)
    env = {
        "PATH": os.environ["PATH"], "HOME": str(folder), "THREEWALLS_URL": address,
        "THREEWALLS_TOKEN": "tw_none", "THREEWALLS_PROJECT": "client-curl", "JOB_ID": "17",
    }  # fmt: skip
    return script[1], env


def in_shell(shell: list[str], script: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*shell, script], env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.server
def test_the_documented_curl_line_does_the_same_upload(server: Running, tmp_path: Path) -> None:
    script, env = curl_job(tmp_path, server.address)
    for shell in (["bash", "-euc"], ["sh", "-c"]):
        done = in_shell(shell, script, env, tmp_path)
        assert done.returncode == 4, done.stdout + done.stderr
    # Like the checkout of a CI system: a commit without a branch.
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=tmp_path, check=True, timeout=300)
    done = in_shell(["bash", "-euc"], script, env, tmp_path)
    assert (done.returncode, "BRANCH" in done.stderr) == (3, True), done.stderr
    done = in_shell(["bash", "-euc"], script, env | {"BRANCH": "work"}, tmp_path)
    assert done.returncode == 4, done.stdout + done.stderr
    params = {"project": "client-curl"}
    (run_made,) = httpx2.get(f"{server.address}/api/v1/runs", params=params, timeout=300).json()["items"]
    assert (run_made["branch"], run_made["purpose"]) == ("work", "ci")


@pytest.mark.server
@pytest.mark.parametrize("shell", [["bash", "-euc"], ["sh", "-c"]], ids=lambda shell: str(shell[0]))
def test_the_documented_curl_line_ends_immediately_when_refused(
    server: Running, tmp_path: Path, shell: list[str]
) -> None:
    script, env = curl_job(tmp_path, server.address)
    (tmp_path / "train.log").write_bytes(b"")
    done = in_shell(shell, script, env | {"JOB_ID": "18"}, tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Nothing was saved" in done.stderr
    assert "retr" not in done.stderr


COMMAND = Path(sys.executable).with_name("threewalls")


def test_packages_of_the_job_do_not_take_the_place_of_ours(training_repository: Path) -> None:
    (training_repository / "train.log").write_bytes(training_log())
    codes = {}
    for command in ([str(COMMAND)], [sys.executable, "-m", "threewalls_entry"]):
        for words, wanted in (
            (["--version"], 0),
            (["analyze", "train.log"], 0),
            (["runs", "--url=http://127.0.0.1:1"], 3),
        ):
            done = subprocess.run(
                [*command, *words, *(["--retries=0"] if wanted else [])], cwd=training_repository,
                env=os.environ | {"PYTHONPATH": str(training_repository)}, capture_output=True, text=True, timeout=300,
                check=False,
            )  # fmt: skip
            codes[command[-1], words[0]] = (done.returncode, wanted, done.stderr)
    assert {name: item for name, item in codes.items() if item[0] != item[1]} == {}


def test_a_broken_installation_is_70_and_never_a_regression(tmp_path: Path) -> None:
    (tmp_path / "threewalls_entry.py").write_text(Path(__file__).parents[2].joinpath("threewalls_entry.py").read_text())
    done = subprocess.run(
        [sys.executable, "-I", "-S", tmp_path / "threewalls_entry.py", "runs"], capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, len(done.stderr.splitlines())) == (70, 1), done.stderr
