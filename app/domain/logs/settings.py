"""Merges the dumps of a log into one set of settings: what each name was set to, and who says so."""

from collections.abc import Sequence

from app.domain.logs.defaults import DEFAULTS
from app.domain.logs.dumps import Dump
from app.domain.logs.notes import Notes
from app.domain.logs.setting import Setting
from app.domain.run import Value

SECTIONS = ("model", "train", "dataset", "ddp", "optimizer", "comm_overlap", "mixed_precision", "rng")
"""Of a name that stands in several sections of a summary, the first of these counts."""

# Names that differ between the processes of one job, or after a resume, without anything being different
_PASSING = frozenset({"consumed_train_samples", "consumed_valid_samples", "iteration", "load", "rank", "local_rank"})


def merge(dumps: Sequence[Dump], notes: Notes) -> tuple[dict[str, Setting], dict[str, Value]]:
    """Settings under the trainer's names, and every name of the dumps with its value.

    A later dump wins over an earlier one (the log of a resumed job holds one for each start); what changed is noted.
    """
    settings: dict[str, Setting] = {}
    for dump in dumps:
        added = _of_summary(dump) if dump.is_summary else {setting.name: setting for setting in dump.settings}
        changed = [
            name for name in added.keys() & settings.keys() - _PASSING if settings[name].value != added[name].value
        ]
        if changed:
            listed = ", ".join(sorted(changed)[:10])
            notes.problem(
                "changed settings", f"A later dump sets {len(changed)} names differently: {listed}.", dump.line
            )
        settings.update(added)
    arguments = {name: setting.value for name, setting in settings.items() if setting.source != "default"}
    for dump in dumps:
        for setting in dump.settings if dump.is_summary else ():
            # A later summary may leave the name out: then its default counts, and it is no argument
            if arguments.get(setting.name, setting.value) != setting.value:
                arguments[f"{setting.section}.{setting.name}"] = setting.value
    return settings, arguments


def _of_summary(dump: Dump) -> dict[str, Setting]:
    """What a summary lists, and Megatron Core's default for what a section that it has leaves out."""
    settings: dict[str, Setting] = {}
    for section in SECTIONS:
        for name, value in DEFAULTS.get(section, {}).items() if section in dump.sections else ():
            settings.setdefault(name, Setting(name, value, "default", dump.line, section))
    order = {section: place for place, section in enumerate(SECTIONS)}
    for setting in sorted(dump.settings, key=lambda one: order.get(one.section, len(SECTIONS)), reverse=True):
        settings[setting.name] = setting
    return settings
