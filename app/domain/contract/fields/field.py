"""What one contract field is: its name, where it counts, what values it takes and what trainers call it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["stack", "config", "info"]
"""`stack`: must be equal before two runs may be ranked. `config`: a knob of the run. `info`: shown, not compared."""

Kind = Literal["count", "whole", "number", "flag", "choice", "words", "counts", "text", "name", "layers"]
"""The values a field takes.

count   an integer of at least 1          choice  one of `choices`
whole   an integer of at least 0          words   a set of words (from `choices` where given), order has no meaning
number  a finite real number              counts  a list of integers of at least 1, in order
flag    true or false                     layers  an integer of at least 1, or a list of 0 and 1, one a layer
text    one line of text, compared as it is written
name    one line of text, compared without regard to case
"""


@dataclass(frozen=True, slots=True)
class ContractField:
    """One row of the registry.

    `megatron_lm` and `bridge` are what the trainers call it, for people and for search. `aliases` maps other spellings
    of a choice to the canonical one. `also` are other names that people give the field, used for suggestions only.
    """

    name: str
    group: str
    role: Role
    kind: Kind
    meaning: str
    unit: str = ""
    megatron_lm: str = ""
    bridge: str = ""
    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricField:
    """One headline figure. `less_is_better` is stated with the metric, so that nobody has to guess it."""

    name: str
    label: str
    unit: str
    less_is_better: bool
    meaning: str
