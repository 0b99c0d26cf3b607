"""The address of the planner, filled in with what a contract states."""

from collections.abc import Mapping
from urllib.parse import urlencode

from app.domain.contract.model_names import known_model
from app.domain.planning.model import SHAPE
from app.domain.planning.request import INPUTS
from app.domain.run import Value

PATH = "/plan"


def plan_address(values: Mapping[str, Value], *, free: tuple[str, ...] = ()) -> str:
    """The planner for a contract's values by field name, without the fields in `free`. A known model needs no shape."""
    shape = () if known_model(str(values.get("model"))) else SHAPE
    names = [name for name in INPUTS if name not in free and (name not in SHAPE or name in shape)]
    said = {name: _text(values[name]) for name in names if name in values}
    said |= {"vpp": "1"} if values.get("pp_layout") is None and "vpp" in said and not said["vpp"] else {}
    if values.get("pp_layout"):
        said = {name: text for name, text in said.items() if name not in ("vpp", "pp_account")}
    query = urlencode({name: text for name, text in said.items() if text})
    return f"{PATH}?{query}" if query else PATH


def _text(value: Value) -> str:
    if isinstance(value, tuple):
        return ",".join(str(one) for one in value)
    return "" if value is None else str(value)
