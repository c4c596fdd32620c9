"""Run-time estimates for the scheduler. Equal modes and seeds give equal estimates."""

from __future__ import annotations

import math
import random

from phalanx.simulate.trace import Job

MODES = ("given", "upper", "noisy", "exact")
# Typical time limits of users in seconds; generated estimates are rounded up to one of these.
TYPED_LIMITS = (600, 1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 259200, 604800, 1209600)
DAY = 86400


def estimate_of(job: Job, mode: str, seed: int) -> float:
    """Return the estimated duration of a job in seconds.

    given: the trace's estimate, at least the duration; `upper` if it has none.
    upper: duration x (1 + an exponential number of mean 1), rounded up to a typical limit.
    noisy: duration x a log-normal factor (sigma 0.5): about half of the jobs overrun.
    exact: the duration.
    """
    if mode == "exact":
        return job.duration
    if mode == "given" and job.estimate is not None:
        return max(job.estimate, job.duration)
    draw = random.Random(f"{seed}:{job.name}")
    if mode == "noisy":
        return max(60.0, float(round(job.duration * math.exp(draw.gauss(0.0, 0.5)))))
    wanted = job.duration * (1.0 + draw.expovariate(1.0))
    for limit in TYPED_LIMITS:
        if limit >= wanted:
            return float(limit)
    return float(max(TYPED_LIMITS[-1], math.ceil(job.duration / DAY) * DAY))
