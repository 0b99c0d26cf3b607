"""Plays the files that this repository offers to CI systems: their shell lines run as the systems run them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / ".github/actions/threewalls/action.yml"
TEMPLATE = ROOT / "docs/ci/threewalls.gitlab-ci.yml"
ON_COMMENT = ROOT / "docs/ci/on-comment.yml"
EXPRESSION = re.compile(r"\$\{\{ *([\w.-]+) *\}\}")
SECONDS = 120


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Of a job whose image has `threewalls` already."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    return {"PATH": path, "HOME": str(folder), "LANG": "C.UTF-8", **more}


@dataclass
class Played:
    """`code` is that of the first step that failed; `outputs` by name of the step."""

    code: int = 0
    printed: str = ""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    summary: str = ""


def play_action(folder: Path, inputs: Mapping[str, str], **env: str) -> Played:
    """As a runner does: each step's script in a file, bash with `-e -o pipefail`, outputs through files."""
    action: dict[str, Any] = yaml.safe_load(ACTION.read_text())
    unknown = inputs.keys() - action["inputs"].keys()
    assert not unknown, unknown
    context = {f"inputs.{name}": str(item.get("default", "")) for name, item in action["inputs"].items()}
    context |= {f"inputs.{name}": text for name, text in inputs.items()}
    context |= {"github.action_path": str(ACTION.parent), "github.token": "no-token"}
    assert {step["shell"] for step in action["runs"]["steps"]} == {"bash"}
    return _play(folder, action["runs"]["steps"], context, env)


def play_on_comment(folder: Path, comment: str, inputs: Mapping[str, str], **env: str) -> Played:
    """Run the workflow in a checkout as made by `actions/checkout`. `inputs` replace those of its action."""
    (job,) = yaml.safe_load(ON_COMMENT.read_text())["jobs"].values()
    scripts = [step for step in job["steps"] if "run" in step]
    action = job["steps"][-1]
    context = {
        "github.token": inputs["github-token"], "github.event.issue.number": "12", "github.event.comment.body": comment,
        "secrets.THREEWALLS_TOKEN": "",
    }  # fmt: skip
    played = _play(folder, scripts, context, env)
    if played.code:
        return played
    stated = {name: _evaluated(text, context) for name, text in action["with"].items()}
    reported = play_action(folder, stated | inputs, **env)
    reported.printed = played.printed + reported.printed
    return reported


def _play(folder: Path, steps: Iterable[Mapping[str, Any]], context: dict[str, str], env: Mapping[str, str]) -> Played:
    """Run the scripts of steps, after a failure only those with `always()`. Their outputs join the context."""
    played, summary, on_path = Played(), folder / "summary.md", folder / "path"
    on_path.touch()
    for number, step in enumerate(steps):
        if not _runs(step.get("if", "success()"), context, failed=played.code != 0):
            continue
        assert "${{" not in step["run"], "what people wrote must not become a script"
        script, output = folder / f"step-{number}.sh", folder / f"output-{number}"
        script.write_text(step["run"])
        output.write_text("")
        stated = {name: _evaluated(str(text), context) for name, text in step.get("env", {}).items()}
        files = {
            "GITHUB_OUTPUT": str(output), "GITHUB_STEP_SUMMARY": str(summary), "GITHUB_PATH": str(on_path),
            "RUNNER_TEMP": str(folder),
        }  # fmt: skip
        job = environment(folder, GITHUB_ACTIONS="true", **files) | env | stated
        job["PATH"] = os.pathsep.join((*reversed(on_path.read_text().splitlines()), job["PATH"]))
        done = _run(["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)], folder, job)
        played.printed += done.stdout + done.stderr
        outputs = dict(line.split("=", 1) for line in output.read_text().splitlines())
        if name := step.get("id"):
            played.outputs[name] = outputs
            context |= {f"steps.{name}.outputs.{key}": text for key, text in outputs.items()}
        played.code = played.code or done.returncode
    played.summary = summary.read_text() if summary.exists() else ""
    return played


def _runs(condition: str, context: Mapping[str, str], *, failed: bool) -> bool:
    """Evaluate terms joined by `&&`: `always()`, `success()`, and names that must not be empty."""
    terms = condition.split(" && ")
    names = [term.removesuffix(" != ''") for term in terms if term not in ("always()", "success()")]
    return ("always()" in terms or not failed) and all(context.get(name) for name in names)


def _evaluated(text: str, context: Mapping[str, str]) -> str:
    """An output that no step has set is empty; any other unknown name is an error."""
    return EXPRESSION.sub(
        lambda item: context.get(item[1], "") if item[1].startswith("steps.") else context[item[1]], text
    )


def play_template(folder: Path, **env: str) -> Played:
    """Run the lines of the script as a GitLab runner does: in one shell that stops at the first failure."""
    job: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text())[".threewalls"]
    script = "set -eo pipefail\n" + "\n".join(job["script"]) + "\n"
    done = _run(["bash", "-c", script], folder, environment(folder, **{**job["variables"], **env}))
    return Played(done.returncode, done.stdout + done.stderr)


def _run(command: list[str], folder: Path, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=folder, env=dict(env), capture_output=True, text=True, timeout=SECONDS, check=False
    )
