"""Store how often a gang was restarted, for the next scheduler process.

The status of our PodGroups has fields for it. That of kube-apiserver 1.37 has none, so it is also in the message of a
condition, as a JSON object. It is in the status because users may not write it.
"""

from __future__ import annotations

import msgspec

from phalanx.base.clock import parse_rfc3339, rfc3339
from phalanx.engine.framework import Emit
from phalanx.engine.groups.conditions import set_condition
from phalanx.model.groups import Group, GroupKey
from phalanx.model.objects import CompositePodGroup, PodGroup

RESTARTED = "scheduling.phalanx.dev/Restarted"


class Restarts(msgspec.Struct, frozen=True):
    """How often a policy ended a gang or its members, and when it last did, in seconds."""

    count: int = 0
    last: float = 0.0


NO_RESTARTS = Restarts()


class _Message(msgspec.Struct, frozen=True):
    restarts: int
    last: str  # RFC 3339


def stored_restarts(obj: PodGroup | CompositePodGroup) -> Restarts:
    """Return the restarts that an earlier process has written to a group."""
    found = Restarts(obj.status.restarts, seconds_of(obj.status.last_restart_time) or 0.0)
    for condition in obj.status.conditions or ():
        if condition.type == RESTARTED and condition.status == "True":
            try:
                message = msgspec.json.decode(condition.message, type=_Message)
            except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
                continue
            if message.restarts > found.count:
                found = Restarts(message.restarts, seconds_of(message.last) or 0.0)
    return found


class RestartConditions:
    """Write the condition when a gang is restarted, once for each restart."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._written: dict[GroupKey, Restarts] = {}

    def seen(self, key: GroupKey, restarts: Restarts) -> None:
        self._written[key] = restarts

    def forget(self, key: GroupKey) -> None:
        """Handle a deleted group, or a failed write: it is written on the next occasion."""
        self._written.pop(key, None)

    def report(self, group: Group, restarts: Restarts) -> None:
        if self._written.get(group.key) == restarts:
            return
        self._written[group.key] = restarts
        message = msgspec.json.encode(_Message(restarts.count, rfc3339(restarts.last))).decode()
        set_condition(self._emit, group, RESTARTED, "True", "Restarted", message)


def seconds_of(text: str | None) -> float | None:
    """Return an RFC 3339 time in seconds; None if there is none, or it is invalid."""
    try:
        return parse_rfc3339(text) if text else None
    except ValueError:
        return None
