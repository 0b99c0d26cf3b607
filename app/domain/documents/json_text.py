"""Reads JSON that came from outside, within limits."""

import json

MAX_BYTES = 32 * 1024 * 1024
"""The largest golden-values file has 0.6 MB."""


def read_json(text: str | bytes) -> object:
    """The value. Raises ValueError with a sentence on anything that is no JSON, too large or nested too deep."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"The JSON document is larger than {MAX_BYTES // 1024**2} MB.")
    try:
        document: object = json.loads(text)
    except RecursionError:
        raise ValueError("The JSON document is nested too deep.") from None
    except (ValueError, UnicodeDecodeError) as error:  # JSONDecodeError, and integers of thousands of digits
        raise ValueError(f"This is not JSON: {str(error)[:200]}.") from None
    return document
