"""Store the reservations of a group in a condition of its status, for the next scheduler process.

It is in the status because users may not write it, and in a condition's message, as a JSON object, because the native
PodGroup of Kubernetes has no other field.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.base.clock import rfc3339
from phalanx.engine.framework import Emit
from phalanx.engine.groups.conditions import set_condition
from phalanx.engine.groups.restarts import seconds_of
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.requests import CPU, PODS, pod_request
from phalanx.model.groups import POD_GROUP, Group, GroupForest, GroupKey
from phalanx.model.groups.group import PLACED
from phalanx.model.objects import Pod
from phalanx.model.objects.meta import ObjectMeta
from phalanx.model.objects.pod import Container, PodSpec, ResourceRequirements

ROOM_RESERVED = "scheduling.phalanx.dev/RoomReserved"
ROLLOUT, REPLACEMENT, NONE = "Rollout", "Replacement", "NothingReserved"
MOST_TEXT = 30_000  # characters of a message; Kubernetes allows 32,768
MOST_SECONDS = 600.0  # longest valid reservation: a scheduler never writes a longer one


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Room on a node for replacements of the lost pods with these names, which have equal requests."""

    node: str
    pods: tuple[str, ...]
    requests: dict[str, str]
    until: str  # RFC 3339
    rolls: bool = False
    scheduler: str = "default-scheduler"


class _Room(msgspec.Struct, frozen=True):
    at: str  # RFC 3339; when it was written
    places: tuple[Place, ...]


class Reserved(msgspec.Struct):
    """Room for one expected pod."""

    leaf: GroupKey
    lost: str  # name of the replaced pod
    record: PodRecord  # the expected pod
    until: float  # seconds
    node: str
    rolls: bool = False  # for a rolled or restarted replica: ends when the group has its minimum
    claimed_by: tuple[str, str] = ("", "")  # key and uid of the arrived pod, which is nominated itself


class StoredRoom(msgspec.Struct):
    """Reservations of an earlier process for a group."""

    at: float  # seconds
    reason: str
    places: tuple[Place, ...]


class RoomConditions:
    """Write the condition of groups whose reservations have changed, once per step."""

    def __init__(self, forest: GroupForest, emit: Emit) -> None:
        self._forest, self._emit = forest, emit
        self._changed: dict[GroupKey, None] = {}
        self._written: dict[GroupKey, tuple[str, tuple[Place, ...] | None]] = {}  # leaf -> uid, places; None: unknown

    def touch(self, leaf: GroupKey) -> None:
        self._changed[leaf] = None

    def write_failed(self, leaf: GroupKey) -> None:
        """Handle a failed write: it is repeated when the group is touched."""
        uid, _ = self._written.get(leaf, ("", None))
        self._written[leaf] = (uid, None)

    def restored(self, group: Group, stored: StoredRoom) -> None:
        """Record the content of a restored condition."""
        if group.spec is not None:
            self._written[group.key] = (group.spec.uid, stored.places)
        self.touch(group.key)

    def notify(self, reserved: Iterable[Reserved], now: float) -> None:
        if not self._changed:
            return
        changed, self._changed = self._changed, {}
        found: dict[GroupKey, list[Reserved]] = {leaf: [] for leaf in changed}
        for each in reserved:
            if each.leaf in found:
                found[each.leaf].append(each)
        for leaf, held in found.items():
            self._report(leaf, held, now)

    def _report(self, leaf: GroupKey, held: list[Reserved], now: float) -> None:
        group = self._forest.group(leaf)
        if group is None or group.spec is None or group.source is None or leaf.kind != POD_GROUP:
            self._written.pop(leaf, None)
            return
        places = _places(held)
        if any(each.rolls for each in held):
            places += _present(group, held)
        uid, before = self._written.get(leaf, ("", ()))
        if places == (before if uid == group.spec.uid else ()):
            return
        self._written[leaf] = (group.spec.uid, places)
        if not places:
            del self._written[leaf]
        reason = (ROLLOUT if any(each.rolls for each in held) else REPLACEMENT) if places else NONE
        status, message = ("True", _text(places, now)) if places else ("False", "")
        set_condition(self._emit, group, ROOM_RESERVED, status, reason, message)


def _places(held: Iterable[Reserved]) -> tuple[Place, ...]:
    return _merged(
        (each.lost, _place(each.node, each.record.pod, each.until, rolls=each.rolls))
        for each in held
        if each.record.pod is not None
    )


def _place(node: str, pod: Pod, until: float, *, rolls: bool) -> Place:
    return Place(node, (), _requests(pod), rfc3339(until), rolls, pod.spec.scheduler_name)


def _merged(found: Iterable[tuple[str, Place]]) -> tuple[Place, ...]:
    """Return one place for all pods whose places are the same."""
    merged: dict[tuple[object, ...], tuple[Place, list[str]]] = {}
    for pod, place in found:
        key = (*msgspec.structs.astuple(place)[:2], tuple(place.requests.items()), *msgspec.structs.astuple(place)[3:])
        merged.setdefault(key, (place, []))[1].append(pod)
    return tuple(msgspec.structs.replace(place, pods=tuple(pods)) for place, pods in merged.values())


def _present(group: Group, held: list[Reserved]) -> tuple[Place, ...]:
    """Return the places of the members that are left of a group whose owner restarts its pods.

    The owner ends them next. If this process is killed before it sees that, only this condition has their places.
    """
    until = max((each.until for each in held if each.rolls), default=0.0)
    names = {each.lost for each in held}
    return _merged(
        (key.name, _place(member.node, member.pod, until, rolls=True))
        for key, member in group.members.items()
        if member.state in PLACED and key.name not in names
    )


def _requests(pod: Pod) -> dict[str, str]:
    return {
        name: f"{int(amount)}m" if name == CPU else f"{int(amount)}"
        for name, amount in sorted(pod_request(pod).amounts.items())
        if name != PODS and amount
    }


def _text(places: tuple[Place, ...], now: float) -> str:
    """Return the message, with as many places as fit."""
    text = msgspec.json.encode(_Room(rfc3339(now), places)).decode()
    return text if len(text) <= MOST_TEXT else _text(places[: len(places) // 2], now)


def stored_room(group: Group) -> StoredRoom | None:
    """Return the reservations of an earlier scheduler process for a group; None if there are none or they are
    invalid."""
    conditions = (group.source.status.conditions or ()) if group.source is not None else ()
    condition = next((each for each in conditions if each.type == ROOM_RESERVED and each.status == "True"), None)
    if condition is None:
        return None
    try:
        room = msgspec.json.decode(condition.message, type=_Room)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return None
    at = seconds_of(room.at)
    return StoredRoom(at, condition.reason, room.places) if at is not None else None


def ends(place: Place, now: float) -> float:
    """Return when the reservation of a place ends, in seconds."""
    return min(seconds_of(place.until) or now, now + MOST_SECONDS)


def model_of(place: Place, group: Group, name: str, priority: int) -> Pod:
    """Return a pod with the requests of the lost one."""
    spec = PodSpec(
        scheduler_name=place.scheduler,
        priority=priority,
        containers=[Container(name="main", resources=ResourceRequirements(requests=dict(place.requests)))],
    )
    return Pod(metadata=ObjectMeta(name=name, namespace=group.key.namespace), spec=spec)
