"""One setting of a trainer: a name as the trainer has it, its value, and where it stands."""

from typing import NamedTuple

from app.domain.run import Source, Value


class Setting(NamedTuple):
    """`line` counts from 1, 0 when it comes from no log; `section` is that of a configuration summary."""

    name: str
    value: Value
    source: Source
    line: int = 0
    section: str = ""

    @property
    def detail(self) -> str:
        """For people: `line 12: moe_token_dispatcher_type = alltoall`."""
        name = f"{self.section}.{self.name}" if self.section else self.name
        if self.source == "default":
            return f"{name} is not in the summary (line {self.line}): Megatron Core's default, {self.value}"
        return f"line {self.line}: {name} = {self.value}" if self.line else f"{name} = {self.value}"
