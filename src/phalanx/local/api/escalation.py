"""Prevent privilege escalation: writes to roles and bindings are checked against the writer's own rules.

The verbs `escalate` on roles and `bind` on a role allow more, as in Kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.base.well_known import RBAC_API
from phalanx.local.api.problems import forbidden
from phalanx.local.api.request import User
from phalanx.local.api.rights import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    MASTERS,
    ROLE_BINDINGS,
    ROLES,
    Attributes,
    Rights,
    path_matches,
)
from phalanx.model.kinds import Json, Kind

GUARDED = frozenset((ROLES, CLUSTER_ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS))


def check_grant(rights: Rights, user: User, kind: Kind, new: Json, old: Json | None, namespace: str) -> None:
    """Check that a write grants no rights that the writer does not have. Raises Forbidden."""
    if MASTERS in user.groups:
        return
    name = str((new.get("metadata") or {}).get("name") or "")
    if kind.key in (ROLES, CLUSTER_ROLES):
        parts = ("rules", "aggregationRule")
        if old is not None and all(new.get(part) == old.get(part) for part in parts):
            return
        if rights.decide(user, Attributes("escalate", RBAC_API, kind.plural, "", namespace, name)).allowed:
            return
        wanted: Iterable[Json] = new.get("rules") or ()
        if new.get("aggregationRule"):
            wanted = [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]
    else:
        if old is not None and all(new.get(part) == old.get(part) for part in ("subjects", "roleRef")):
            return
        ref: Json = new.get("roleRef") or {}
        plural, role = ("roles" if ref.get("kind") == "Role" else "clusterroles"), str(ref.get("name") or "")
        if rights.decide(user, Attributes("bind", RBAC_API, plural, "", namespace, role)).allowed:
            return
        found = rights.role_rules(ref, namespace)
        if found is None:
            shown = "role" if plural == "roles" else "clusterrole"
            raise forbidden(kind, name, f'{shown}.{RBAC_API} "{role}" not found')
        wanted = found
    held = rights.rules(user, namespace)
    lacking = [rule for rule in wanted if not all(_held(part, held) for part in _parts(rule))]
    if lacking:
        groups = " ".join(f'"{group}"' for group in user.groups)
        shown = "\n".join(_text(rule) for rule in lacking)
        why = f'user "{user.name}" (groups=[{groups}]) is attempting to grant RBAC permissions not currently held:\n'
        raise forbidden(kind, name, why + shown)


def _parts(rule: Json) -> Iterable[tuple[str, str, str, str, str]]:
    """Split a rule into single (verb, group, resource, name, path) tuples."""
    for verb in rule.get("verbs") or ():
        for path in rule.get("nonResourceURLs") or ():
            yield (verb, "", "", "", path)
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                for name in rule.get("resourceNames") or ("",):
                    yield (verb, group, resource, name, "")


def _held(part: tuple[str, str, str, str, str], held: Iterable[Json]) -> bool:
    verb, group, resource, name, path = part
    for rule in held:
        verbs = rule.get("verbs") or ()
        if verb not in verbs and "*" not in verbs:
            continue
        if path:
            if any(path_matches(pattern, path) for pattern in rule.get("nonResourceURLs") or ()):
                return True
            continue
        groups, resources = rule.get("apiGroups") or (), rule.get("resources") or ()
        if group not in groups and "*" not in groups:
            continue
        below = f"*/{resource.partition('/')[2]}" if "/" in resource else ""
        if resource not in resources and "*" not in resources and below not in resources:
            continue
        names = rule.get("resourceNames") or ()
        if not names or name in names:
            return True
    return False


_FIELDS = {
    "apiGroups": "APIGroups",
    "resources": "Resources",
    "resourceNames": "ResourceNames",
    "nonResourceURLs": "NonResourceURLs",
    "verbs": "Verbs",
}


def _text(rule: Json) -> str:
    shown = []
    for field, title in _FIELDS.items():
        values = [f'"{value}"' for value in rule.get(field) or ()]
        if values:
            shown.append(f"{title}:[{', '.join(values)}]")
    return "{" + ", ".join(shown) + "}"
