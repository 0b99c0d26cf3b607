"""What to paste for either side of an experiment: the run's own command with and without the change, and its upload."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.contract.fields import FIELDS
from app.domain.experiments.values import SIDES, Commands, KnobChange, PlannedChange, Side
from app.domain.rules.change import Changing, FrameworkChange, change_of, without_context
from app.domain.rules.command import read_command
from app.domain.run import Stated, Value

LONGEST_META = 4000
"""Characters of metadata that a command line holds; longer ones go into a file."""
_NOT_STATED = ("dp", "edp", "ga")


def planned_change(
    changing: Changing,
    facts: Mapping[str, object],
    launch: object,
    arguments: Mapping[str, Value] | None = None,
    *,
    text: str = "",
    open_fields: tuple[str, ...] = (),
) -> PlannedChange:
    """`facts`: typed, as the rules know the run; `launch`: its own arguments, without credentials.
    `arguments`: the trainer's own dump of them, so that a flag that is no contract field is seen to change, too.
    """
    diff = change_of(changing, facts, launch, arguments)
    own = " \\\n  ".join(item.text for item in read_command(launch))
    frameworks = (("Megatron-LM", diff.megatron_lm), ("Megatron-Bridge", diff.bridge))
    return PlannedChange(
        text=text,
        commands=tuple(_commands(name, change, own) for name, change in frameworks if _changes(change)),
        environment=tuple(f"{line.sign} {line.text}" for line in diff.environment),
        export=diff.export,
        open=open_fields,
    )


def _changes(change: FrameworkChange) -> bool:
    return bool(without_context(change).lines)


def _commands(trainer: str, change: FrameworkChange, own: str) -> Commands:
    return Commands(
        trainer=trainer,
        add=change.paste,
        remove=change.remove,
        diff=tuple(f"{line.sign} {line.text}" for line in without_context(change).lines),
        baseline=own if change.command else "",
        candidate=change.command,
    )


def upload_meta(
    identity: Mapping[str, Any],
    contract: Mapping[str, Stated],
    candidate: Mapping[str, Stated],
    knobs: Sequence[KnobChange],
) -> dict[Side, dict[str, Any]]:
    """The metadata of an upload of either side: what the baseline run stated, and of the candidate what is turned.

    Only what a person stated: the log of each run shows the rest. A knob that no log showed is stated, too.
    """
    found: dict[Side, dict[str, Any]] = {}
    for side in SIDES:
        of_side = contract if side == "baseline" else candidate
        unseen = {one.field for one in knobs if not one.known} if side == "candidate" else set()
        stated = {name for name, one in contract.items() if one.source == "metadata"} | unseen
        found[side] = dict(identity) | {
            name: _plain(of_side[name].value)
            for name in FIELDS
            if name in stated and name in of_side and name not in _NOT_STATED
        }
    return found


def with_launch(meta: Mapping[Side, Mapping[str, Any]], change: PlannedChange) -> dict[Side, dict[str, Any]]:
    """With the whole command of either side, for runs whose logs do not show their arguments."""
    whole = next((one for one in change.commands if one.candidate), None)
    if whole is None:
        return {side: dict(stated) for side, stated in meta.items()}
    commands = {"baseline": whole.baseline, "candidate": whole.candidate}
    return {side: {**stated, "launch_args": commands[side].replace(" \\\n ", "")} for side, stated in meta.items()}


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def tagged(meta: Mapping[str, Any], tag: str, side: Side) -> dict[str, Any]:
    """With the tag of the experiment and the side: by these an upload joins, whatever its log shows."""
    return {**meta, "tags": [tag, side]}


def upload_command(meta: Mapping[str, Any], base_url: str) -> str:
    """The upload of one run of a side. Metadata that are too long for a command line stand in `meta.json`."""
    text = json.dumps(meta)
    part = f"meta={text}" if len(text) <= LONGEST_META else "meta=@meta.json"
    return f"curl --fail-with-body -F log=@train.log -F {shlex.quote(part)} {base_url}/api/v1/runs"
