"""Run the whole system under one deterministic simulator: every process, the network, the disk and the clocks.

    make simulate SEED=7 STEPS=100000

A run is rounds of faults, each followed by a calm period in which everything must settle and be consistent. Invariants
are checked after every step. A seed that fails prints the shortest history that still fails, and replays exactly.
"""

from support.simulation.invariants import PROMISES, Violation
from support.simulation.run import Result, minimise, simulate

__all__ = ["PROMISES", "Result", "Violation", "minimise", "simulate"]
