"""Score of claims for parts of devices: fill devices that are already in use and keep whole devices free."""

from __future__ import annotations

from phalanx.engine.devices.inventory import Device
from phalanx.engine.devices.requests import AllocationRequest
from phalanx.engine.devices.state import DeviceState
from phalanx.engine.framework.interface import MAX_SCORE
from phalanx.engine.plugins.device_filter import DeviceScore
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.shapes import Shape


class PackingScore(DeviceScore):
    """Score nodes from 0 to 100 by best-fit packing, which keeps fragments small.

    The fraction of a device that would remain free lowers the score. If the request uses whole devices, a larger number
    of suitable whole devices on the node lowers it.
    """

    def __init__(self, state: DeviceState, shape: Shape, columns: Columns, request: AllocationRequest) -> None:
        super().__init__(state, shape, columns)
        self._request = request

    @classmethod
    def of(cls, state: DeviceState, shape: Shape, columns: Columns) -> PackingScore | None:
        """Return the score tracker; None if the claim of the shape is not for parts of devices."""
        spec = state.own_spec(shape)
        request = spec.only_request if spec is not None else None
        if request is None or request.admin or not request.capacity:
            return None
        return cls(state, shape, columns, request)

    def _score(self, row: int) -> float:
        request, state = self._request, self.state
        left = [
            share
            for device in state.view(row).devices
            if device.multiple
            and request.selects(device, state.selectors) is True
            and (share := left_over(state, request, device)) is not None
        ]
        if len(left) < request.count:
            return 0.0
        if request.count == 1 and (least := min(left)) > 0.0:
            return round(MAX_SCORE * (1.0 - least))
        whole = sum(share == 0.0 for share in left)
        return round(MAX_SCORE * request.count / max(whole, request.count))


def left_over(state: DeviceState, request: AllocationRequest, device: Device) -> float | None:
    """Return the largest fraction of a capacity that would remain free on a device; None: it has too little."""
    takes = request.takes(device)
    if takes is None:
        return None
    most = 0.0
    for name, amount in takes.items():
        limit = device.capacity[name].value
        left = limit - state.holdings.consumed(device, name) - amount
        if left < 0:
            return None
        most = max(most, left / limit if limit else 0.0)
    return most
