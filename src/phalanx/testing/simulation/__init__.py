"""The whole system under one deterministic simulator: every process, the network, the disk and the clocks, by seed.

    make simulate SEED=7 STEPS=100000

A run is rounds of faults, each followed by calm in which everything must come to rest and be in order. Promises are
checked after every step. A seed that fails prints the shortest story that still fails, and replays exactly.
"""

from phalanx.testing.simulation.invariants import PROMISES, Violation
from phalanx.testing.simulation.run import Result, minimise, simulate

__all__ = ["PROMISES", "Result", "Violation", "minimise", "simulate"]
