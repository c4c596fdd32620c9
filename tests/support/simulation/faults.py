"""Draw the list of faults and their times from the seed, so that a run may be repeated without some of them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from support.simulation.front import Moods
from support.simulation.network import Weather

PROCESSES = ("apiserver", "scheduler-a", "scheduler-b", "controllers", "nodes")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `number` counts over the whole run: leaving one out leaves the others unchanged."""

    number: int
    at: float  # seconds after the round began
    seconds: float
    kind: str
    target: str = ""
    amount: float = 0.0

    def __str__(self) -> str:
        target = f" {self.target}" if self.target else ""
        return f"fault {self.number}: {self.kind}{target} for {self.seconds:.1f} s"


WEATHER = {
    "slow": Weather(delay=0.3, stall=0.05),
    "lossy": Weather(reset=0.02, cut=0.01, refuse=0.1),
    "garbling": Weather(garble=0.01),
    "half-open": Weather(silence=0.01),
    "storm": Weather(delay=0.1, stall=0.05, reset=0.02, cut=0.01, garble=0.005, silence=0.005, refuse=0.2),
}
MOODS = {
    "refusing": Moods(refuse=0.2),
    "conflicting": Moods(conflict=0.3),
    "forgetful": Moods(forget=0.2),
    "repeating": Moods(twice=0.2),
    "expiring": Moods(expired=0.3),
    "behind a proxy": Moods(stray=0.15),
    "moody": Moods(refuse=0.05, conflict=0.05, forget=0.05, twice=0.05, expired=0.05, stray=0.03),
}


def draw(rng: random.Random, seconds: float, first: int) -> list[Fault]:
    """Return the faults of one round, in the order in which they begin."""
    faults = []
    for number in range(first, first + rng.randrange(1, 9)):
        at, lasts = rng.uniform(0, seconds), rng.uniform(0.5, 25.0)
        kind = rng.choice(("crash", "crash", "crash", "weather", "weather", "mood", "mood", "disk", "clock", "pause"))
        target, amount = "", 0.0
        match kind:
            case "crash":
                target = rng.choice(PROCESSES)
            case "weather":
                target = rng.choice(sorted(WEATHER))
            case "mood":
                target = rng.choice(sorted(MOODS))
            case "disk":
                target = rng.choice(("full", "failing", "slow", "lying"))
            case "clock":
                target, amount = rng.choice(PROCESSES), rng.choice((-3600.0, -20.0, -1.0, 1.0, 20.0, 3600.0))
            case "pause":
                amount = rng.uniform(0.5, 20.0)
        faults.append(Fault(number, at, lasts, kind, target, amount))
    return sorted(faults, key=lambda fault: fault.at)
