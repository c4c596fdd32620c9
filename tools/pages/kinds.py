"""docs/kinds.md, made from the registry: `make docs` writes it, a test fails when it is stale.

What a kind does here cannot be read off the registry, so it is written below, for every kind: the page cannot be made
while one is missing.
"""

from __future__ import annotations

from phalanx.model.builtin import registry
from phalanx.model.kinds import Kind

# What happens to objects of a kind. One word, then why it is not another one.
ENFORCED = "enforced"  # what it says holds
RUN = "run"  # a controller or the scheduler acts on it
SIMULATED = "simulated"  # acted on, without containers, disks or networks behind it
STORED = "stored"  # kept, shown and watched; no controller acts on it
ANSWERED = "answered"  # a question: nothing is kept

DOES: dict[str, tuple[str, str]] = {
    "namespaces": (ENFORCED, "deletion takes everything along, pods first"),
    "nodes": (SIMULATED, "with the label `simulation.phalanx.dev/simulated`; others are left alone"),
    "pods": (SIMULATED, "no containers: phases, restarts, grace and exit codes as annotations say; resized in place"),
    "configmaps": (STORED, "nothing mounts them; sizes, keys and `immutable` are checked"),
    "secrets": (STORED, "nothing mounts them; types and `immutable` are checked"),
    "services": (STORED, "addresses and node ports are given out once each; nothing routes"),
    "endpoints": (RUN, "of Services that select pods; nothing routes"),
    "endpointslices.discovery.k8s.io": (RUN, "of Services that select pods; nothing routes"),
    "replicationcontrollers": (RUN, ""),
    "serviceaccounts": (RUN, "`default` in every namespace; tokens by TokenRequest; not mounted into pods"),
    "persistentvolumes": (SIMULATED, "bound, provisioned and reclaimed; there is no disk"),
    "persistentvolumeclaims": (SIMULATED, "bound, provisioned and protected; there is no disk"),
    "resourcequotas": (ENFORCED, "counts of any kind, requests, limits, storage; scopes; status"),
    "limitranges": (ENFORCED, "defaults and bounds of containers, pods and claims"),
    "podtemplates": (STORED, ""),
    "events": (STORED, "without a time to live"),
    "events.events.k8s.io": (STORED, "another view of the same events"),
    "bindings": (ANSWERED, "the older way to bind a pod"),
    "deployments.apps": (RUN, ""),
    "replicasets.apps": (RUN, ""),
    "statefulsets.apps": (RUN, ""),
    "daemonsets.apps": (RUN, ""),
    "controllerrevisions.apps": (RUN, "of StatefulSets, DaemonSets and LeaderWorkerSets"),
    "jobs.batch": (RUN, ""),
    "cronjobs.batch": (RUN, ""),
    "jobsets.jobset.x-k8s.io": (RUN, ""),
    "leaderworkersets.leaderworkerset.x-k8s.io": (RUN, ""),
    "disaggregatedsets.disaggregatedset.x-k8s.io": (RUN, ""),
    "disaggregatedsetrolescalers.disaggregatedset.x-k8s.io": (RUN, "the scale of one role"),
    "leases.coordination.k8s.io": (RUN, "heartbeats of nodes, election of schedulers and controllers"),
    "poddisruptionbudgets.policy": (ENFORCED, "by evictions and preemption"),
    "storageclasses.storage.k8s.io": (SIMULATED, "provisioning without disks"),
    "csinodes.storage.k8s.io": (RUN, "limits of volumes, by the scheduler"),
    "csidrivers.storage.k8s.io": (RUN, "by the scheduler"),
    "csistoragecapacities.storage.k8s.io": (RUN, "by the scheduler"),
    "volumeattachments.storage.k8s.io": (STORED, ""),
    "volumeattributesclasses.storage.k8s.io": (STORED, ""),
    "runtimeclasses.node.k8s.io": (ENFORCED, "overhead and scheduling become part of pods"),
    "resourceclaims.resource.k8s.io": (RUN, "allocated, reserved and released"),
    "resourceclaimtemplates.resource.k8s.io": (RUN, "claims are made of them"),
    "resourceslices.resource.k8s.io": (RUN, "devices for the scheduler"),
    "deviceclasses.resource.k8s.io": (RUN, "selects devices for claims"),
    "devicetaintrules.resource.k8s.io": (RUN, "taints devices; pods are evicted"),
    "customresourcedefinitions.apiextensions.k8s.io": (ENFORCED, "schemas, defaults, pruning, validation rules (CEL)"),
    "mutatingwebhookconfigurations.admissionregistration.k8s.io": (
        ENFORCED,
        "webhooks are called where their `matchConditions` (CEL) hold",
    ),
    "validatingwebhookconfigurations.admissionregistration.k8s.io": (
        ENFORCED,
        "webhooks are called where their `matchConditions` (CEL) hold",
    ),
    "validatingadmissionpolicies.admissionregistration.k8s.io": (ENFORCED, ""),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": (ENFORCED, ""),
    "mutatingadmissionpolicies.admissionregistration.k8s.io": (ENFORCED, ""),
    "mutatingadmissionpolicybindings.admissionregistration.k8s.io": (ENFORCED, ""),
    "roles.rbac.authorization.k8s.io": (ENFORCED, "with `--authorization-mode RBAC`; stored otherwise"),
    "rolebindings.rbac.authorization.k8s.io": (ENFORCED, "with `--authorization-mode RBAC`; stored otherwise"),
    "clusterroles.rbac.authorization.k8s.io": (ENFORCED, "with `--authorization-mode RBAC`; stored otherwise"),
    "clusterrolebindings.rbac.authorization.k8s.io": (ENFORCED, "with `--authorization-mode RBAC`; stored otherwise"),
    "selfsubjectreviews.authentication.k8s.io": (ANSWERED, ""),
    "tokenreviews.authentication.k8s.io": (ANSWERED, ""),
    "selfsubjectaccessreviews.authorization.k8s.io": (ANSWERED, ""),
    "selfsubjectrulesreviews.authorization.k8s.io": (ANSWERED, ""),
    "subjectaccessreviews.authorization.k8s.io": (ANSWERED, ""),
    "localsubjectaccessreviews.authorization.k8s.io": (ANSWERED, ""),
    "ingresses.networking.k8s.io": (STORED, ""),
    "ingressclasses.networking.k8s.io": (STORED, ""),
    "networkpolicies.networking.k8s.io": (STORED, ""),
    "ipaddresses.networking.k8s.io": (STORED, "not made for Services"),
    "servicecidrs.networking.k8s.io": (
        STORED,
        "Services may ask for their addresses; others get one of `kubernetes`, 10.96.0.0/12",
    ),
    "horizontalpodautoscalers.autoscaling": (STORED, ""),
    "certificatesigningrequests.certificates.k8s.io": (STORED, "may be approved; not signed"),
    "podcertificaterequests.certificates.k8s.io": (STORED, "not signed"),
    "clustertrustbundles.certificates.k8s.io": (STORED, "nothing mounts them"),
    "flowschemas.flowcontrol.apiserver.k8s.io": (STORED, ""),
    "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": (STORED, ""),
    "storageversionmigrations.storagemigration.k8s.io": (STORED, ""),
    "apiservices.apiregistration.k8s.io": (STORED, "those of groups served here are made, Local; nothing is forwarded"),
    "priorityclasses.scheduling.k8s.io": (ENFORCED, "admission gives pods and groups their priority"),
    "workloads.scheduling.k8s.io": (RUN, ""),
    "podgroups.scheduling.k8s.io": (RUN, "by the scheduler; protected while they have pods"),
    "compositepodgroups.scheduling.k8s.io": (RUN, "by the scheduler; protected while they have groups"),
    "workloadpolicies.scheduling.phalanx.dev": (RUN, "by the scheduler: how gangs are kept whole"),
}

