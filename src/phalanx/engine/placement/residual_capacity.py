"""Value residual capacity: how many pods of usual sizes the nodes could still take.

A gang is placed without knowing which pods come next. Of two placements, the better one leaves more usable capacity:
devices on nodes with enough free cpu and memory to use them, and nodes without devices in pieces that are not too
small.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phalanx.engine.placement.problem import Floats, Ints
from phalanx.engine.state.requests import is_device

PLAIN = frozenset({"cpu", "memory", "ephemeral-storage"})
SIZES = 4  # device counts per pod: powers of two, up to the most free on a node
DEMAND_SIZES = np.arange(3, 11) / 10.0  # cpu and memory per device, as shares of the node's amount per device
PIECES = (0.25, 0.5, 1.0)  # pod sizes, as shares of the largest node, by resource
PLAIN_SHARE = 0.1  # weight of pods without devices; each kind of device has weight 1
UNUSABLE_SHARE = 0.05  # weight of capacity that no usual pod could use; breaks ties
ROUNDING = 1e-9


def split_resources(names: Sequence[str]) -> tuple[Ints, Ints]:
    """Return (rows of resources that every node has, rows of devices); the pod count is neither."""
    plain = [row for row, name in enumerate(names) if name in PLAIN]
    devices = [row for row, name in enumerate(names) if is_device(name)]
    return np.array(plain, dtype=np.int64), np.array(devices, dtype=np.int64)


class ResidualCapacity:
    """Value nodes by what is left on them, relative to what the area had: (R, K) to (K,)."""

    def __init__(self, free: Floats, plain: Ints, devices: Ints) -> None:
        self._plain = plain
        self._others = [np.delete(np.arange(len(plain)), row) for row in range(len(plain))]
        peak = free.max(axis=1, initial=0.0)
        self._unit = 1.0 / np.where(peak > 0, peak, 1.0)
        self._hosts = [_Hosts(free, plain, row) for row in devices if peak[row] > 0]
        self._weights = [1.0 / max(1.0, float(hosts.pods(free).sum())) for hosts in self._hosts]
        self._plain_weight = PLAIN_SHARE / max(1.0, float(self._plain_pods(free).sum()))
        self._devices = [hosts.row for hosts in self._hosts]
        self._unusable_weight = UNUSABLE_SHARE / max(ROUNDING, float(self._residual_shares(free).sum()))

    def __call__(self, left: Floats) -> Floats:
        worth = self._plain_weight * self._plain_pods(left) + self._unusable_weight * self._residual_shares(left)
        for hosts, weight in zip(self._hosts, self._weights, strict=True):
            worth += weight * hosts.pods(left)
        return worth

    def _plain_pods(self, left: Floats) -> Floats:
        """Count pods with equal shares of all resources, and pods with a larger share of one resource."""
        total: Floats = np.zeros(left.shape[1])
        if not len(self._plain):
            return total
        shares = left[self._plain] * self._unit[self._plain, None]
        fit = [np.floor(shares / piece + ROUNDING) for piece in PIECES]
        for large, piece in enumerate(fit):
            total += piece.min(axis=0)
            for small in fit[:large]:
                for row, others in enumerate(self._others):
                    least = small[others[0]] if len(others) == 1 else small[others].min(axis=0, initial=np.inf)
                    total += np.minimum(piece[row], least)
        return total

    def _residual_shares(self, left: Floats) -> Floats:
        """Return the squared share of a node's scarcest resource: prefers balanced leftovers and empty nodes."""
        shares = left * self._unit[:, None]
        plain = shares[self._plain].min(axis=0, initial=1.0)
        worth: Floats = 0.5 * plain * plain
        for row in self._devices:
            both = np.minimum(shares[row], plain)
            worth += both * both
        return worth


class _Hosts:
    """Value the nodes with one kind of device."""

    def __init__(self, free: Floats, plain: Ints, row: int) -> None:
        self.row = row
        self._plain = plain
        most = free[:, free[row] > 0].max(axis=1)
        largest = 2.0 ** np.floor(np.log2(most[row]))
        self._sizes = largest / 2.0 ** np.arange(SIZES)
        self._sizes = self._sizes[self._sizes >= 1.0]
        self._typical_requests = self._sizes[:, None] * DEMAND_SIZES  # (sizes, appetites)
        # Converts an amount of each plain resource to the number of devices that it serves.
        self._fed = most[row] / np.where(most[plain] > 0, most[plain], 1.0)

    def pods(self, left: Floats) -> Floats:
        """Return the number of pods that fit, summed over device counts and cpu/memory ratios."""
        here = left[self.row]
        total: Floats = np.zeros(left.shape[1])
        at = np.flatnonzero(here >= self._sizes[-1])
        if not len(at):
            return total
        fed = (left[self._plain][:, at] * self._fed[:, None]).min(axis=0, initial=np.inf)
        whole = np.floor(here[at] / self._sizes[:, None])  # (sizes, K)
        total[at] = np.minimum(np.floor(fed / self._typical_requests[:, :, None] + ROUNDING), whole[:, None]).sum(
            axis=(0, 1)
        )
        return total
