"""The default ClusterRoles, Roles and bindings of a cluster with RBAC, with the names of Kubernetes.

Roles for users are defined here; roles of Kubernetes' own programs (kube-scheduler, every controller of
kube-controller-manager) are in bootstrap_roles.table. `admin`, `edit` and `view` aggregate: a ClusterRole with the
label of one of them adds rules to it. Existing objects are not changed, because an administrator may have edited them.
"""

from __future__ import annotations

import asyncio
from importlib import resources

from phalanx.base.client import Client, Resource
from phalanx.base.well_known import RBAC_API
from phalanx.local.system_controllers.bootstrap import ensure
from phalanx.model.kinds import Json

CLUSTER_ROLES = Resource(RBAC_API, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(RBAC_API, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
ROLES = Resource(RBAC_API, "v1", "roles", "Role")
ROLE_BINDINGS = Resource(RBAC_API, "v1", "rolebindings", "RoleBinding")
_CONTROLLER = "system:controller:"
_BOOTSTRAPPING = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"

_READ = ["get", "list", "watch"]
_WRITE = ["create", "delete", "deletecollection", "patch", "update"]

# Namespaced resources that users read and write: group -> resources. Secrets and RBAC resources are not included.
_EDITABLE: dict[str, list[str]] = {
    "": [
        "configmaps", "endpoints", "events", "persistentvolumeclaims", "pods", "podtemplates", "replicationcontrollers",
        "replicationcontrollers/scale", "services",
    ],
    "apps": [
        "daemonsets", "deployments", "deployments/scale", "replicasets", "replicasets/scale", "statefulsets",
        "statefulsets/scale", "controllerrevisions",
    ],
    "autoscaling": ["horizontalpodautoscalers"],
    "batch": ["cronjobs", "jobs"],
    "discovery.k8s.io": ["endpointslices"],
    "events.k8s.io": ["events"],
    "jobset.x-k8s.io": ["jobsets"],
    "leaderworkerset.x-k8s.io": ["leaderworkersets", "leaderworkersets/scale"],
    "disaggregatedset.x-k8s.io": [
        "disaggregatedsets",
        "disaggregatedsetrolescalers",
        "disaggregatedsetrolescalers/scale",
    ],
    "networking.k8s.io": ["ingresses", "networkpolicies"],
    "policy": ["poddisruptionbudgets"],
    "resource.k8s.io": ["resourceclaims", "resourceclaimtemplates"],
    "scheduling.k8s.io": ["compositepodgroups", "podgroups", "workloads"],
    "scheduling.phalanx.dev": ["workloadpolicies"],
}  # fmt: skip
# Resources that users with these roles can only read, because the system writes them.
_READ_ONLY: dict[str, list[str]] = {
    "": [
        "bindings", "limitranges", "namespaces", "namespaces/status", "persistentvolumeclaims/status", "pods/log",
        "pods/status", "replicationcontrollers/status", "resourcequotas", "resourcequotas/status", "serviceaccounts",
        "services/status",
    ],
    "apps": ["daemonsets/status", "deployments/status", "replicasets/status", "statefulsets/status"],
    "autoscaling": ["horizontalpodautoscalers/status"],
    "batch": ["cronjobs/status", "jobs/status"],
    "jobset.x-k8s.io": ["jobsets/status"],
    "leaderworkerset.x-k8s.io": ["leaderworkersets/status"],
    "disaggregatedset.x-k8s.io": ["disaggregatedsets/status", "disaggregatedsetrolescalers/status"],
    "networking.k8s.io": ["ingresses/status"],
    "policy": ["poddisruptionbudgets/status"],
    "scheduling.k8s.io": ["compositepodgroups/status", "podgroups/status"],
    "scheduling.phalanx.dev": ["workloadpolicies/status"],
}  # fmt: skip
_MADE_BY_CONTROLLERS = ("endpointslices", "controllerrevisions", "podtemplates", "events")


def _rules(table: dict[str, list[str]], verbs: list[str], without: tuple[str, ...] = ()) -> list[Json]:
    return [
        {"apiGroups": [group], "resources": [name for name in names if name not in without], "verbs": verbs}
        for group, names in table.items()
        if any(name not in without for name in names)
    ]


def _rule(group: str, resources: list[str], verbs: list[str]) -> Json:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _roles() -> dict[str, Json]:
    view = _rules(_EDITABLE, _READ) + _rules(_READ_ONLY, _READ)
    edit = [
        *_rules(_EDITABLE, _WRITE, _MADE_BY_CONTROLLERS),
        _rule("", ["secrets", "serviceaccounts"], [*_READ, *_WRITE]),
        _rule("", ["serviceaccounts/token", "pods/eviction"], ["create"]),
        _rule("", ["serviceaccounts"], ["impersonate"]),
    ]
    admin = [
        _rule(RBAC_API, ["rolebindings", "roles"], [*_READ, *_WRITE]),
        _rule("authorization.k8s.io", ["localsubjectaccessreviews"], ["create"]),
    ]
    discovery = ["/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*", "/version", "/version/", "/"]
    self_reviews = ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]
    everything = [_rule("*", ["*"], ["*"]), {"nonResourceURLs": ["*"], "verbs": ["*"]}]
    return {
        "cluster-admin": {"rules": everything},
        "system:discovery": {"rules": [{"nonResourceURLs": discovery, "verbs": ["get", "head"]}]},
        "system:basic-user": {
            "rules": [
                _rule("authorization.k8s.io", self_reviews, ["create"]),
                _rule("authentication.k8s.io", ["selfsubjectreviews"], ["create"]),
            ]
        },
        "system:auth-delegator": {
            "rules": [
                _rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
                _rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
            ]
        },
        "system:monitoring": {"rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]},
        "system:aggregate-to-view": {"rules": view, "labels": {f"{_AGGREGATE}view": "true"}},
        "system:aggregate-to-edit": {"rules": edit, "labels": {f"{_AGGREGATE}edit": "true"}},
        "system:aggregate-to-admin": {"rules": admin, "labels": {f"{_AGGREGATE}admin": "true"}},
        "view": {"selects": "view", "labels": {f"{_AGGREGATE}edit": "true"}},
        "edit": {"selects": "edit", "labels": {f"{_AGGREGATE}admin": "true"}},
        "admin": {"selects": "admin"},
    }


_BINDINGS = {
    "cluster-admin": ("cluster-admin", "system:masters"),
    "system:basic-user": ("system:basic-user", "system:authenticated"),
    "system:discovery": ("system:discovery", "system:authenticated"),
    "system:monitoring": ("system:monitoring", "system:monitoring"),
}


async def bootstrap_roles(client: Client) -> None:
    """Create the missing objects."""
    wanted: list[tuple[Resource, Json]] = []
    for name, role in _roles().items():
        metadata = {"name": name, "labels": {**_BOOTSTRAPPING, **role.get("labels", {})}}
        body: Json = {"apiVersion": f"{RBAC_API}/v1", "kind": "ClusterRole", "metadata": metadata}
        if "selects" in role:
            selector = {"matchLabels": {f"{_AGGREGATE}{role['selects']}": "true"}}
            body["aggregationRule"] = {"clusterRoleSelectors": [selector]}
            body["rules"] = []
        else:
            body["rules"] = role["rules"]
        wanted.append((CLUSTER_ROLES, body))
    for name, (role_name, group) in _BINDINGS.items():
        wanted.append((CLUSTER_ROLE_BINDINGS, _binding("", name, "ClusterRole", role_name, [f"Group:{group}"])))
    wanted += programs()
    await asyncio.gather(*(ensure(client, resource, body) for resource, body in wanted))


# ---- roles of Kubernetes' own programs


def programs() -> list[tuple[Resource, Json]]:
    """Read the roles of bootstrap_roles.table and their bindings."""
    text = resources.files(__package__).joinpath("bootstrap_roles.table").read_text("utf-8")
    found: list[tuple[Resource, Json]] = []
    for line in text.splitlines():
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if line.startswith("  "):
            found[-1][1]["rules"].append(_read_rule(*words))
        elif words[0] == "bind":
            namespace, name = _qualified(words[1])
            kind, _, role = words[2].partition(":")
            resource = ROLE_BINDINGS if namespace else CLUSTER_ROLE_BINDINGS
            found.append((resource, _binding(namespace, name, kind, role, words[3:])))
        else:
            namespace, name = _qualified(words[0])
            body = _object("Role" if namespace else "ClusterRole", namespace, name)
            found.append((ROLES if namespace else CLUSTER_ROLES, {**body, "rules": []}))
    for _, made in list(found):
        name = made["metadata"]["name"]
        if made["kind"] == "ClusterRole" and name.startswith(_CONTROLLER):
            account = f"ServiceAccount:kube-system/{name.removeprefix(_CONTROLLER)}"
            found.append((CLUSTER_ROLE_BINDINGS, _binding("", name, "ClusterRole", name, [account])))
    return found


def _qualified(text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    return (namespace, name) if slash else ("", text)


def _read_rule(groups: str, names: str, verbs: str) -> Json:
    if groups == "url":
        return {"nonResourceURLs": names.split(","), "verbs": verbs.split(",")}
    kinds, _, limited = names.removesuffix("]").partition("[")
    rule: Json = {
        "apiGroups": ["" if group == "core" else group for group in groups.split(",")],
        "resources": kinds.split(","),
        "verbs": verbs.split(","),
    }
    return {**rule, "resourceNames": limited.split(",")} if limited else rule


def _object(kind: str, namespace: str, name: str) -> Json:
    metadata: Json = {"name": name, "labels": dict(_BOOTSTRAPPING)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": f"{RBAC_API}/v1", "kind": kind, "metadata": metadata}


def _binding(namespace: str, name: str, kind: str, role: str, subjects: list[str]) -> Json:
    """Build a RoleBinding, or a ClusterRoleBinding if `namespace` is empty.

    subjects: each "Group:NAME", "User:NAME" or "ServiceAccount:NAMESPACE/NAME".
    """
    found: list[Json] = []
    for each in subjects:
        subject, _, who = each.partition(":")
        if subject == "ServiceAccount":
            home, _, account = who.partition("/")
            found.append({"kind": subject, "namespace": home, "name": account})
        else:
            found.append({"apiGroup": RBAC_API, "kind": subject, "name": who})
    body = _object("RoleBinding" if namespace else "ClusterRoleBinding", namespace, name)
    return {**body, "roleRef": {"apiGroup": RBAC_API, "kind": kind, "name": role}, "subjects": found}