_ALL_VERBS = frozenset(("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"))

_HEAD = """\
# Served kinds

Made by `make docs` from the registry; do not edit.

- **enforced**: requests that violate the object are rejected.
- **run**: a controller or the scheduler acts on it.
- **simulated**: acted on, without real containers, disks or networks.
- **stored**: stored, shown and watched; no controller acts on it.
- **answered**: a request that is answered and not stored; its only verb is create.

All other kinds have the verbs create, delete, deletecollection, get, list, patch, update and watch, unless the last
column says otherwise. Add kinds with CustomResourceDefinitions.

| kind | resource | versions | scope | subresources | what happens |
|---|---|---|---|---|---|
"""


def page() -> str:
    kinds = sorted(registry().all(), key=lambda kind: (kind.group, kind.kind))
    return _HEAD + "".join(map(_row, kinds))


def _row(kind: Kind) -> str:
    word, note = DOES[kind.key]
    short = f" ({', '.join(kind.short_names)})" if kind.short_names else ""
    versions = ", ".join(version.name for version in kind.versions)
    absent = sorted(_ALL_VERBS - set(kind.verbs)) if word != ANSWERED else []
    note += f"; no {', '.join(absent)}" if absent else ""
    cells = (
        kind.kind,
        f"`{kind.key}`{short}",
        versions,
        "namespace" if kind.namespaced else "cluster",
        ", ".join(sorted(kind.subresources)),
        f"**{word}**" + (f": {note}" if note else ""),
    )
    return "| " + " | ".join(cells) + " |\n"
