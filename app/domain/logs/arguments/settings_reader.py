"""Collects contract fields from a trainer's settings, each with the settings that it comes from."""

from collections.abc import Mapping

from app.domain.contract.values import read_value
from app.domain.logs.setting import Setting
from app.domain.run import Source, Stated, Value

Settings = Mapping[str, Setting]
"""Trainer's names (`tensor_model_parallel_size`) to what was stated under them."""


class SettingsReader:
    """The contract fields found so far, and the values that no field takes."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.found: dict[str, Stated] = {}
        self.refused: list[str] = []

    def has(self, *names: str) -> bool:
        return any(name in self.settings for name in names)

    def value(self, name: str) -> Value:
        setting = self.settings.get(name)
        return setting.value if setting else None

    def is_on(self, name: str) -> bool:
        return self.value(name) is True

    def state(self, field: str, raw: Value, *names: str, source: Source | None = None, why: str = "") -> None:
        """State `field`, as the settings `names` say it; a value that the field does not take is told, not kept."""
        used = [self.settings[name] for name in names if name in self.settings]
        if source is None:
            is_default = all(setting.source == "default" for setting in used)
            source = "default" if is_default else used[0].source if len(used) == 1 else "derived"
        detail = why or "; ".join(setting.detail for setting in used)
        try:
            self.found[field] = Stated(read_value(field, raw), source, detail)
        except ValueError as problem:
            self.refused.append(f"{field} {problem}; stated was {raw!r} ({detail}).")

    def words(self, field: str, flags: Mapping[str, str]) -> None:
        """State a field that holds the words whose flags are on."""
        if self.has(*flags):
            self.state(field, tuple(word for name, word in flags.items() if self.is_on(name)), *flags)
