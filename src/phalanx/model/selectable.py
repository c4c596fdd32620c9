"""Field selectors of the built-in kinds: which paths may be selected on, and the text an object shows there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.model.kinds import Json

Show = Callable[[Json], str]


class Shown:
    """The text at a dotted path; `absent` is the zero value of the field's type."""

    __slots__ = ("_absent", "path")

    def __init__(self, path: str, absent: str = "") -> None:
        self.path = tuple(path.split("."))
        self._absent = absent

    def __call__(self, obj: Json) -> str:
        at: Any = obj
        for name in self.path:
            if not isinstance(at, dict):
                return self._absent
            at = at.get(name)
        return self.text(at)

    def text(self, value: Any) -> str:
        if value is None:
            return self._absent
        if value is True or value is False:
            return "true" if value else "false"
        return str(value)


def _event_source(obj: Json) -> str:
    return Shown("source.component")(obj) or Shown("reportingComponent")(obj)


def _pod_ips(obj: Json) -> str:
    ips = (obj.get("status") or {}).get("podIPs") or ()
    return ",".join(str(entry.get("ip", "")) for entry in ips)


def _paths(*paths: str, **absent: str) -> dict[str, Show]:
    return {path: Shown(path, absent.get(path.rpartition(".")[2], "")) for path in paths}


_EVENT_TARGET = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
_EVENT = _paths("reason", "reportingComponent", "type") | {"source": _event_source}

# By storage key. Rules see the storage version, so the events.k8s.io names read the core fields.
SELECTABLE: dict[str, dict[str, Show]] = {
    "pods": _paths(
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName", hostNetwork="false",
    ) | {"status.podIPs": _pod_ips},
    "nodes": _paths("spec.unschedulable", unschedulable="false"),
    "namespaces": _paths("status.phase"),
    "secrets": _paths("type"),
    "services": _paths("spec.clusterIP", "spec.type"),
    "replicasets.apps": _paths("status.replicas", replicas="0"),
    "replicationcontrollers": _paths("status.replicas", replicas="0"),
    "certificatesigningrequests.certificates.k8s.io": _paths("spec.signerName"),
    "clustertrustbundles.certificates.k8s.io": _paths("spec.signerName"),
    "podcertificaterequests.certificates.k8s.io": _paths("spec.signerName", "spec.podName", "spec.nodeName"),
    "jobs.batch": {"status.successful": Shown("status.succeeded", "0")},
    "resourceslices.resource.k8s.io": _paths("spec.nodeName", "spec.driver"),
    "events": _paths(*(f"involvedObject.{name}" for name in _EVENT_TARGET)) | _EVENT,
    "events.events.k8s.io": {f"regarding.{name}": Shown(f"involvedObject.{name}") for name in _EVENT_TARGET}
    | {"reason": _EVENT["reason"], "reportingController": _EVENT["reportingComponent"], "type": _EVENT["type"]},
}  # fmt: skip
