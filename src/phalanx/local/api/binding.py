"""Binding: set the node of an unassigned pod, once. On the hot path only the fields it reads are decoded."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.base.clock import rfc3339
from phalanx.base.errors import BadRequest, Invalid
from phalanx.base.well_known import POD_SCHEDULED
from phalanx.local.api.change import Changes
from phalanx.local.api.problems import conflict, not_found
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.view import decode, encode
from phalanx.local.store.contract import RevisionMismatch
from phalanx.model.fieldpath import not_supported, required
from phalanx.model.kinds import FieldError, Json, Kind

_DONE = encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
_TRIES = 5
_LOOKED_AT = ("nodeName", "schedulingGates")  # of a spec


class _Pod(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    metadata: dict[str, msgspec.Raw]
    spec: dict[str, msgspec.Raw]
    status: dict[str, Any]
    apiVersion: str  # as written
    kind: str


_decode_pod = msgspec.json.Decoder(_Pod).decode


def _in_parts(value: bytes) -> Json:
    """Decode a pod that will be changed and encoded again.

    Most of its spec and its managedFields stay encoded.
    """
    try:
        pod = _decode_pod(value)
    except msgspec.ValidationError:
        whole: Json = decode(value)
        return whole
    metadata: Json = {name: part if name == "managedFields" else decode(part) for name, part in pod.metadata.items()}
    spec: Json = {name: decode(part) if name in _LOOKED_AT else part for name, part in pod.spec.items()}
    return {"apiVersion": pod.apiVersion, "kind": pod.kind, "metadata": metadata, "spec": spec, "status": pod.status}


class Bindings:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def bind(self, request: Request, binding: Json, *, dry_run: bool) -> Answer:
        changes = self._changes
        pods = request.kind if request.subresource else changes.ctx.registry.by_storage_key("pods")
        assert pods is not None
        metadata = binding.get("metadata") or {}
        name = request.name or metadata.get("name") or ""
        if metadata.get("name", name) != name:
            raise BadRequest("name in URL does not match name in Binding object")
        if not name:
            raise BadRequest("name must be provided")
        if (metadata.get("namespace") or request.namespace) != request.namespace:
            raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")
        node = _target(binding, name)
        key = ("pods", request.namespace, name)
        for _ in range(_TRIES):
            entry = changes.store.latest(key)
            if entry is None:
                raise not_found(pods, name)
            # Quotas count the requests of a spec, and need the whole spec.
            pod: Json = decode(entry.value) if changes.storing.beyond else _in_parts(entry.value)
            changes.check_preconditions(pods, name, metadata, pod["metadata"])
            self._assign(pods, pod, node, metadata)
            if dry_run:
                return Answer(201, _DONE)
            try:
                await changes.storing.put(pods, key, pod, entry.revision)
            except RevisionMismatch:
                continue
            return Answer(201, _DONE)
        raise conflict(pods, name, "the pod keeps changing", "pods/binding")

    def _assign(self, kind: Kind, pod: Json, node: str, metadata: Json) -> None:
        spec, own = pod["spec"], pod["metadata"]
        name = own["name"]
        if own.get("deletionTimestamp"):
            raise conflict(kind, name, f"pod {name} is being deleted, cannot be assigned to a host", "pods/binding")
        if spec.get("nodeName"):
            why = f'pod {name} is already assigned to node "{spec["nodeName"]}"'
            raise conflict(kind, name, why, "pods/binding")
        if spec.get("schedulingGates"):
            raise conflict(kind, name, f"pod {name} has non-empty .spec.schedulingGates", "pods/binding")
        spec["nodeName"] = node
        status = pod.setdefault("status", {})
        status.pop("nominatedNodeName", None)
        for field in ("annotations", "labels"):
            if metadata.get(field):
                own[field] = {**(own.get(field) or {}), **metadata[field]}
        set_condition(status, POD_SCHEDULED, "True", rfc3339(self._changes.ctx.clock.now()))


def set_condition(status: Json, kind: str, value: str, now: str, reason: str = "", message: str = "") -> None:
    """Set a condition in the status of a pod; its time changes only when its status does."""
    fresh: Json = {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": now}
    if reason:
        fresh["reason"] = reason
    if message:
        fresh["message"] = message
    kept = []
    for condition in status.get("conditions") or []:
        if condition.get("type") != kind:
            kept.append(condition)
        elif condition.get("status") == value:
            fresh["lastTransitionTime"] = condition.get("lastTransitionTime") or now
            if condition.get("observedGeneration"):
                fresh["observedGeneration"] = condition["observedGeneration"]
    del fresh["lastProbeTime"]
    status["conditions"] = [*kept, fresh]


def _target(binding: Json, name: str) -> str:
    target = binding.get("target") or {}
    errors: list[FieldError] = []
    if target.get("kind") not in (None, "", "Node"):
        errors.append(not_supported("target.kind", target.get("kind"), ("Node", "<empty>")))
    if not target.get("name"):
        errors.append(required("target.name"))
    if errors:
        raise Invalid(
            f'Binding "{name}" is invalid: ' + ", ".join(str(error) for error in errors),
            name=name,
            kind="Binding",
            causes=[{"reason": error.type, "message": error.message, "field": error.path} for error in errors],
        )
    return str(target["name"])
