"""Reservations: which room a unit may use, from when until when. Promised starts and backfill are planned here."""

from phalanx.engine.reservations.capacity import CapacityProfile, TopologyLevels
from phalanx.engine.reservations.reservation import FOREVER, Assignment, Demand, Reason, Reservation
from phalanx.engine.reservations.start_planner import StartPlanner
from phalanx.engine.reservations.units import (
    Backfill,
    Decisions,
    PlanSettings,
    Start,
    StartPromise,
    Unit,
    expected_seconds,
)

__all__ = [
    "FOREVER",
    "Assignment",
    "Backfill",
    "CapacityProfile",
    "Decisions",
    "Demand",
    "PlanSettings",
    "Reason",
    "Reservation",
    "Start",
    "StartPlanner",
    "StartPromise",
    "TopologyLevels",
    "Unit",
    "expected_seconds",
]
