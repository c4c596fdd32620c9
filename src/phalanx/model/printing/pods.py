"""Columns of Pod: readiness, STATUS, restarts, and node."""

from __future__ import annotations

from phalanx.base.clock import parse_rfc3339
from phalanx.base.well_known import POD_SCHEDULED
from phalanx.model.kinds import Column, Json
from phalanx.model.printing.cells import AGE, NAME, NONE, column, condition, holds, human, meta, spec, status, text


def _ended(state: Json, prefix: str = "") -> str:
    """Return in one word how a container ended."""
    if state.get("reason"):
        return f"{prefix}{state['reason']}"
    if state.get("signal"):
        return f"{prefix}Signal:{state['signal']}"
    return f"{prefix}ExitCode:{state.get('exitCode', 0)}"


def _sidecars(obj: Json) -> set[str]:
    items = spec(obj).get("initContainers") or ()
    return {item.get("name") or "" for item in items if item.get("restartPolicy") == "Always"}


class Summary:
    """The columns of a pod: `ready/total`, the reason, the restarts and when the last one was."""

    def __init__(self, obj: Json) -> None:
        found = status(obj)
        self.sidecars = _sidecars(obj)
        self.total = len(spec(obj).get("containers") or ()) + len(self.sidecars)
        self.ready = 0
        self.restarts = 0
        self.last_restart = 0.0
        self.reason = found.get("reason") or found.get("phase") or ""
        if (condition(obj, POD_SCHEDULED) or {}).get("reason") == "SchedulingGated":
            self.reason = "SchedulingGated"
        initializing = self._look_at_init(obj)
        if not initializing or holds(obj, "Initialized"):
            self._forget_plain_init(obj)
            self._look_at_containers(obj)
        self._look_at_deletion(obj)

    def _count(self, container: Json) -> None:
        self.restarts += container.get("restartCount") or 0
        finished = ((container.get("lastState") or {}).get("terminated") or {}).get("finishedAt")
        if finished:
            self.last_restart = max(self.last_restart, parse_rfc3339(finished))

    def _look_at_init(self, obj: Json) -> bool:
        total = len(spec(obj).get("initContainers") or ())
        for index, container in enumerate(status(obj).get("initContainerStatuses") or ()):
            self._count(container)
            state: Json = container.get("state") or {}
            ended, waiting = state.get("terminated"), state.get("waiting") or {}
            if ended is not None and not ended.get("exitCode"):
                continue
            if container.get("name") in self.sidecars and container.get("started"):
                self.ready += bool(container.get("ready"))
                continue
            if ended is not None:
                self.reason = _ended(ended, "Init:")
            elif waiting.get("reason") and waiting["reason"] != "PodInitializing":
                self.reason = f"Init:{waiting['reason']}"
            else:
                self.reason = f"Init:{index}/{total}"
            return True
        return False

    def _forget_plain_init(self, obj: Json) -> None:
        """Count only the restarts of sidecars, not of other init containers, once a pod is initialized."""
        self.restarts, self.last_restart = 0, 0.0
        for container in status(obj).get("initContainerStatuses") or ():
            if container.get("name") in self.sidecars:
                self._count(container)

    def _look_at_containers(self, obj: Json) -> None:
        running, failure = False, ""
        for container in reversed(status(obj).get("containerStatuses") or ()):
            self._count(container)
            state: Json = container.get("state") or {}
            waiting, ended = state.get("waiting") or {}, state.get("terminated")
            if waiting.get("reason"):
                self.reason = waiting["reason"]
            elif ended is not None:
                self.reason = _ended(ended)
                if ended.get("exitCode"):
                    failure = self.reason
            elif container.get("ready") and state.get("running") is not None:
                running = True
                self.ready += 1
        if self.reason == "Completed":
            if running and holds(obj, "Ready"):
                self.reason = "Running"
            elif failure:
                self.reason = failure
            elif running:
                self.reason = "NotReady"

    def _look_at_deletion(self, obj: Json) -> None:
        if not meta(obj).get("deletionTimestamp"):
            return
        if status(obj).get("reason") == "NodeLost":
            self.reason = "Unknown"
        elif status(obj).get("phase") not in ("Succeeded", "Failed"):
            self.reason = "Terminating"


def _ready(obj: Json, now: float) -> str:
    summary = Summary(obj)
    return f"{summary.ready}/{summary.total}"


def _restarts(obj: Json, now: float) -> str:
    summary = Summary(obj)
    if summary.restarts and summary.last_restart:
        return f"{summary.restarts} ({human(now - summary.last_restart)} ago)"
    return str(summary.restarts)


def _address(obj: Json, now: float) -> str:
    found = status(obj)
    addresses = found.get("podIPs") or []
    return str((addresses[0].get("ip") if addresses else found.get("podIP")) or NONE)


def _gates(obj: Json, now: float) -> str:
    gates = spec(obj).get("readinessGates") or []
    if not gates:
        return NONE
    passed = sum(holds(obj, gate.get("conditionType") or "") for gate in gates)
    return f"{passed}/{len(gates)}"


POD: tuple[Column, ...] = (
    NAME,
    column("Ready", _ready, description="Containers that are ready, of all."),
    column("Status", lambda obj, now: Summary(obj).reason, description="The state of the pod in one word."),
    column("Restarts", _restarts, description="Restarts of containers, and when the last one was."),
    AGE,
    column("IP", _address, wide=True),
    column("Node", text("spec.nodeName"), wide=True),
    column("Nominated Node", text("status.nominatedNodeName"), wide=True),
    column("Readiness Gates", _gates, wide=True),
)
