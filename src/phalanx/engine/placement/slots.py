"""Count slots: how many pods of a shape fit on each node, summed by domain."""

from __future__ import annotations

import numpy as np

from phalanx.engine.placement.problem import Floats, Ints, PlacementProblem, ShapeRow

DEVICES = "devices"  # what limits pods whose claims find no devices
MANY = 1 << 40  # unlimited: slots of a shape without requests


def count_slots(request: Floats, free: Floats) -> Ints:
    """Return (M,) ⌊free / request⌋, the minimum over requested resources.

    The result is exact: all values are integers below 2^52.
    """
    least: Floats | None = None
    for r in np.flatnonzero(request):
        fit = free[r] / request[r]
        least = fit if least is None else np.minimum(least, fit, out=least)
    if least is None:
        return np.full(free.shape[1], MANY, dtype=np.int64)
    slots: Ints = least.astype(np.int64)  # truncation is the floor: free is never negative in a healthy column
    return np.maximum(slots, 0, out=slots)


def base_slots(problem: PlacementProblem, shape: ShapeRow) -> Ints:
    """Return (N,) slots by mask, cap and the problem's free capacity."""
    if shape.slots is not None:
        return shape.slots
    slots = count_slots(shape.request, problem.free)
    if shape.cap is not None:
        np.minimum(slots, shape.cap, out=slots)
    slots[~shape.mask] = 0
    return slots


def limiting_resource(problem: PlacementProblem, shape: ShapeRow, nodes: Ints, count: int) -> str | None:
    """Return the requested resource that limits `count` pods on these nodes, or the rule if it is not capacity."""
    allowed = nodes[shape.mask[nodes]]
    if not len(allowed):
        return None
    worst: tuple[float, int] | None = None
    for r in np.flatnonzero(shape.request):
        fit = float(np.floor(problem.free[r, allowed] / shape.request[r]).clip(min=0).sum())
        if worst is None or fit < worst[0]:
            worst = (fit, int(r))
    if shape.cap is not None:
        capped = float(shape.cap[allowed].sum())
        if worst is None or capped < worst[0]:
            return "one node takes only so many of them (host port or anti-affinity)"
    if shape.claims and (worst is None or worst[0] >= count):
        return DEVICES
    return str(problem.resources[worst[1]]) if worst is not None else None
