"""Check groups that start with fewer pods than they will have (LeaderWorkerSet with LeaderReady, KEP-407).

The annotation `scheduling.phalanx.dev/min-resources` on a PodGroup gives the resources of the whole group. Its first
pod starts only if that much is free, in one domain of its topology key if it has one, after subtracting what other
started groups still lack. Only sums are compared, not placements: fragmentation may still leave a member unschedulable.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from phalanx.engine.groups.build import Built
from phalanx.engine.groups.messages import UNSCHEDULABLE
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.requests import pod_request, requested_amount
from phalanx.model.groups import Group
from phalanx.model.groups.expected_pods import min_resources
from phalanx.model.groups.group import PLACED

Amounts = dict[str, float]  # by resource: milli cpu, else whole units


def wanted(group: Group) -> Amounts:
    """Return the resources that the whole group will need; empty without a valid annotation."""
    return {name: requested_amount(name, quantity) for name, quantity in min_resources(group.source)}


def outstanding(group: Group) -> Amounts:
    """Return the resources that a started group still lacks."""
    lacking = wanted(group)
    if not lacking or not group.placed:
        return {}
    for member in group.members.values():
        if member.state in PLACED:
            for name, value in pod_request(member.pod).amounts.items():
                if name in lacking:
                    lacking[name] -= value
    return {name: value for name, value in lacking.items() if value > 0}


def cannot_complete(columns: Columns, group: Group, others: Iterable[Group], built: Built) -> str | None:
    """Return why the group could not be completed if it started now; None if it may start."""
    whole = wanted(group)
    if not whole or group.placed or group.spec is None:
        return None
    key = group.spec.topology_key
    n = columns.n
    open_rows = columns.alive[:n].copy()
    masks = [shape.mask for shape in built.problem.shapes]
    if masks:
        open_rows &= np.logical_or.reduce(masks)
    ids = built.problem.domains[key][:n] if key is not None else np.zeros(n, dtype=np.int32)
    open_rows &= ids >= 0
    size = int(ids.max(initial=-1)) + 1
    room = np.ones(size, dtype=np.bool_)
    tightest = ""
    owed: Amounts = {}
    if key is None:  # the domains that other groups will use are not known, so only sums over all nodes subtract them
        for other in others:
            if other.key != group.key:
                for name, value in outstanding(other).items():
                    owed[name] = owed.get(name, 0.0) + value
    for name, value in sorted(whole.items()):
        rid = columns.resource(name)
        free = np.maximum(columns.alloc[rid, :n] - columns.used[rid, :n], 0.0)
        sums = np.bincount(ids[open_rows], weights=free[open_rows], minlength=size) - owed.get(name, 0.0)
        fits = sums >= value
        if not fits.any():
            tightest = tightest or name
        room &= fits
    if room.any():
        return None
    where = f" in one domain of {key}" if key is not None else ""
    short = f" (short of {tightest})" if tightest else ""
    return f"{UNSCHEDULABLE}, its first pod fits, but all that are to follow would not{where}{short}"
