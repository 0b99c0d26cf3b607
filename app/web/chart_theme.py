"""One theme for all charts: no frame, light horizontal grid, titles with units, marks of 3 px and more.

Colours are names of the stylesheet's tokens (`--accent`); app.js puts in what they are in the theme that is shown, so
that a colour is chosen in one place only and charts follow the theme switch.
"""

from typing import Any

TEXT, MUTED, BORDER, ACCENT = "--text", "--muted", "--border", "--accent"
BACKGROUND, BORDER_STRONG = "--bg", "--border-strong"
WARM_UP, SPIKE, BASELINE = "--muted", "--regression", "--text"
FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
BAND_OPACITY = 0.15
HEIGHT = 300

CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": FONT,
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "domain": False,
        "ticks": False,
        "labelPadding": 6,
        "gridColor": BORDER,
    },
    "axisX": {"grid": False, "domain": True, "domainColor": BORDER},
    "text": {"fontSize": 12, "color": MUTED},
}
