"""Simulation results as text, and the comparison of two simulations."""

from __future__ import annotations

from typing import Any

from phalanx.engine.placement.outcome import plural
from phalanx.simulate.measure import wait_of
from phalanx.simulate.play import JobRun, Played

SHOWN_DIFFERENCES = 8
LEAST_DIFFERENCE = 1.0  # seconds
MANY_HOURS = 10_000  # from which on hours are whole, so that columns stay apart
SHARE, SECONDS, NUMBER = "share", "seconds", "number"  # units of a comparison


def hours(seconds: float | None) -> str:
    """Return a time in hours; in seconds if it is shorter than a tenth of an hour."""
    if seconds is None:
        return "-"
    if abs(seconds) >= 3600 * MANY_HOURS:
        return f"{seconds / 3600:.0f}h"
    return f"{seconds / 3600:.2f}h" if abs(seconds) >= 360 else f"{seconds:.0f}s"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def text(result: dict[str, Any]) -> str:
    """Return the report of one simulation."""
    promised = result["promises"]
    lines = [
        f"{result['jobs']} jobs on {result['nodes']} nodes ({result['gpus']} GPUs) of {result['cluster']}; "
        f"backfill {result['settings']['backfill']}, estimates {result['estimates']}, seed {result['seed']}",
        f"{result['counted']} used {percent(result['utilisation'])} while jobs arrive, "
        f"{percent(result['utilisation_until_last_end'])} until the last end; makespan {hours(result['makespan_s'])}; "
        f"evictions {result['evictions']}; free on partly used nodes {percent(result['fragmentation'])}",
        f"promised starts {promised['promised']}; first promise kept {percent(promised['first_kept'])}; "
        f"moved later {promised['moved']} times; starts {hours(promised['early_median'])} before the promise (median)",
    ]
    for reason, count in sorted(promised["moved_because"].items()):
        lines.append(f"  {count} promises moved because: {reason}")
    lines += ["", *_table("GPUs", {"all": result["all"], **result["by_size"]})]
    if len(result["by_priority"]) > 1:
        lines += ["", *_table("priority", result["by_priority"])]
    never = result["never_started"]
    if never:
        lines += ["", f"{plural(len(never), 'job')} never started; there is never room: {', '.join(never[:10])}"]
    return "\n".join(lines)


def _table(head: str, groups: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        f"{head:9}{'jobs':>7}{'wait mean':>11}{'median':>9}{'p99':>9}{'max':>9}{'slowdown':>10}{'promised in 60s':>17}"
    ]
    for name, numbers in groups.items():
        if numbers["jobs"]:
            lines.append(
                f"{name:9}{numbers['jobs']:7}{hours(numbers['wait_mean']):>11}{hours(numbers['wait_median']):>9}"
                f"{hours(numbers['wait_p99']):>9}{hours(numbers['wait_max']):>9} {numbers['slowdown_mean']:9.1f}"
                f"{percent(numbers['promised_within_60s']):>17}"
            )
    return lines


def compare(
    names: tuple[str, str], results: tuple[dict[str, Any], dict[str, Any]], runs: tuple[Played, Played]
) -> dict[str, Any]:
    """Return the comparison of two simulations of the same load, with the jobs that differ most."""
    a, b = results
    rows = [
        (f"{a['counted']} used while jobs arrive", SHARE, a["utilisation"], b["utilisation"]),
        ("free on partly used nodes", SHARE, a["fragmentation"], b["fragmentation"]),
        ("makespan", SECONDS, a["makespan_s"], b["makespan_s"]),
        ("evictions", NUMBER, a["evictions"], b["evictions"]),
    ]
    of_promises = (
        ("first promised start kept", SHARE, "first_kept"),
        ("promises moved later", NUMBER, "moved"),
        ("start before the promise, median", SECONDS, "early_median"),
    )
    rows += [(what, unit, a["promises"][key], b["promises"][key]) for what, unit, key in of_promises]
    for group, title in (("by_size", "wait of {} GPUs"), ("by_priority", "wait of priority {}")):
        for name, numbers in a[group].items():
            other = b[group].get(name, {})
            for key, word in (("wait_mean", "mean"), ("wait_max", "longest")):
                rows.append((f"{title.format(name)}, {word}", SECONDS, numbers.get(key), other.get(key)))
    table = [dict(zip(("what", "unit", "a", "b"), row, strict=True)) for row in rows]
    return {"a": names[0], "b": names[1], "table": table, "jobs": _most_different(runs)}


def _most_different(runs: tuple[Played, Played]) -> list[dict[str, Any]]:
    both = [(x, y) for x, y in zip(runs[0].runs, runs[1].runs, strict=True) if x.end is not None and y.end is not None]
    both = [(x, y) for x, y in both if differ(x, y)]
    both.sort(key=lambda pair: (-abs(wait_of(pair[0]) - wait_of(pair[1])), pair[0].job.index))
    return [
        {
            "job": x.job.name,
            "gpus": x.job.gpus,
            "pods": x.job.pods,
            "wait_a": wait_of(x),
            "wait_b": wait_of(y),
            "why": _why(x, y),
        }
        for x, y in both[:SHOWN_DIFFERENCES]
    ]


def differ(a: JobRun, b: JobRun) -> bool:
    """Return True if the waits of two runs of a job differ by what people would notice."""
    return abs(wait_of(a) - wait_of(b)) >= LEAST_DIFFERENCE


def _why(a: JobRun, b: JobRun) -> str:
    """Return what distinguishes the two runs of a job."""
    slow, which = (a, "a") if wait_of(a) > wait_of(b) else (b, "b")
    if slow.evictions != (a.evictions if slow is b else b.evictions):
        return f"evicted {slow.evictions} times in {which}"
    promise = (
        f"promised a start by {hours(slow.first_promise)}"
        if slow.first_promise is not None
        else "no start was promised"
    )
    return f"passed by {slow.overtaken} younger jobs in {which}, {promise}"


def compare_text(found: dict[str, Any]) -> str:
    lines = [f"a: {found['a']}", f"b: {found['b']}", "", f"{'':34}{'a':>12}{'b':>12}"]
    for row in found["table"]:
        lines.append(f"{row['what']:34}{_cell(row['unit'], row['a']):>12}{_cell(row['unit'], row['b']):>12}")
    lines += ["", "jobs that differ most:" if found["jobs"] else "every job waits as long in a as in b"]
    for job in found["jobs"]:
        lines.append(
            f"  {job['job']} ({job['gpus']} GPUs): waits {hours(job['wait_a'])} in a, {hours(job['wait_b'])} in b; "
            + job["why"]
        )
    return "\n".join(lines)


def _cell(unit: str, value: Any) -> str:
    if value is None:
        return "-"
    if unit == SECONDS:
        return hours(value)
    return percent(value) if unit == SHARE else str(value)
