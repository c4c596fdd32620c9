"""Who may do what: role-based access control over the Role, ClusterRole and binding objects in the store.

Answers questions and raises nothing. Bindings are read from the store when one of those objects changed
and is a few dictionaries otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from phalanx.base.access import Right
from phalanx.base.well_known import RBAC_API
from phalanx.local.api.request import Request, User
from phalanx.local.api.view import decode
from phalanx.local.store.contract import Entry, StoreProtocol
from phalanx.model.kinds import Json
from phalanx.model.selectors import BadSelector, from_selector, parse_fields

ROLES = f"roles.{RBAC_API}"
CLUSTER_ROLES = f"clusterroles.{RBAC_API}"
ROLE_BINDINGS = f"rolebindings.{RBAC_API}"
CLUSTER_ROLE_BINDINGS = f"clusterrolebindings.{RBAC_API}"
_TABLES = (CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, ROLES, ROLE_BINDINGS)
MASTERS = "system:masters"  # may do everything, whatever roles are bound
Subject = tuple[str, str]  # ("User" | "Group", name)


class Attributes(NamedTuple):
    """One question. Either about a resource, or about a path that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""
    version: str = ""

    @property
    def full_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Decision(NamedTuple):
    allowed: bool
    reason: str = ""


ALLOWED = Decision(True)


def attributes_of(request: Request) -> Attributes:
    kind, namespace, name = request.kind, request.namespace, request.name
    if kind.key == "namespaces" and name:
        namespace = name  # a Role in a namespace may name that namespace itself
    if not name and request.verb in ("list", "watch", "deletecollection") and "fieldSelector" in request.query:
        try:  # a caller that may get an object by name may also list and watch that one object
            name = parse_fields(request.query["fieldSelector"]).exact("metadata.name") or ""
        except BadSelector:
            name = ""
    version = request.version.name
    return Attributes(request.verb, kind.group, kind.plural, request.subresource, namespace, name, "", version)


class Grant(NamedTuple):
    """What one binding gives."""

    text: str  # the binding and its role, for messages
    rules: tuple[Json, ...]


class _Bound(NamedTuple):
    everywhere: Mapping[Subject, Sequence[Grant]]
    inside: Mapping[str, Mapping[Subject, Sequence[Grant]]]  # by namespace
    missing: Mapping[Subject, Sequence[str]]  # bound roles that do not exist


