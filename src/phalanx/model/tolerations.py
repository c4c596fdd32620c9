"""Taints and tolerations: the rule of Kubernetes, used by filters, topology spreading, explanations and nodes."""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.base.well_known import UNSCHEDULABLE_TAINT
from phalanx.model.objects.cluster import Taint
from phalanx.model.objects.devices import DeviceTaint, DeviceToleration
from phalanx.model.objects.pod import Toleration

NO_SCHEDULE = "NoSchedule"
NO_EXECUTE = "NoExecute"
PREFER_NO_SCHEDULE = "PreferNoSchedule"
CORDON = Taint(key=UNSCHEDULABLE_TAINT, effect=NO_SCHEDULE)  # what a cordoned node stands for, with or without it


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    operator = toleration.operator or "Equal"
    if operator == "Exists":
        return True
    if operator == "Equal":
        # An empty key needs Exists; with Equal the API rejects it, and here it matches only an empty taint key.
        return toleration.key == taint.key and toleration.value == taint.value
    if operator in ("Gt", "Lt"):
        return _compares(operator, toleration.value, taint.value)
    return False


def _compares(operator: str, wanted: str, actual: str) -> bool:
    try:
        return int(actual) > int(wanted) if operator == "Gt" else int(actual) < int(wanted)
    except ValueError:
        return False


def tolerates_device(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and toleration.value == taint.value)


def tolerated(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(tolerates(toleration, taint) for toleration in tolerations)


def untolerated(tolerations: Iterable[Toleration], taints: Iterable[Taint]) -> Taint | None:
    """Return the first taint that keeps a pod off (NoSchedule, NoExecute) and is not tolerated."""
    tolerations = tuple(tolerations)
    for taint in taints:
        if taint.effect in (NO_SCHEDULE, NO_EXECUTE) and not tolerated(tolerations, taint):
            return taint
    return None
