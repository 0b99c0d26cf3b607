"""The recipe of a tuned run as flags and YAML, and scripts that launch a side of an experiment."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.domain.contract.fields import CONFIG_FIELDS, PREFIX, STACK_FIELDS
from app.domain.rules.flags import written
from app.domain.run import Stated

# --- The recipe of a run: every contract field that a trainer uses, as its flags and overrides.

_HARDWARE = ("gpu", "gpus", "gpus_per_node", "cluster", "container")


_INCOMPLETE = (
    "# The command of this run is unknown. Add what the contract does not contain: the model's shape, the data, the",
    "# schedule and the checkpoints.",
)


@dataclass(frozen=True, slots=True)
class LaunchRecipe:
    """`flags`: of Megatron-LM; `paths`: of Megatron-Bridge with their values as text; `environment`: variables that
    are set; `about`: what the recipe ran on. `command`: the run's own command, "" where it is unknown."""

    title: str
    about: Mapping[str, str]
    flags: tuple[str, ...]
    paths: Mapping[str, str]
    environment: Mapping[str, str]
    command: str = ""

    @property
    def _head(self) -> list[str]:
        lines = [f"# {self.title}", *(f"# {name}: {value}" for name, value in self.about.items())]
        return lines if self.command else [*lines, *_INCOMPLETE]

    @property
    def as_flags(self) -> str:
        """Return a shell fragment: variables, then the flags, one per line."""
        lines = self._head
        lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        lines += ["FLAGS=(", *(f"  {flag}" for flag in self.flags), ")"]
        if self.command:
            lines += ["# The whole command of the run:", *(f"# {line}" for line in self.command.splitlines())]
        return "\n".join(lines) + "\n"

    @property
    def as_yaml(self) -> str:
        """Return Megatron-Bridge's nested configuration; the variables are in its section `env_vars`."""
        lines = self._head
        sections: dict[str, list[str]] = {}
        for path, value in sorted(self.paths.items()):
            section, _, name = path.rpartition(".")
            sections.setdefault(section, []).append(f"{name}: {_yaml(value)}")
        if self.environment:
            sections["env_vars"] = [f"{name}: {_quoted(value)}" for name, value in sorted(self.environment.items())]
        for section, rows in sections.items():
            lines += [f"{section}:", *(f"  {row}" for row in rows)] if section else rows
        return "\n".join(lines) + "\n"


def recipe(title: str, contract: Mapping[str, Stated], command: str = "") -> LaunchRecipe:
    """Return the recipe of a run with this contract. Fields that are unknown or follow from others are left out."""
    values = {name: entry.value for name, entry in contract.items()}
    flags: list[str] = []
    paths: dict[str, str] = {}
    for name in dict.fromkeys((*CONFIG_FIELDS, *STACK_FIELDS)):
        if name not in contract or name.startswith(PREFIX) or name in _HARDWARE or not contract[name].in_use:
            continue
        spelling = written(name, values[name], values)
        flags += [shlex.join([flag, *words]) for flag, words in spelling.megatron_lm.flags.items()]
        paths |= {path: value for path, value in spelling.bridge.items() if value != "null"}
    environment = {
        name.removeprefix(PREFIX): str(value)
        for name, value in values.items()
        if name.startswith(PREFIX) and value is not None
    }
    about = {name: str(values[name]) for name in ("model", *_HARDWARE) if values.get(name) is not None}
    return LaunchRecipe(title, about, tuple(dict.fromkeys(flags)), paths, environment, command)


def _yaml(value: str) -> str:
    """Write an override as a YAML scalar or list; quote text that YAML would read as something else."""
    if value.startswith("[") and value.endswith("]"):
        return f"[{', '.join(_yaml(item) for item in value[1:-1].split(',') if item)}]"
    is_plain = value in ("true", "false") or value.replace(".", "", 1).lstrip("-").isdigit()
    return value if is_plain else _quoted(value)


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


# --- A script that launches a side of an experiment and uploads its log.


@dataclass(frozen=True, slots=True)
class SideLaunch:
    """`command`: the whole command; if it is unknown, "", and `hint` says what to change in the job."""

    tag: str
    side: str
    command: str
    hint: str
    exports: Sequence[str]
    upload: str
    nodes: int | None
    gpus_per_node: int | None


def launch_script(launch: SideLaunch, *, sbatch: bool) -> str:
    """Return a bash script; with `sbatch` one that Slurm takes. It stops where the command has to be filled in."""
    lines = ["#!/bin/bash"]
    if sbatch:
        lines += [f"#SBATCH --job-name={launch.tag}-{launch.side}"]
        lines += [f"#SBATCH --nodes={launch.nodes}"] if launch.nodes else []
        # torchrun starts the processes of a node itself.
        per_node = 1 if "torchrun" in launch.command or not launch.gpus_per_node else launch.gpus_per_node
        lines += [f"#SBATCH --ntasks-per-node={per_node}"]
        lines += [f"#SBATCH --gpus-per-node={launch.gpus_per_node}"] if launch.gpus_per_node else []
    lines += ["set -euo pipefail", "", *launch.exports]
    if launch.command:
        start = "srun " if sbatch else ""
        lines += [f"{start}{launch.command} 2>&1 | tee train.log"]
    else:
        lines += [f"# {line}" for line in launch.hint.splitlines()]
        lines += ['echo "Put the command of the job here, then remove these two lines." >&2', "exit 2"]
    lines += ["", launch.upload]
    return "\n".join(lines) + "\n"
