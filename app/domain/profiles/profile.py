"""Turns one or several read traces into the document of a profile: what pages, the API and the command line show.

The document is the reduced form that is stored: per step, class, gap and collective, without individual activities.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from app.domain.profiles.budget import REASONS, Blocking, Budget, Crediting, Device, Gap, blocking_of
from app.domain.profiles.facts import Analysis, facts_of
from app.domain.profiles.intervals import Coverage
from app.domain.profiles.kernels import CLASSES, OTHER, group_of
from app.domain.profiles.ranks import RankDevice, Ranks, compare_ranks, joined
from app.domain.profiles.steps import budgets, find_steps
from app.domain.profiles.trace import DeviceTrace, Trace

SCHEMA = "threewalls-profile/1"
TOP_KERNELS = 15
LONGEST_GAPS = 10
MAX_STEPS_SHOWN = 50
MAX_KERNEL_ROWS = 400
MAX_COLLECTIVE_ROWS = 50
MAX_RECTANGLES = 2_000
_MERGE = 1_500
"""Rectangles of a lane that are closer than the length of the step divided by this are drawn as one."""
_SHOWN_NAME = 160
ROUNDED_BELOW_NS = 20_000
"""With whole microseconds, shorter kernels are rounded noticeably."""
_BYTES = {"Float": 4, "Int": 4, "Double": 8, "Long": 8, "BFloat16": 2, "Half": 2, "Char": 1, "Byte": 1, "Bool": 1}

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ProfileFile:
    """One file of a profile. `rank` and `stage` as stated by the user."""

    name: str
    trace: Trace
    rank: int | None = None
    stage: int | None = None


def describe_profile(files: Sequence[ProfileFile]) -> Document:
    """Return the document of a profile; its files are ranks of one job."""
    analysed = [(file, [_analyse(device) for device in file.trace.devices]) for file in files]
    members = _members(analysed)
    compared = _compare(members)
    setting = _pace_setter(members, compared)
    documents = [
        _file_document(file, analyses, [member for member in members if member.file is file], compared)
        for file, analyses in analysed
    ]
    is_incomplete = any(file.trace.incomplete for file in files)
    facts = facts_of(setting.analysis, compared, setting.rank) if setting is not None and not is_incomplete else {}
    if not members:
        facts = _facts_of_sums([file.trace for file in files])
    if facts and len(members) > 1:
        facts["profile_rank"] = None
        facts["stage_spread_frac"] = _stage_spread(members)
    return {
        "schema": SCHEMA,
        "files": documents,
        "ranks": _ranks_document(members, compared),
        "facts": facts,
        "facts_from": None if setting is None else {"rank": setting.rank, "device": setting.analysis.device.trace.key},
        "quality": _quality(analysed, members),
        "view": None if setting is None else _view(setting.analysis),
    }


def _facts_of_sums(traces: Sequence[Trace]) -> Document:
    """Return the shares that tables of sums show. The rules say why they mislead."""
    sums: dict[str, int] = defaultdict(int)
    for trace in traces:
        for name, time in trace.sums.items():
            sums[name] += time
    kernels = sum(time for name, time in sums.items() if name.startswith("kernels."))
    if not kernels:
        return {}
    facts = {"nccl_share_of_summed_kernel_time": round(sums["kernels.communication"] / kernels, 6)}
    if "memory.copy" in sums:
        facts["memcpy_share_of_summed_kernel_time"] = round(sums["memory.copy"] / kernels, 6)
    return facts


@dataclass(frozen=True, slots=True)
class ProfiledRank:
    file: ProfileFile
    analysis: Analysis
    rank: int | None
    rank_from: str


def _analyse(trace: DeviceTrace) -> Analysis:
    device = Device(trace)
    steps = find_steps(trace)
    analysis = Analysis(device, steps, device.budget(*device.span), tuple(budgets(device, steps)))
    windows = [(budget.first, budget.last) for budget in analysis.windows]
    return replace(analysis, blocking=blocking_of(device, windows))


def _members(analysed: Sequence[tuple[ProfileFile, list[Analysis]]]) -> list[ProfiledRank]:
    members = []
    for file, analyses in analysed:
        for order, analysis in enumerate(analyses):
            own = analysis.device.trace.rank
            rank: int | None
            if len(analyses) == 1 and file.rank is not None:
                rank, source = file.rank, "stated"
            elif own is not None:
                rank, source = own, file.trace.rank_from or "trace"
            elif len(analyses) == 1:
                rank, source = _rank_in_name(file.name), "file name"
            else:
                rank, source = order, "order of devices"
            members.append(ProfiledRank(file, analysis, rank, source if rank is not None else ""))
    return members


def _rank_in_name(name: str) -> int | None:
    """Return the rank that a file name states: `rank-7.json.gz`, `rank[7]`."""
    text = name.rpartition("/")[2].lower()
    _, word, rest = text.partition("rank")
    digits = ""
    for letter in rest.lstrip("-_[. "):
        if not letter.isdigit():
            break
        digits += letter
    return int(digits) if word and 0 < len(digits) < 7 else None


def _compare(members: Sequence[ProfiledRank]) -> Ranks | None:
    """Compare ranks with those of the same pipeline stage."""
    ranks = [member.rank for member in members]
    if len(members) < 2 or None in ranks or len(set(ranks)) < len(ranks):
        return None
    stages: dict[int | None, list[RankDevice]] = defaultdict(list)
    for member in members:
        analysis = member.analysis
        stages[member.file.stage].append(
            RankDevice(member.rank or 0, analysis.device, analysis.budgets, member.file.trace.base_ns)
        )
    return joined([compared for stage in stages.values() if (compared := compare_ranks(stage)) is not None])


def _pace_setter(members: Sequence[ProfiledRank], compared: Ranks | None) -> ProfiledRank | None:
    """Return the rank that waits least, else the rank that computes most."""
    if not members:
        return None
    waits = {} if compared is None else {row.rank: row.wait for row in compared.ranks if row.matched}
    if all(member.rank in waits for member in members):
        return min(members, key=lambda member: waits[member.rank or 0])
    return max(members, key=lambda member: sum(b.compute for b in member.analysis.windows))


def _stage_spread(members: Sequence[ProfiledRank]) -> float | None:
    stages: dict[int, list[float]] = defaultdict(list)
    for member in members:
        if member.file.stage is None:
            return None
        own = [b.window - b.comm - b.idle for b in member.analysis.windows]
        stages[member.file.stage].append(float(np.median(own)))
    medians = [float(np.median(times)) for times in stages.values()]
    return round(max(medians) / min(medians) - 1, 6) if len(medians) > 1 and min(medians) > 0 else None


# --- One file


def _file_document(
    file: ProfileFile, analyses: Sequence[Analysis], members: Sequence[ProfiledRank], compared: Ranks | None
) -> Document:
    trace = file.trace
    setter = _pace_setter(members, compared)
    rank = setter.rank if setter is not None and (compared is not None or len(members) == 1) else None
    facts = facts_of(setter.analysis, compared, rank) if setter is not None and not trace.incomplete else {}
    return {
        "file": file.name,
        "format": trace.format,
        "version": trace.version,
        "rank": members[0].rank if len(members) == 1 else None,
        "rank_from": members[0].rank_from if len(members) == 1 else "",
        "stage": file.stage,
        "world_size": trace.world_size,
        "gpu": next((device.gpu for device in trace.devices if device.gpu), ""),
        "events": trace.events,
        "devices": {analysis.device.trace.key: device_document(analysis) for analysis in analyses},
        "facts": facts,
        "warnings": [*([trace.incomplete] if trace.incomplete else []), *trace.warnings],
    }


def device_document(analysis: Analysis) -> Document:
    """Return the figures of one device under the names of docs/profiles.md; times in ms."""
    trace = analysis.device.trace
    sums = _class_sums(trace, trace.class_by_name)
    budgets_ = analysis.budgets[:MAX_STEPS_SHOWN]
    whole = window_document(analysis.whole)
    document = {
        "device_events": int(trace.start.size),
        "span_ms": _ms(analysis.device.span[1] - analysis.device.span[0]),
        "streams": sorted({trace.streams[stream] for stream in np.unique(trace.stream)}),
        "launch_correlated": round(float((trace.launch >= 0).mean()), 6),
        "graph_kernels": int(trace.in_graph.sum()),
        "whole": whole,
        "step_source": analysis.steps.source,
        "step_ids": list(analysis.steps.numbers),
        "steps": [window_document(budget) for budget in budgets_],
        "class_sum_ms": sums,
        "class_union_ms": whole["class_union_ms"],
        "top_kernels": _top_kernels(trace),
        "clock_ns": int(trace.start[0]),
    }
    regular = [window_document(budget) for budget in analysis.windows] if analysis.budgets else []
    if regular:
        document["median_over_steps"] = {
            name: _median([step[name] for step in regular])
            for name in ("window_ms", "exposed_comm_frac", "comm_hidden_frac", "gpu_idle_frac", "launch_starved_frac")
        }
    return document


def window_document(budget: Budget) -> Document:
    """Return the budget of a window; times in ms. Null for figures that a graph traced as a whole hides."""
    hides = budget.has_whole_graphs
    window = budget.window or 1
    split = {reason: _ms(budget.reasons[reason]) for reason in REASONS}
    document: Document = {
        "window_ms": _ms(budget.window),
        "compute_ms": _ms(budget.compute),
        "exposed_comm_ms": None if hides else _ms(budget.exposed_comm),
        "exposed_copy_ms": _ms(budget.exposed_copy),
        "idle_ms": _ms(budget.idle),
        "comm_ms": None if hides else _ms(budget.comm),
        "hidden_comm_ms": None if hides else _ms(budget.comm - budget.exposed_comm),
        "copy_ms": _ms(budget.copy),
        "dispatcher_ms": _ms(budget.dispatcher_by_name),
        "exposed_dispatcher_ms": None if hides else _ms(budget.exposed_dispatcher),
        "compute_absent_ms": _ms(budget.window - budget.compute),
        "compute_absent_split_ms": split,
        "idle_split_ms": {reason: _ms(time) for reason, time in budget.idle_reasons.items()},
        "exposed_comm_frac": None if hides else round(budget.exposed_comm / window, 6),
        "comm_hidden_frac": (
            None if hides or not budget.comm else round((budget.comm - budget.exposed_comm) / budget.comm, 6)
        ),
        "gpu_idle_frac": round(budget.idle / window, 6),
        "launch_starved_frac": round(budget.reasons["launch_starved"] / window, 6),
        "class_union_ms": {
            name: _ms(time) for name, time in sorted(budget.by_class.items(), key=lambda item: -item[1])
        },
    }
    if hides:
        document["exposed_comm_outside_graphs_ms"] = _ms(budget.exposed_comm)
    if budget.step is not None:
        document["step"] = budget.step
    if not budget.is_regular:
        document["irregular"] = True
    return document


def _class_sums(trace: DeviceTrace, classes: Any) -> dict[str, list[float | int]]:
    """Return launches and work of each class."""
    count = np.bincount(classes, minlength=len(CLASSES))
    work = np.zeros(len(CLASSES), np.int64)
    np.add.at(work, classes, trace.end - trace.start)
    order = [number for number in np.argsort(-work, kind="stable") if count[number]]
    return {CLASSES[number]: [int(count[number]), _ms(int(work[number]))] for number in order}


def _top_kernels(trace: DeviceTrace) -> list[Document]:
    count = np.bincount(trace.name, minlength=len(trace.names))
    work = np.zeros(len(trace.names), np.int64)
    np.add.at(work, trace.name, trace.end - trace.start)
    classes = np.zeros(len(trace.names), np.int64)
    classes[trace.name] = trace.class_by_name
    return [
        {
            "name": trace.names[name][:_SHOWN_NAME],
            "class": CLASSES[classes[name]],
            "count": int(count[name]),
            "sum_ms": _ms(int(work[name])),
        }
        for name in sorted(np.flatnonzero(count).tolist(), key=lambda name: (-work[name], trace.names[name]))[
            :TOP_KERNELS
        ]
    ]


# --- Ranks


def _ranks_document(members: Sequence[ProfiledRank], compared: Ranks | None) -> Document:
    waiting = {} if compared is None else {row.rank: row for row in compared.ranks}
    rows = []
    for member in members:
        windows = member.analysis.windows
        row: Document = {
            "rank": member.rank,
            "rank_from": member.rank_from,
            "file": member.file.name,
            "device": member.analysis.device.trace.key,
            "stage": member.file.stage,
            "step_ms": _ms(float(np.median([b.window for b in windows]))),
            "compute_ms": _ms(float(np.median([b.compute for b in windows]))),
            "exposed_comm_ms": _ms(float(np.median([b.exposed_comm for b in windows]))),
            "exposed_copy_ms": _ms(float(np.median([b.exposed_copy for b in windows]))),
            "idle_ms": _ms(float(np.median([b.idle for b in windows]))),
        }
        if own := waiting.get(member.rank if member.rank is not None else -1):
            row |= {
                "collectives": own.collectives,
                "matched": own.matched,
                "comm_ms": _ms(own.comm),
                "transfer_ms": _ms(own.transfer),
                "wait_ms": _ms(own.wait),
                "times_last": own.times_last,
                "exposed_wait_frac": None if own.exposed_wait_frac is None else round(own.exposed_wait_frac, 6),
            }
        rows.append(row)
    return {
        "rows": rows,
        "matched": 0 if compared is None else compared.matched,
        "collectives": []
        if compared is None
        else [
            {
                "ranks": item.ranks[:100],
                "name": item.name[:_SHOWN_NAME],
                "matched": item.matched,
                "transfer_ms": _ms(item.transfer),
                "wait_ms": _ms(item.wait),
                "late_rank": item.late_rank,
                "times_last": item.times_last,
            }
            for item in compared.collectives
        ],
        "late_rank": None if compared is None else compared.late_rank,
        "straggler_rank": None if compared is None else compared.straggler_rank,
        "straggler_frac": None
        if compared is None or compared.straggler_frac is None
        else round(compared.straggler_frac, 6),
        "clock_spread_ms": (
            None
            if compared is None or compared.clock_spread_ns is None
            else [_ms(value) for value in compared.clock_spread_ns]
        ),
    }


# --- Quality


def _quality(analysed: Sequence[tuple[ProfileFile, list[Analysis]]], members: Sequence[ProfiledRank]) -> Document:
    analyses = [member.analysis for member in members]
    absent = sum(b.window - b.compute for a in analyses for b in a.windows)
    unresolved = sum(b.reasons["unresolved"] for a in analyses for b in a.windows)
    launched = sum(int((a.device.trace.launch >= 0).sum()) for a in analyses)
    events = sum(int(a.device.trace.start.size) for a in analyses)
    work = sum(int((a.device.trace.end - a.device.trace.start).sum()) for a in analyses)
    traces = [file.trace for file, _ in analysed]
    whole_graphs = sum(a.device.trace.whole_graphs for a in analyses)
    in_graph = sum(int(a.device.trace.in_graph.sum()) for a in analyses)
    replays = sum(_graph_launches(a.device.trace) for a in analyses)
    mean_ns = work / events if events else 0
    return {
        "formats": sorted({f"{trace.format} {trace.version}".strip() for trace in traces}),
        "ranks": len(members),
        "world_size": next((trace.world_size for trace in traces if trace.world_size), None),
        "steps": min((len(a.budgets) for a in analyses), default=0),
        "step_source": analyses[0].steps.source if analyses else "",
        "launch_correlated": round(launched / events, 6) if events else None,
        "unresolved_frac": round(unresolved / absent, 6) if absent else 0.0,
        "unclassified": _unclassified(analyses),
        "graphs": "whole" if whole_graphs else "node" if in_graph or replays else "none",
        "graph_launches": replays,
        "skipped_events": sum(trace.skipped for trace in traces),
        "clock_disorder": sum(trace.clock_disorder for trace in traces),
        "rounded": any(trace.whole_microseconds for trace in traces) and mean_ns < ROUNDED_BELOW_NS,
        "incomplete": [trace.incomplete for trace in traces if trace.incomplete],
        "warnings": list(dict.fromkeys(warning for trace in traces for warning in trace.warnings))[:20],
        "dependencies": _dependencies([a.blocking for a in analyses if a.blocking is not None]),
        "copies_hide_ms": _ms(max((b.copies_hide for a in analyses for b in a.windows), default=0)),
    }


def _dependencies(causes: Sequence[Blocking]) -> Document | None:
    """Return how many gaps during communication have a recorded cause; None where the trace records none."""
    if not causes:
        return None
    return {
        "gaps": sum(item.gaps for item in causes),
        "resolved": sum(item.resolved for item in causes),
        "blocking_comm_ms": _ms(sum(item.blocked_ns for item in causes)),
    }


def _graph_launches(trace: DeviceTrace) -> int:
    table = np.array(["GraphLaunch" in name for name in trace.names], np.bool_)
    return int(table[trace.calls.name].sum()) if trace.calls.name.size else 0


def _unclassified(analyses: Sequence[Analysis]) -> Document:
    """Return the share of the work without a class, and the names above 1 % of the step."""
    names: dict[str, int] = defaultdict(int)
    total = other = 0
    for analysis in analyses:
        trace = analysis.device.trace
        length = trace.end - trace.start
        total += int(length.sum())
        unknown = trace.class_by_name == CLASSES.index(OTHER)
        other += int(length[unknown].sum())
        for name in np.unique(trace.name[unknown]):
            names[trace.names[name][:_SHOWN_NAME]] += int(length[unknown & (trace.name == name)].sum())
    span = sum(a.device.span[1] - a.device.span[0] for a in analyses) or 1
    shown = sorted(((time / span, name) for name, time in names.items() if time > 0.01 * span), reverse=True)
    return {
        "work_frac": round(other / total, 6) if total else 0.0,
        "names": [{"name": name, "share": round(share, 6)} for share, name in shown[:20]],
    }


# --- What the page draws of the rank that sets the pace


def _view(analysis: Analysis) -> Document:
    budget = _typical(analysis.windows)
    crediting = Crediting(analysis.device)
    rows = [crediting.breakdown(b.first, b.last) for b in analysis.windows[:MAX_STEPS_SHOWN]]
    credited: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(rows))
    work: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for at, row in enumerate(rows):
        for name, time in row.credited_ns.items():
            credited[name][at] = time
        for kernel in row.kernels:
            total = work[kernel.kernel_class, kernel.name]
            total[0] += kernel.calls
            total[1] += kernel.work_ns
    n = len(rows)
    kernels = sorted(work.items(), key=lambda item: -item[1][1])[:MAX_KERNEL_ROWS]
    return {
        "steps": n,
        "step": budget.step,
        "step_ms": _ms(sum(b.window for b in analysis.windows[:n]) / n),
        "credited_ms": {name: round(sum(times) / n / 1e6, 6) for name, times in credited.items()},
        "classes": _class_rows(analysis, budget),
        "kernels": [
            {
                "class": kernel_class,
                "name": name[:_SHOWN_NAME],
                "calls": round(calls / n, 3),
                "work_ms": round(time / n / 1e6, 6),
            }
            for (kernel_class, name), (calls, time) in kernels
        ],
        "gaps": [
            _gap_document(analysis.device, gap, budget)
            for gap in analysis.device.gaps(budget.first, budget.last, LONGEST_GAPS)
        ],
        "collectives": _collective_rows(analysis, budget),
        "starved_split_ms": {
            cause: _ms(time) for cause, time in analysis.device.starved_split(budget.first, budget.last).items()
        },
        "timeline": _timeline(analysis.device, budget),
        "window": window_document(budget),
        "whole_step_kernels": _persistent(analysis.device.trace, budget),
    }


def _typical(windows: Sequence[Budget]) -> Budget:
    """Return the step whose length is the median."""
    return sorted(windows, key=lambda budget: budget.window)[(len(windows) - 1) // 2]


def _class_rows(analysis: Analysis, budget: Budget) -> list[Document]:
    """Return one row for each class of a step, by use: union, share, exposed part, work and launches."""
    trace, device = analysis.device.trace, analysis.device
    inside = slice(*np.searchsorted(trace.start, (budget.first, budget.last)))
    rows = []
    for number in np.unique(trace.class_by_use[inside]):
        which = trace.class_by_use == number
        coverage = Coverage.of(trace.start[which], trace.end[which])
        union = int(coverage.between(budget.first, budget.last))
        name = CLASSES[number]
        in_step = which[inside]
        row: Document = {
            "class": name,
            "group": group_of(name),
            "union_ms": _ms(union),
            "share": round(union / (budget.window or 1), 6),
            "work_ms": _ms(int((trace.end[inside] - trace.start[inside])[in_step].sum())),
            "calls": int(in_step.sum()),
            "exposed_ms": None,
        }
        if group_of(name) != "compute":
            row["exposed_ms"] = _ms(coverage.outside(device.compute, budget.first, budget.last))
        rows.append(row)
    return sorted(rows, key=lambda row: -row["union_ms"])


def _gap_document(device: Device, gap: Gap, budget: Budget) -> Document:
    trace = device.trace
    document: Document = {
        "at_ms": _ms(gap.start - budget.first),
        "length_ms": _ms(gap.end - gap.start),
        "reason": gap.reason,
        "reasons_ms": {name: _ms(time) for name, time in gap.reasons.items() if time},
        "kernel": None if gap.kernel is None else trace.names[trace.name[gap.kernel]][:_SHOWN_NAME],
        "host_call": None,
    }
    calls = trace.calls
    if calls.start.size:
        inside = np.flatnonzero((calls.start < gap.end) & (calls.end > gap.start))
        if inside.size:
            overlap = np.minimum(calls.end[inside], gap.end) - np.maximum(calls.start[inside], gap.start)
            document["host_call"] = trace.names[calls.name[inside[overlap.argmax()]]][:_SHOWN_NAME]
    loading = sum(max(0, min(r.end, gap.end) - max(r.start, gap.start)) for r in trace.loading)
    if 2 * loading > gap.end - gap.start:
        document["host_call"] = "data loader"
    return document


def _collective_rows(analysis: Analysis, budget: Budget) -> list[Document]:
    trace, device = analysis.device.trace, analysis.device
    groups: dict[tuple[str, str], list[Any]] = {}
    for item in trace.collectives:
        if not budget.first <= trace.start[item.kernel] < budget.last:
            continue
        key = (item.description if item.description not in ("", "undefined") else item.group, item.name)
        groups.setdefault(key, []).append(item)
    rows = []
    for (group, name), items in groups.items():
        kernels = np.array([item.kernel for item in items], np.int64)
        coverage = Coverage.of(trace.start[kernels], trace.end[kernels])
        exposed = coverage.outside(device.compute, budget.first, budget.last)
        sizes = [(item.elements_in or 0) * _BYTES.get(item.dtype, 0) for item in items]
        rows.append(
            {
                "group": group[:100],
                "name": name,
                "ranks": items[0].ranks[:100],
                "count": len(items),
                "bytes": sum(sizes) if all(sizes) else None,
                "work_ms": _ms(int((trace.end[kernels] - trace.start[kernels]).sum())),
                "exposed_ms": _ms(exposed),
            }
        )
    return sorted(rows, key=lambda row: -row["work_ms"])[:MAX_COLLECTIVE_ROWS]


def _timeline(device: Device, budget: Budget) -> Document:
    """Return rectangles [start in ms, length in ms] of one step for each class, and for exposed communication."""
    trace = device.trace
    classes = np.unique(trace.class_by_use)
    most = max(20, MAX_RECTANGLES // (classes.size + 1))
    of_class = {CLASSES[number]: trace.class_by_use == number for number in classes}
    lanes = {
        name: rectangles
        for name, which in of_class.items()
        if (rectangles := _rectangles(Coverage.of(trace.start[which], trace.end[which]), budget, most))
    }
    exposed = None if budget.has_whole_graphs else _rectangles(device.exposed_comm, budget, most)
    return {"step": budget.step, "window_ms": _ms(budget.window), "lanes": lanes, "exposed_comm": exposed}


def _rectangles(coverage: Coverage, budget: Budget, most: int) -> list[list[float]]:
    """Return at most `most` rectangles: neighbours are joined over as short gaps as that takes."""
    start, end = coverage.within(budget.first, budget.last)
    distance = max(1, budget.window // _MERGE)
    while start.size:
        joined = Coverage.of(start, end + distance)
        if joined.start.size <= most:
            start, end = joined.start, joined.end - distance
            break
        distance *= 2
    return [[_ms(int(a - budget.first)), _ms(int(b - a))] for a, b in zip(start, end, strict=True)]


def _persistent(trace: DeviceTrace, budget: Budget) -> list[str]:
    """Return the kernels whose single run covers more than half of the step."""
    long = np.flatnonzero(trace.end - trace.start > budget.window / 2)
    return sorted({trace.names[name][:_SHOWN_NAME] for name in trace.name[long]})[:10]


def _ms(nanoseconds: float) -> float:
    return round(nanoseconds / 1e6, 6)


def _median(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return round(float(np.median(numbers)), 6) if numbers else None