class Rights(msgspec.Struct):
    """`decide` for every request in mode RBAC. One instance per server."""

    store: StoreProtocol
    _seen: tuple[Sequence[Entry], ...] = ()
    _bound: _Bound = msgspec.field(default_factory=lambda: _Bound({}, {}, {}))

    def decide(self, user: User, asked: Attributes) -> Decision:
        if MASTERS in user.groups:
            return ALLOWED
        for grant in self.grants(user, asked.namespace):
            for rule in grant.rules:
                if allows(rule, asked):
                    return Decision(True, f"RBAC: allowed by {grant.text}")
        missing = [text for subject in _subjects(user) for text in self._bound.missing.get(subject, ())]
        return Decision(False, f"RBAC: {missing[0]}" if missing else "")

    def grants(self, user: User, namespace: str) -> Iterator[Grant]:
        """Yield the grants to this user that count in a namespace (empty: in the whole cluster)."""
        self._refresh()
        subjects = _subjects(user)
        for subject in subjects:
            yield from self._bound.everywhere.get(subject, ())
        inside = self._bound.inside.get(namespace) if namespace else None
        if inside:
            for subject in subjects:
                yield from inside.get(subject, ())

    def rules(self, user: User, namespace: str) -> list[Json]:
        if MASTERS in user.groups:
            return [
                {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
                {"verbs": ["*"], "nonResourceURLs": ["*"]},
            ]
        return [rule for grant in self.grants(user, namespace) for rule in grant.rules]

    def role_rules(self, ref: Json, namespace: str) -> tuple[Json, ...] | None:
        """Return the rules of the role that a binding in this namespace refers to; None if it does not exist."""
        inner = namespace if ref.get("kind") == "Role" else ""
        entry = self.store.get((ROLES if inner else CLUSTER_ROLES, inner, str(ref.get("name") or "")))
        if entry is None:
            return None
        return tuple(self._rules_of(decode(entry.value)))

    def _rules_of(self, role: Json, above: frozenset[str] = frozenset()) -> list[Json]:
        """Return the rules of a role.

        With aggregation: the rules of all cluster roles that its selectors choose, without the roles in `above` (no
        cycles).
        """
        aggregation = role.get("aggregationRule")
        if not aggregation:
            return role.get("rules") or []
        above |= {role["metadata"]["name"]}
        matchers = [from_selector(selector) for selector in aggregation.get("clusterRoleSelectors") or ()]
        found: list[Json] = []
        for entry in self.store.list(CLUSTER_ROLES):
            if entry.key[2] not in above and any(matcher.matches(entry.index.labels) for matcher in matchers):
                found += [rule for rule in self._rules_of(decode(entry.value), above) if rule not in found]
        return found

    def _refresh(self) -> None:
        now = tuple(self.store.list(table) for table in _TABLES)
        # The store hands out the same tuple until something in it changes.
        if len(self._seen) == len(now) and all(a is b for a, b in zip(now, self._seen, strict=True)):
            return
        roles: dict[tuple[str, str], tuple[Json, ...]] = {}
        for entry in (*now[0], *now[2]):
            roles[entry.key[1], entry.key[2]] = tuple(self._rules_of(decode(entry.value)))
        everywhere: dict[Subject, list[Grant]] = {}
        inside: dict[str, dict[Subject, list[Grant]]] = {}
        missing: dict[Subject, list[str]] = {}
        for entry in (*now[1], *now[3]):
            _, namespace, name = entry.key
            binding: Json = decode(entry.value)
            ref: Json = binding.get("roleRef") or {}
            home = namespace if ref.get("kind") == "Role" else ""
            rules = roles.get((home, str(ref.get("name") or "")))
            kind = "RoleBinding" if namespace else "ClusterRoleBinding"
            shown = f"{namespace}/{name}" if namespace else name
            for number, subject in enumerate(_subjects_of(binding, namespace)):
                if rules is None:
                    text = f'{str(ref.get("kind")).lower()}.{RBAC_API} "{ref.get("name")}" not found'
                    missing.setdefault(subject, []).append(text)
                    continue
                about = (binding["subjects"][number].get("kind"), binding["subjects"][number].get("name"))
                text = f'{kind} "{shown}" of {ref.get("kind")} "{ref.get("name")}" to {about[0]} "{about[1]}"'
                table = inside.setdefault(namespace, {}) if namespace else everywhere
                table.setdefault(subject, []).append(Grant(text, rules))
        self._bound, self._seen = _Bound(everywhere, inside, missing), now


class UserAccess:
    """The rights of one user, for code that answers it (`base.access.Access`)."""

    def __init__(self, rights: Rights, user: User) -> None:
        self._rights, self._user = rights, user

    @property
    def user(self) -> str:
        return self._user.name

    async def may(self, right: Right) -> bool:
        asked = Attributes(right.verb, right.group, right.resource, "", right.namespace, right.name)
        return self._rights.decide(self._user, asked).allowed


def _subjects(user: User) -> list[Subject]:
    return [("User", user.name), *(("Group", group) for group in user.groups)]


def _subjects_of(binding: Json, namespace: str) -> Iterator[Subject]:
    for subject in binding.get("subjects") or ():
        kind, name = str(subject.get("kind")), str(subject.get("name"))
        if kind == "ServiceAccount":
            yield ("User", f"system:serviceaccount:{subject.get('namespace') or namespace}:{name}")
        else:
            yield (kind, name)


def allows(rule: Mapping[str, Any], asked: Attributes) -> bool:
    verbs = rule.get("verbs") or ()
    if asked.verb not in verbs and "*" not in verbs:
        return False
    if asked.path:
        return any(path_matches(pattern, asked.path) for pattern in rule.get("nonResourceURLs") or ())
    groups = rule.get("apiGroups") or ()
    if asked.group not in groups and "*" not in groups:
        return False
    if not any(
        resource_matches(pattern, asked.full_resource, asked.subresource) for pattern in rule.get("resources") or ()
    ):
        return False
    names = rule.get("resourceNames")
    return not names or asked.name in names


def resource_matches(pattern: str, resource: str, subresource: str) -> bool:
    """Return True if the resource of a rule covers this resource.

    `pods`, `pods/log`, `*` for all with their subresources, `*/scale` for one subresource of all.
    """
    return pattern in ("*", resource) or (bool(subresource) and pattern == f"*/{subresource}")


def path_matches(pattern: str, path: str) -> bool:
    return pattern in ("*", path) or (pattern.endswith("*") and path.startswith(pattern[:-1]))


def refusal(user: User, asked: Attributes) -> str:
    """Return the text of Kubernetes for what this user may not do."""
    if asked.path:
        return f'User "{user.name}" cannot {asked.verb} path "{asked.path}"'
    where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
    what = f'resource "{asked.full_resource}" in API group "{asked.group}"'
    return f'User "{user.name}" cannot {asked.verb} {what} {where}'
