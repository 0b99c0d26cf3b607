"""What stands below the chart of a history: a key of the marks that are drawn, and what a reader cannot see."""

from dataclasses import dataclass

from app.history.chart_rows import NOT_OF_STEP_TIME, Drawing, Row
from app.history.charts import EVENT_MARKS, VERDICT_MARKS
from app.web.numbers import counted
from app.web.series_groups import series_label

_MOST_CONFIGURATIONS = 8
_EVENTS = {
    "golden": "golden run",
    "once golden": "was golden",
    "release": "release",
    "versions": "versions changed",
    "configuration": "new configuration",
}
_BUILT_IN = {"diamond": "M0,-1L1,0L0,1L-1,0Z", "square": "M-0.8,-0.8h1.6v1.6h-1.6Z"}


@dataclass(frozen=True, slots=True)
class ChartKey:
    """`configurations`: letter and dispatcher; `events`: kind, label and the path of its mark."""

    configurations: tuple[tuple[str, str], ...]
    verdicts: tuple[str, ...]
    events: tuple[tuple[str, str, str], ...]
    levels: bool
    changes: bool
    aside: bool
    without_figure: bool
    outside: bool


def chart_key(drawing: Drawing, rows: dict[str, list[Row]]) -> ChartKey:
    marks = {row["mark"] for row in rows["points"]}
    called = {row["verdict"] for row in (*rows["rings"], *rows["arrows"])}
    kinds = {row["kind"] for row in rows["events"]}
    letters = {row["config"]: row["colour"] for row in rows["points"]}
    several = len(drawing.history.configurations) > 1
    return ChartKey(
        configurations=tuple(sorted(letters.items())[:_MOST_CONFIGURATIONS]) if several else (),
        verdicts=tuple(name for name in VERDICT_MARKS if name in called),
        events=tuple(
            (kind, _EVENTS[kind], _BUILT_IN.get(path, path)) for kind, path in EVENT_MARKS.items() if kind in kinds
        ),
        levels=bool(rows["levels"]),
        changes=bool(rows["changes"]),
        aside="aside" in marks,
        without_figure="none" in marks,
        outside=bool({"above", "below"} & marks),
    )


def chart_notes(drawing: Drawing, rows: dict[str, list[Row]], not_drawn: int) -> list[str]:
    notes = []
    if not_drawn:
        notes.append(
            f"The newest {len(drawing.places):,} runs are drawn; {not_drawn:,} older ones are not: zoom to them."
        )
    outside = sum(row["mark"] in ("above", "below") for row in rows["points"])
    if outside:
        notes.append(f"{counted(outside, 'run')} off this scale, drawn at its edge.")
    if drawing.metric == NOT_OF_STEP_TIME:
        notes.append(f"Levels and change points are of step time; {series_label(drawing.metric).lower()} has none.")
    if drawing.range[0] > 0:
        notes.append("The axis does not start at zero.")
    return notes
