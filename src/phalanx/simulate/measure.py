"""Measurements of a played trace: GPU use, waits by size and priority, overtaking, promises, fragmentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from phalanx.simulate.play import JobRun, Played

SIZES = (("1", 1, 1), ("2-8", 2, 8), ("9-32", 9, 32), ("33-128", 33, 128), (">128", 129, 10**9))  # GPUs of a job
LONG_WAIT = 60.0  # seconds after which a waiting job should have a known start
BOUND = 10.0  # seconds; minimum duration for the slowdown
POINTS = 240  # points per curve of the report

Floats = npt.NDArray[np.float64]


def size_class(gpus: int) -> str:
    return next((name for name, low, high in SIZES if low <= gpus <= high), "0")


def wait_of(run: JobRun) -> float:
    """Return the seconds a finished job waited; work lost by an eviction counts as wait."""
    assert run.end is not None
    return max(0.0, run.end - run.job.submit - run.job.duration)


def measure(played: Played) -> dict[str, Any]:
    """Return all values of the report. Times are in seconds."""
    runs = played.runs
    done = [run for run in runs if run.end is not None and not run.job.carried]
    begin = min(run.job.submit for run in runs)
    last_submit = max(run.job.submit for run in runs)
    last_end = max((run.end for run in runs if run.end is not None), default=begin)
    times, used, queue = _curves(played)
    capacity = played.cluster.capacity or 1.0
    return {
        "cluster": played.cluster.name,
        "nodes": len(played.cluster.nodes),
        "gpus": played.cluster.gpus,
        "counted": played.cluster.counted,
        "jobs": len(runs),
        "estimates": played.estimates,
        "seed": played.seed,
        "settings": {
            "backfill": str(played.settings.backfill),
            "sizeExponent": played.settings.size_exponent,
            "durationExponent": played.settings.duration_exponent,
        },
        "utilisation": _share(times, used, begin, last_submit) / capacity,
        "utilisation_until_last_end": _share(times, used, begin, last_end) / capacity,
        "fragmentation": _share(times, np.array(played.stranded), begin, last_submit) / capacity,
        "makespan_s": last_end - begin,
        "evictions": sum(run.evictions for run in runs),
        "never_started": [run.job.name for run in runs if run.start is None and run.end is None],
        "all": _numbers(done),
        "by_size": {n: _numbers(g) for n, g in _grouped(done, lambda r: size_class(r.job.gpus)).items()},
        "by_priority": {n: _numbers(g) for n, g in _grouped(done, lambda r: str(r.job.priority)).items()},
        "promises": promises(done),
        "curve": _sampled(times, used / capacity, queue, begin, last_end),
        "queue_by_size": _queue_by_size(runs, begin, last_end),
    }


def _grouped(runs: Sequence[JobRun], key: Any) -> dict[str, list[JobRun]]:
    found: dict[str, list[JobRun]] = {}
    for run in runs:
        found.setdefault(key(run), []).append(run)
    names = [name for name, _, _ in SIZES]
    return dict(sorted(found.items(), key=lambda item: names.index(item[0]) if item[0] in names else -1))


def _numbers(runs: Sequence[JobRun]) -> dict[str, Any]:
    if not runs:
        return {"jobs": 0}
    waits = np.array([wait_of(run) for run in runs])
    gpus = np.array([max(1, run.job.gpus) for run in runs])
    durations = np.array([max(run.job.duration, BOUND) for run in runs])
    long = [run for run, wait in zip(runs, waits, strict=True) if wait > LONG_WAIT]
    soon = [r for r in long if r.promised_at is not None and r.promised_at <= r.job.submit + LONG_WAIT]
    return {
        "jobs": len(runs),
        "wait_mean": float(waits.mean()),
        "wait_by_gpus": float((waits * gpus).sum() / gpus.sum()),
        "wait_median": float(np.median(waits)),
        "wait_p99": float(np.percentile(waits, 99)),
        "wait_max": float(waits.max()),
        "slowdown_mean": float(np.maximum(1.0, (waits + durations) / durations).mean()),
        "waited": len(long),
        "promised_within_60s": len(soon) / len(long) if long else None,
    }


def promises(runs: Sequence[JobRun]) -> dict[str, Any]:
    """Return the number of promised starts, how many first promises were kept, and how early the starts were."""
    promised = [r for r in runs if r.first_promise is not None and r.start is not None and r.promised_at != r.start]
    early = [r.first_promise - r.start for r in promised if r.first_promise is not None and r.start is not None]
    reasons: dict[str, int] = {}
    for run in promised:
        if run.moves:
            reasons[run.why_moved] = reasons.get(run.why_moved, 0) + 1
    return {
        "promised": len(promised),
        "first_kept": sum(e >= -0.001 for e in early) / len(promised) if promised else None,
        "moved": sum(run.moves for run in promised),
        "moved_because": reasons,
        "early_median": float(np.median(early)) if early else None,
    }


def _curves(played: Played) -> tuple[Floats, Floats, Floats]:
    table = np.array(played.samples, dtype=np.float64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


def _share(times: Floats, values: Floats, begin: float, end: float) -> float:
    """Return the mean of a step function between two times."""
    if end <= begin:
        return 0.0
    edges = np.append(times, end).clip(begin, end)
    return float((np.diff(edges) * values).sum() / (end - begin))


def _sampled(times: Floats, used: Floats, queue: Floats, begin: float, end: float) -> list[tuple[float, float, int]]:
    points = np.linspace(begin, end, POINTS)
    at = np.maximum(0, np.searchsorted(times, points, side="right") - 1)
    return [(float(t), round(float(used[i]), 4), int(queue[i])) for t, i in zip(points, at, strict=True)]


def _queue_by_size(runs: Sequence[JobRun], begin: float, end: float) -> dict[str, list[int]]:
    points = np.linspace(begin, end, POINTS)
    found: dict[str, list[int]] = {}
    for name, group in _grouped(runs, lambda r: size_class(r.job.gpus)).items():
        came = np.sort([run.job.submit for run in group])
        left = np.sort([run.start if run.start is not None else end + 1 for run in group])
        waiting = np.searchsorted(came, points, side="right") - np.searchsorted(left, points, side="right")
        found[name] = [int(n) for n in waiting]
    return found
