"""JSON columns: what is no number in JSON is stored as null.

SQLite stores a NaN and then refuses to look into the document; PostgreSQL refuses to store it.
"""

import json
import math
from typing import Any


def dumps(value: Any) -> str:
    """As `json.dumps`, with null for NaN and the infinities."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value
