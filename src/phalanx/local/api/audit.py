"""The audit log: every request and its result, one audit.k8s.io/v1 Event per line, at level Metadata.

Never contains bodies, tokens or messages (a message may repeat a value of a body). A line is written when an answer is
complete, for watches also when it begins.
"""

from __future__ import annotations

import logging
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from phalanx.base.clock import Clock, rfc3339_micro
from phalanx.base.errors import ConfigProblem
from phalanx.base.ids import new_uid
from phalanx.local.api.request import User
from phalanx.local.api.rights import ALLOWED, Attributes, Decision
from phalanx.local.api.view import encode

log = logging.getLogger("phalanx.api")


class AuditRecord(msgspec.Struct):
    """One request, filled in as it becomes known."""

    uri: str
    method: str
    agent: str = ""
    source: str = ""
    received: float = 0.0
    user: User | None = None
    acting: User | None = None
    asked: Attributes | None = None
    decision: Decision = ALLOWED
    id: str = ""
    annotations: dict[str, str] = msgspec.field(default_factory=dict)  # of admission policies


@dataclass(slots=True)
class Audit:
    path: Path
    clock: Clock
    rng: random.Random
    _descriptor: int = field(default=-1)
    _failing: bool = False

    def open(self) -> None:
        """Open the audit log for appending, with mode 600. Raises ConfigProblem."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            self._descriptor = os.open(self.path, flags, 0o600)
            os.fchmod(self._descriptor, 0o600)
        except OSError as problem:
            raise ConfigProblem("--audit-log", f"cannot write {self.path}: {problem.strerror or problem}") from None

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def begin(self, scope: Any) -> AuditRecord:
        raw = scope.get("raw_path") or scope["path"].encode()
        query: bytes = scope["query_string"]
        uri = raw + (b"?" + query if query else b"")
        client = scope.get("client")
        agent = next((value for name, value in scope["headers"] if name == b"user-agent"), b"")
        return AuditRecord(
            uri.decode("latin-1"),
            scope["method"],
            agent.decode("latin-1"),
            str(client[0]) if client else "",
            self.clock.now(),
            id=new_uid(self.rng),
        )

    def write(self, record: AuditRecord, code: int, stage: str = "ResponseComplete") -> None:
        event = _event(record, code, stage, self.clock.now())
        try:
            os.write(self._descriptor, encode(event) + b"\n")
            self._failing = False
        except OSError as problem:  # a full disk must not stop the cluster; it is logged once
            if not self._failing:
                log.error("the audit log %s cannot be written: %s", self.path, problem.strerror or problem)
            self._failing = True


def _event(record: AuditRecord, code: int, stage: str, now: float) -> dict[str, Any]:
    asked = record.asked
    event: dict[str, Any] = {
        "kind": "Event",
        "apiVersion": "audit.k8s.io/v1",
        "level": "Metadata",
        "auditID": record.id,
        "stage": stage,
        "requestURI": record.uri,
        "verb": asked.verb if asked is not None else record.method.lower(),
        "user": _user(record.user),
        "sourceIPs": [record.source] if record.source else [],
        "userAgent": record.agent,
    }
    if record.acting is not None:
        event["impersonatedUser"] = _user(record.acting)
    if asked is not None and asked.resource:
        about = {
            "resource": asked.resource,
            "namespace": asked.namespace,
            "name": asked.name,
            "apiGroup": asked.group,
            "apiVersion": asked.version,
            "subresource": asked.subresource,
        }
        event["objectRef"] = {key: value for key, value in about.items() if value}
    event["responseStatus"] = {"metadata": {}, "code": code, **({"status": "Failure"} if code >= 400 else {})}
    event["requestReceivedTimestamp"] = rfc3339_micro(record.received)
    event["stageTimestamp"] = rfc3339_micro(now)
    if record.user is not None:
        word = "allow" if record.decision.allowed else "forbid"
        event["annotations"] = {
            "authorization.k8s.io/decision": word,
            "authorization.k8s.io/reason": record.decision.reason,
            **record.annotations,
        }
    return event


def _user(user: User | None) -> dict[str, Any]:
    if user is None:
        return {}
    shown: dict[str, Any] = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        shown["uid"] = user.uid
    if user.extra:
        shown["extra"] = {key: list(values) for key, values in user.extra.items()}
    return shown
