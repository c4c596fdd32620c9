"""Which writes a webhook or a policy is about: rules, selectors of namespaces and objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from phalanx.local.api.request import Request
from phalanx.local.store.contract import StoreProtocol
from phalanx.model.kinds import Json, Kind, Version
from phalanx.model.selectors import LabelMatcher, from_selector

GROUP = "admissionregistration.k8s.io"
MUTATING = f"mutatingwebhookconfigurations.{GROUP}"
VALIDATING = f"validatingwebhookconfigurations.{GROUP}"
VALIDATING_POLICIES = f"validatingadmissionpolicies.{GROUP}"
VALIDATING_BINDINGS = f"validatingadmissionpolicybindings.{GROUP}"
MUTATING_POLICIES = f"mutatingadmissionpolicies.{GROUP}"
MUTATING_BINDINGS = f"mutatingadmissionpolicybindings.{GROUP}"
# Kinds that no webhook or policy sees: a mistake in one could not be undone.
EXEMPT = frozenset(
    (MUTATING, VALIDATING, VALIDATING_POLICIES, VALIDATING_BINDINGS, MUTATING_POLICIES, MUTATING_BINDINGS)
)


class Admitted(msgspec.Struct):
    """One write, as webhooks and policies match it."""

    request: Request
    operation: str  # CREATE, UPDATE, DELETE, CONNECT
    new: Json | None  # in the storage version
    old: Json | None
    dry_run: bool
    own: tuple[str, str, str] | None = None  # (group, version, kind) where a subresource has its own kind

    @property
    def name(self) -> str:
        return self.request.name or str(((self.new or {}).get("metadata") or {}).get("name") or "")


class RuleSelectors(msgspec.Struct, frozen=True):
    """Selectors of namespaces and objects, compiled."""

    namespaces: LabelMatcher
    objects: LabelMatcher

    @classmethod
    def of(cls, body: Json) -> RuleSelectors:
        return cls(from_selector(body.get("namespaceSelector") or {}), from_selector(body.get("objectSelector") or {}))

    def choose(self, about: Admitted, store: StoreProtocol) -> bool:
        """Return whether the object and its namespace are selected."""
        if not self.namespaces.everything:
            kind, labels = about.request.kind, None
            if kind.key == "namespaces":
                labels = labels_of(about.new if about.new is not None else about.old)
            elif kind.namespaced:
                entry = store.latest(("namespaces", "", about.request.namespace))
                labels = (entry.index.labels or {}) if entry is not None else {}
            if labels is not None and not self.namespaces.matches(labels):
                return False
        if self.objects.everything:
            return True
        return any(obj is not None and self.objects.matches(labels_of(obj)) for obj in (about.new, about.old))


def labels_of(obj: Json | None) -> dict[str, str]:
    return ((obj or {}).get("metadata") or {}).get("labels") or {}


def matched_version(rules: Iterable[Json], match_policy: Any, about: Admitted) -> Version | None:
    """Return the version of the kind that the rules name; None if they do not match this write."""
    request = about.request
    versions = (request.version,) if match_policy == "Exact" else (request.version, *request.kind.versions)
    for version in versions:
        if any(rule_matches(rule, about, version) for rule in rules):
            return version
    return None


def rule_matches(rule: Json, about: Admitted, version: Version) -> bool:
    """Return whether one rule is about a write in a version of its kind."""
    request = about.request
    kind = request.kind
    for wanted, found in (("operations", about.operation), ("apiGroups", kind.group), ("apiVersions", version.name)):
        values = rule.get(wanted) or ()
        if found not in values and "*" not in values:
            return False
    scope = rule.get("scope") or "*"
    if scope != "*" and scope != ("Namespaced" if kind.namespaced else "Cluster"):
        return False
    names = rule.get("resourceNames")
    if names and about.name not in names:
        return False
    return any(_resource(pattern, kind, request.subresource) for pattern in rule.get("resources") or ())


def _resource(pattern: str, kind: Kind, subresource: str) -> bool:
    """Return True if the resource of a rule matches this kind and subresource.

    `pods` and `*` are about objects alone; `pods/status`, `pods/*`, `*/status` and `*/*` about subresources.
    """
    name, slash, below = pattern.partition("/")
    if name not in ("*", kind.plural):
        return False
    if not slash:
        return not subresource
    return below == "*" or (bool(subresource) and below == subresource)
