"""A badge as SVG: a label and a value. It is embedded in external pages, so it is self-contained.

There is no script or style sheet, and sizes are fixed because the viewer's fonts are unknown. The verdict colours are
dark enough for white text; a light rim separates it from dark pages.
"""

import hashlib
import hmac
import secrets
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from app.domain.text import one_line

MOST = 60
"""Most characters of each part."""

_LABEL = "#3a4352"
_COLOURS = {
    "regression": "#b3400a",
    "improvement": "#00734f",
    "no_change": "#00734f",
    "inconclusive": "#8a6100",
    "failed": "#9b2c6f",
}
_NEUTRAL = "#5b6472"
_FONT = "Verdana,DejaVu Sans,Geneva,sans-serif"
_PADDING = 6.0
_WIDTHS = {**dict.fromkeys(" .,:;'|!il1j()[]/-", 4.4), **dict.fromkeys("mwMW%+−@", 9.8)}
_OTHER_WIDTH = 6.9


@dataclass(frozen=True, slots=True)
class Badge:
    """`decision` selects the colour; empty for grey."""

    label: str
    value: str
    decision: str = ""


def svg(badge: Badge) -> str:
    """Render the badge as an SVG document."""
    label, value = (_plain(text) for text in (badge.label, badge.value))
    left, right = (round(_width(text) + 2 * _PADDING) for text in (label, value))
    colour = _COLOURS.get(badge.decision, _NEUTRAL)
    spoken = quoteattr(f"{label}: {value}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" aria-label={spoken}>'
        f"<title>{escape(f'{label}: {value}')}</title>"
        f'<rect width="{left + right}" height="20" rx="4" fill="{colour}"/>'
        f'<path d="M4 0h{left - 4}v20H4a4 4 0 0 1-4-4V4a4 4 0 0 1 4-4z" fill="{_LABEL}"/>'
        f'<rect x="0.5" y="0.5" width="{left + right - 1}" height="19" rx="3.5" fill="none" stroke="#fff" '
        'stroke-opacity="0.3"/>'
        f'<g fill="#fff" font-family="{_FONT}" font-size="11" text-rendering="geometricPrecision">'
        f"{_text(label, _PADDING)}{_text(value, left + _PADDING)}</g></svg>\n"
    )


def _plain(text: str) -> str:
    """Drop characters that XML cannot contain, and shorten the text."""
    return "".join(letter for letter in one_line(text) if letter.isprintable())[:MOST]


def _text(text: str, x: float) -> str:
    return (
        f'<text x="{x:g}" y="14" textLength="{_width(text):.1f}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'
    )


def _width(text: str) -> float:
    """Estimate the width in pixels at 11 px; the text is fitted to it."""
    return sum(_WIDTHS.get(letter, _OTHER_WIDTH) for letter in text)


# --- The key in a badge's address: it gives access to this stack's badges only and cannot be computed without the
# secret.
#
# Forges show badges to every reader of a README and fetch them without a login. A new secret revokes all keys of a
# project.

_BYTES = 16


def new_badge_secret() -> str:
    """Return a random secret for the badge keys of a project."""
    return secrets.token_hex(_BYTES)


def badge_key(secret: str, stack_key: str) -> str:
    """Return the key of a stack's badges: an HMAC of its stack key."""
    digest = hmac.new(secret.encode(), f"threewalls badges of {stack_key}".encode(), hashlib.sha256)
    return digest.hexdigest()[: 2 * _BYTES]


def opens(key: str, secret: str, stack_key: str) -> bool:
    """Return whether the key is valid, in constant time. A project without a secret has no valid key."""
    return bool(secret) and hmac.compare_digest(key.encode(), badge_key(secret, stack_key).encode())
