"""What all builders share: metadata, selectors, `.dict()` and `.build()`.

Every builder collects plain API JSON. `.dict()` gives that JSON (apiVersion and kind included, ready for a client or a
YAML file); `.build()` gives the typed view of `phalanx.model.objects`. Methods change the builder and return it; use
`.copy()` to branch. Builders never check what they build: tests need wrong objects too.

Arguments that stand for a selector take a dict (matchLabels), a list of `(key, operator, values)` (matchExpressions),
or None (the field is left out, which matches nothing).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Generic, Self, TypeVar

import msgspec

from phalanx.model.kinds import Json as Json

Expression = tuple[str, str, Iterable[str]]
Selector = dict[str, str] | list[Expression]
T = TypeVar("T")

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def selector_json(selector: Selector) -> Json:
    """Make a metav1.LabelSelector from a dict of labels or a list of expressions."""
    if isinstance(selector, dict):
        return {"matchLabels": dict(selector)} if selector else {}
    return {"matchExpressions": [expression_json(e) for e in selector]}


def expression_json(expression: Expression) -> Json:
    key, operator, values = expression
    listed = list(values)
    return {"key": key, "operator": operator, **({"values": listed} if listed else {})}


class Builder(Generic[T]):
    """What all objects share: metadata, `.dict()` and `.build()`."""

    api_version = "v1"
    kind = ""
    namespaced = True
    view: type[T]

    def __init__(self, name: str) -> None:
        self.body: Json = {"apiVersion": self.api_version, "kind": self.kind, "metadata": {"name": name}}
        if self.namespaced:
            self.metadata["namespace"] = "default"

    @property
    def metadata(self) -> Json:
        found: Json = self.body["metadata"]
        return found

    @property
    def spec(self) -> Json:
        found: Json = self.body.setdefault("spec", {})
        return found

    @property
    def status(self) -> Json:
        found: Json = self.body.setdefault("status", {})
        return found

    def dict(self) -> Json:
        """Return the object as API JSON; changing it does not change the builder."""
        return copy.deepcopy(self.body)

    def build(self) -> T:
        """Return the typed view.

        An object without a uid gets one made of its kind and name, so that no two views are equal.
        """
        body = self.dict()
        meta = body["metadata"]
        meta.setdefault("uid", f"{self.kind.lower()}:{meta.get('namespace', '')}/{meta.get('name', '')}")
        return msgspec.convert(body, self.view)

    def copy(self, name: str | None = None) -> Self:
        copied = copy.copy(self)
        copied.body = copy.deepcopy(self.body)
        if name is not None:
            copied.metadata["name"] = name
        return copied

    def _spec(self, **fields: Any) -> Self:
        """Set fields of the spec."""
        self.spec.update(fields)
        return self

    def _status(self, **fields: Any) -> Self:
        """Set fields of the status."""
        self.status.update(fields)
        return self

    def _add(self, field: str, entry: Json) -> Self:
        """Add an entry to a list of the spec."""
        self.spec.setdefault(field, []).append(entry)
        return self

    def ns(self, namespace: str) -> Self:
        self.metadata["namespace"] = namespace
        return self

    def uid(self, uid: str) -> Self:
        self.metadata["uid"] = uid
        return self

    def label(self, key: str, value: str) -> Self:
        self.metadata.setdefault("labels", {})[key] = value
        return self

    def labels(self, labels: Json) -> Self:
        for key, value in labels.items():
            self.label(key, value)
        return self

    def annotate(self, key: str, value: str) -> Self:
        self.metadata.setdefault("annotations", {})[key] = value
        return self

    def generation(self, generation: int) -> Self:
        self.metadata["generation"] = generation
        return self

    def finalizer(self, name: str) -> Self:
        self.metadata.setdefault("finalizers", []).append(name)
        return self

    def created(self, seconds: float) -> Self:
        """Set creationTimestamp, in seconds since 1970."""
        self.metadata["creationTimestamp"] = timestamp(seconds)
        return self

    def deleting(self, seconds: float = 0.0) -> Self:
        """Set deletionTimestamp: the object is being deleted."""
        self.metadata["deletionTimestamp"] = timestamp(seconds)
        return self

    def owner(
        self, kind: str, name: str, uid: str = "", api_version: str = "apps/v1", *, controller: bool = True
    ) -> Self:
        self.metadata.setdefault("ownerReferences", []).append(
            {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": controller}
        )
        return self

    def condition(self, type_: str, status: str, reason: str = "", message: str = "") -> Self:
        found = {"type": type_, "status": status, "reason": reason, "message": message}
        self.status.setdefault("conditions", []).append(found)
        return self


def timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def node_term_json(expressions: Iterable[Expression], fields: Iterable[Expression] = ()) -> Json:
    """Make a NodeSelectorTerm."""
    term: Json = {}
    if made := [expression_json(e) for e in expressions]:
        term["matchExpressions"] = made
    if made := [expression_json(e) for e in fields]:
        term["matchFields"] = made
    return term
