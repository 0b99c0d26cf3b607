"""What to paste for each side of an experiment: the command of the job, and the upload of its log with the tag."""

import json
from dataclasses import dataclass

from app.domain.experiments.commands import LONGEST_META, tagged, upload_command
from app.domain.experiments.values import Commands, Side
from app.experiments.words import LETTERS
from app.storage.experiments import Experiment


@dataclass(frozen=True, slots=True)
class Launch:
    """For one trainer: `command` is whole, "" where the run's own is not known; then `add` and `remove` say it."""

    trainer: str
    command: str
    add: str
    remove: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SideCommands:
    """`meta`: the metadata of the upload where it is too long for the command line, else empty."""

    side: Side
    letter: str
    launches: tuple[Launch, ...]
    export: str
    upload: str
    meta: str


def side_commands(experiment: Experiment, side: Side, base_url: str) -> SideCommands:
    change = experiment.plan.change
    # Where the run's own command is known, the flags of another trainer are of no use.
    own = [one for one in change.commands if one.candidate or one.baseline]
    launches = own or (change.commands if side == "candidate" else ())
    meta = tagged(experiment.plan.meta.get(side, {}), experiment.tag, side)
    text = json.dumps(meta, indent=1)
    return SideCommands(
        side=side,
        letter=LETTERS[side],
        launches=tuple(_launch(one, side) for one in launches),
        export=change.export if side == "candidate" else "",
        upload=upload_command(meta, base_url),
        meta=text if len(json.dumps(meta)) > LONGEST_META else "",
    )


def _launch(commands: Commands, side: Side) -> Launch:
    if side == "baseline":
        return Launch(commands.trainer, commands.baseline, "", ())
    return Launch(commands.trainer, commands.candidate, commands.add, commands.remove)
