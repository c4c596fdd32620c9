"""Built-in admission: defaults and checks of new objects beyond the rules of their kinds.

Everything it looks up (namespaces, priority classes) comes straight from the store and is remembered by revision, so
that admission costs next to nothing per pod.
"""

from __future__ import annotations

from phalanx.base.clock import rfc3339
from phalanx.base.well_known import (
    DEVICES_API,
    NOT_READY_TAINT,
    POD_GROUP_FINALIZER,
    SCHEDULING_API,
    STORAGE_CLASS_ANNOTATION,
    UNREACHABLE_TAINT,
)
from phalanx.local.api.context import Context
from phalanx.local.api.escalation import GUARDED, check_grant
from phalanx.local.api.limit_ranges import TABLE as LIMIT_RANGES
from phalanx.local.api.limit_ranges import claim_complaints, fill_pod, pod_complaints
from phalanx.local.api.priority import Priorities
from phalanx.local.api.problems import forbidden, invalid, not_found
from phalanx.local.api.request import User
from phalanx.local.api.rights import MASTERS
from phalanx.local.api.service_accounts import ServiceAccounts
from phalanx.local.api.service_addresses import ServiceAddresses
from phalanx.local.api.view import decode
from phalanx.model.annotation_values import BadValue
from phalanx.model.fieldpath import forbidden as field_forbidden
from phalanx.model.groups import REPLACES, TO_COME
from phalanx.model.groups.keys import AFTER_GROUP
from phalanx.model.kinds import Json, Kind
from phalanx.model.leaderworkerset.pods import complete_pod
from phalanx.model.leaderworkerset.pods import is_ours as is_leader_worker
from phalanx.model.objects.devices import ADMIN_NAMESPACE_LABEL
from phalanx.model.rules.devices import admin_access
from phalanx.model.rules.jobset_policies import existing_claim_errors

UNDELETABLE_NAMESPACES = ("default", "kube-system", "kube-public")
COMPOSITE_FINALIZER = "scheduling.k8s.io/compositepodgroup-protection"
_FINALIZER_OF = {
    "podgroups.scheduling.k8s.io": POD_GROUP_FINALIZER,
    "compositepodgroups.scheduling.k8s.io": COMPOSITE_FINALIZER,
    "persistentvolumes": "kubernetes.io/pv-protection",
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
}
_WITH_SELECTORS = tuple(
    f"{name}.{DEVICES_API}" for name in ("resourceclaims", "resourceclaimtemplates", "deviceclasses")
)
_JOB_SETS = "jobsets.jobset.x-k8s.io"
_POD_GROUPS = "podgroups.scheduling.k8s.io"
_RUNTIME_CLASSES = "runtimeclasses.node.k8s.io"
_SIGNING_REQUESTS = "certificatesigningrequests.certificates.k8s.io"
_PRIORITY_CLASSES = "priorityclasses.scheduling.k8s.io"
GANG = "scheduling.phalanx.dev/gang"
DEFAULT_GANGS = "scheduling.phalanx.dev/default-gangs"  # a label of namespaces
# Kinds that can be gangs by default -> the field and word that make their pods run at the same time, and their number
_GANGS_BY_DEFAULT = {
    "jobs.batch": ("completionMode", "Indexed", "parallelism"),
    "statefulsets.apps": ("podManagementPolicy", "Parallel", "replicas"),
}
# Kinds with a default class -> field, kind of the class, annotations of the default one, old annotation for the field
_CLASSES = {
    "ingresses.networking.k8s.io": (
        "ingressClassName",
        "ingressclasses.networking.k8s.io",
        ("ingressclass.kubernetes.io/is-default-class",),
        "kubernetes.io/ingress.class",
    ),
    "persistentvolumeclaims": (
        "storageClassName",
        "storageclasses.storage.k8s.io",
        ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"),
        STORAGE_CLASS_ANNOTATION,
    ),
}
# How long a pod without an own toleration stays on a node that is not ready or unreachable.
_DEFAULT_TOLERATIONS = (NOT_READY_TAINT, UNREACHABLE_TAINT)
_TOLERATION_SECONDS = 300


# The account of `phalanx controllers`, and annotations of PodGroups that no other may write (as in deploy/base).
_CONTROLLERS = "system:serviceaccount:phalanx-system:phalanx-controllers"
_OF_CONTROLLERS = {TO_COME: "reserves room", REPLACES: "changes the order of the queue"}


def _only_controllers(kind: Kind, obj: Json, before: Json, user: User) -> None:
    """Refuse annotations that only our controllers may write: a field manager is a name that any client can give."""
    if kind.storage_key != _POD_GROUPS or user.name == _CONTROLLERS or MASTERS in user.groups:
        return
    after = obj["metadata"].get("annotations") or {}
    for key, effect in _OF_CONTROLLERS.items():
        if key in after and after[key] != before.get(key):
            text = f"annotation {key}, which {effect}, may only be written by the Phalanx controllers"
            raise forbidden(kind, str(obj["metadata"].get("name") or ""), text)


class Admission:
    def __init__(self, ctx: Context) -> None:
        self._store = ctx.store
        self._registry = ctx.registry
        self._namespaces: dict[str, tuple[int, bool]] = {}  # name -> (revision, terminating)
        self.priorities = Priorities(ctx)
        self._addresses = ServiceAddresses(ctx.store)
        self._accounts = ServiceAccounts(ctx.store)
        self._rights = ctx.rights
        self._gates = ctx.gates
        self._clock = ctx.clock

    def namespace_open(self, kind: Kind, namespace: str, name: str) -> None:
        """Refuse to create an object in a namespace that does not exist or is terminating.

        Raises NotFound or Forbidden.
        """
        entry = self._store.latest(("namespaces", "", namespace))
        if entry is None:
            home = self._registry.by_storage_key("namespaces")
            raise not_found(home or kind, namespace)
        known = self._namespaces.get(namespace)
        if known is None or known[0] != entry.revision:
            known = self._namespaces[namespace] = (entry.revision, entry.index.deletion_timestamp is not None)
            if len(self._namespaces) > 10_000:
                self._namespaces.clear()
        if known[1]:
            raise forbidden(
                kind,
                name,
                f"unable to create new content in namespace {namespace} because it is being terminated",
                [
                    {
                        "reason": "NamespaceTerminating",
                        "message": f"namespace {namespace} is being terminated",
                        "field": "metadata.namespace",
                    }
                ],
            )

    def create(self, kind: Kind, obj: Json, namespace: str, user: User) -> None:
        key = kind.storage_key
        self._default_gang(key, obj, namespace)
        if key in _CLASSES:
            self._default_class(key, obj)
        if key == "pods":
            self._pod(kind, obj, namespace)
        elif key in _WITH_SELECTORS:
            self._admin_access(kind, obj, namespace)
        elif key == "services":
            self._assign(kind, obj, namespace, None)
        elif key == _JOB_SETS:
            self._shared_claims(kind, obj, namespace)
        elif key == _SIGNING_REQUESTS:
            _requested_by(obj, user)
        elif key in _FINALIZER_OF:
            if kind.group == SCHEDULING_API:
                self.priorities.group(kind, obj)
            _only_controllers(kind, obj, {}, user)
            _protect(obj["metadata"], _FINALIZER_OF[key])
        elif key == _PRIORITY_CLASSES:
            self.priorities.only_one_default(kind, obj, creating=True)
        elif key in GUARDED and self._rights is not None:
            check_grant(self._rights, user, kind, obj, None, namespace)

    def _pod(self, kind: Kind, pod: Json, namespace: str) -> None:
        self.priorities.pod(kind, pod)
        _pod_defaults(pod)
        self._accounts.admit(kind, pod, namespace)
        if pod["spec"].get("runtimeClassName"):
            self._runtime(kind, pod)
        if pod["spec"].get("schedulingGroup"):
            self._after_group(pod, namespace)
        if is_leader_worker(pod):
            try:
                complete_pod(pod, namespace)
            except BadValue as problem:
                raise forbidden(kind, str(pod["metadata"].get("name") or ""), str(problem)) from problem

    def _default_gang(self, key: str, obj: Json, namespace: str) -> None:
        """Make an Indexed Job or a Parallel StatefulSet a gang where default gangs are switched on.

        The feature gate is for the cluster; a label of the namespace overrides it. What the author wrote wins.
        """
        if key not in _GANGS_BY_DEFAULT:
            return
        meta, spec = obj["metadata"], obj.get("spec") or {}
        field, word, count = _GANGS_BY_DEFAULT[key]
        if spec.get(field) != word or int(spec.get(count) or 1) < 2 or spec.get("scheduling") is not None:
            return
        if GANG in (meta.get("annotations") or {}) or any(
            r.get("controller") for r in meta.get("ownerReferences") or ()
        ):
            return
        entry = self._store.latest(("namespaces", "", namespace))
        label = ((entry.index.labels if entry is not None else None) or {}).get(DEFAULT_GANGS)
        if label == "true" or (label is None and self._gates("DefaultGangs")):
            meta["annotations"] = {**(meta.get("annotations") or {}), GANG: "true"}

    def _admin_access(self, kind: Kind, obj: Json, namespace: str) -> None:
        """Refuse administrative access to devices unless the namespace has the label for it (KEP-5018)."""
        spec: Json = obj.get("spec") or {}
        path = "spec"
        if kind.kind == "ResourceClaimTemplate":
            spec, path = spec.get("spec") or {}, "spec.spec"
        field = admin_access(spec)
        if not field:
            return
        entry = self._store.latest(("namespaces", "", namespace))
        labels = (decode(entry.value).get("metadata") or {}).get("labels") or {} if entry is not None else {}
        if labels.get(ADMIN_NAMESPACE_LABEL) != "true":
            label = f"`{ADMIN_NAMESPACE_LABEL}: true` label"
            text = f"admin access to devices requires the {label} on the containing namespace"
            raise invalid(kind, obj["metadata"].get("name") or "", [field_forbidden(f"{path}.{field}", text)])

    def _shared_claims(self, kind: Kind, obj: Json, namespace: str) -> None:
        """Refuse a JobSet whose shared claims exist with another spec, or would be deleted with the set."""

        def known(name: str) -> Json | None:
            entry = self._store.latest(("persistentvolumeclaims", namespace, name))
            return decode(entry.value) if entry is not None else None

        errors = existing_claim_errors(obj, known)
        if errors:
            raise invalid(kind, str(obj["metadata"].get("name") or ""), errors)

    def _after_group(self, pod: Json, namespace: str) -> None:
        """Refuse a pod for a group that is being deleted if its controller will create another group.

        A pod without a controller joins the group that is being deleted, as in kube-scheduler 1.37.
        """
        if not any(owner.get("controller") for owner in pod["metadata"].get("ownerReferences") or ()):
            return
        group = (pod["spec"]["schedulingGroup"] or {}).get("podGroupName") or ""
        entry = self._store.latest((_POD_GROUPS, namespace, group))
        if entry is None or entry.index.deletion_timestamp is None:
            return
        meta = pod["metadata"]
        meta["annotations"] = {**(meta.get("annotations") or {}), AFTER_GROUP: entry.index.uid}

    def _assign(self, kind: Kind, service: Json, namespace: str, old: Json | None) -> None:
        errors = self._addresses.assign(service, namespace, old)
        if errors:
            raise invalid(kind, str(service["metadata"].get("name") or ""), errors)

    def _default_class(self, key: str, obj: Json) -> None:
        """Set the default class of a claim or an Ingress that names none.

        Of several defaults the newest is taken, then the first by name.
        """
        field, classes, marks, old = _CLASSES[key]
        if (obj.get("spec") or {}).get(field) is not None or old in (obj["metadata"].get("annotations") or {}):
            return
        known = [decode(entry.value)["metadata"] for entry in self._store.list(classes)]
        default = [meta for meta in known if any((meta.get("annotations") or {}).get(mark) == "true" for mark in marks)]
        default.sort(key=lambda meta: meta["name"])
        default.sort(key=lambda meta: meta["creationTimestamp"], reverse=True)
        if default:
            obj.setdefault("spec", {})[field] = default[0]["name"]

    def _runtime(self, kind: Kind, pod: Json) -> None:
        """Copy the overhead and the scheduling rules of a pod's RuntimeClass into the pod.

        Raises Forbidden if there is no such RuntimeClass or the pod contradicts it.
        """
        spec, name = pod["spec"], pod["spec"]["runtimeClassName"]
        shown = str((pod.get("metadata") or {}).get("name") or "")
        entry = self._store.latest((_RUNTIME_CLASSES, "", name))
        if entry is None:
            raise forbidden(kind, shown, f'pod rejected: RuntimeClass "{name}" not found')
        runtime: Json = decode(entry.value)
        overhead = (runtime.get("overhead") or {}).get("podFixed")
        if spec.get("overhead") is not None and spec["overhead"] != (overhead or {}):
            text = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
            raise forbidden(kind, shown, text)
        if overhead:
            spec["overhead"] = overhead
        scheduling: Json = runtime.get("scheduling") or {}
        wanted: Json = scheduling.get("nodeSelector") or {}
        given: Json = spec.get("nodeSelector") or {}
        if any(given.get(key, value) != value for key, value in wanted.items()):
            text = "pod rejected: conflict: runtimeClass.scheduling.nodeSelector and spec.nodeSelector differ"
            raise forbidden(kind, shown, text)
        if wanted:
            spec["nodeSelector"] = {**given, **wanted}
        tolerations = spec.get("tolerations") or []
        spec["tolerations"] = tolerations + [
            toleration for toleration in scheduling.get("tolerations") or () if toleration not in tolerations
        ]

    def update(self, kind: Kind, new: Json, old: Json, user: User) -> None:
        key = kind.storage_key
        if key == "pods":
            spec, before = new.get("spec"), old.get("spec")
            if isinstance(spec, dict) and isinstance(before, dict):
                for name in ("priority", "preemptionPolicy"):
                    if spec.get(name) is None and before.get(name) is not None:
                        spec[name] = before[name]
                if spec.get("tolerations") != before.get("tolerations"):
                    _pod_defaults(new)  # an update with a new list need not repeat the defaults of every pod
        elif key == _POD_GROUPS:
            _only_controllers(kind, new, old["metadata"].get("annotations") or {}, user)
        elif key == "services":
            self._assign(kind, new, str(old["metadata"].get("namespace") or ""), old)
        elif key == _PRIORITY_CLASSES:
            self.priorities.only_one_default(kind, new, creating=False)
        elif key in GUARDED and self._rights is not None:
            check_grant(self._rights, user, kind, new, old, str(old["metadata"].get("namespace") or ""))

    def status(self, kind: Kind, new: Json, old: Json) -> None:
        """Set since when a volume is in its phase; a time that the client writes is kept."""
        after, before = new.get("status") or {}, old.get("status") or {}
        since = "lastPhaseTransitionTime"
        if kind.storage_key != "persistentvolumes" or after.get("phase") == before.get("phase"):
            return
        if after.get(since) in (None, before.get(since)):
            new["status"] = {**after, since: rfc3339(self._clock.now())}

    def fill(self, kind: Kind, obj: Json, namespace: str) -> None:
        """Fill in the requests and limits that the LimitRanges of the namespace give to pods without them."""
        if kind.storage_key == "pods" and self._store.list(LIMIT_RANGES, namespace):
            fill_pod(self._store, obj, namespace)

    def within_limits(self, kind: Kind, new: Json, namespace: str) -> None:
        """Check an object against the LimitRanges of its namespace. Raises Forbidden.

        Must run after everything that may change the object.
        """
        if kind.storage_key not in ("pods", "persistentvolumeclaims") or not self._store.list(LIMIT_RANGES, namespace):
            return
        look = pod_complaints if kind.storage_key == "pods" else claim_complaints
        found = look(self._store, new, namespace)
        if found:
            why = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
            raise forbidden(kind, str(new["metadata"].get("name") or ""), why)

    def delete(self, kind: Kind, name: str) -> None:
        if kind.storage_key == "namespaces" and name in UNDELETABLE_NAMESPACES:
            raise forbidden(kind, name, "this namespace may not be deleted")


def _requested_by(obj: Json, user: User) -> None:
    """Record the authenticated user as the requester of a certificate."""
    spec = obj.setdefault("spec", {})
    spec.update(username=user.name, groups=list(user.groups))
    spec.pop("uid", None)
    spec.pop("extra", None)


def _protect(metadata: Json, finalizer: str) -> None:
    finalizers = metadata.get("finalizers") or []
    if finalizer not in finalizers:
        metadata["finalizers"] = [*finalizers, finalizer]


def _pod_defaults(pod: Json) -> None:
    spec = pod.get("spec")
    if not isinstance(spec, dict):
        return
    tolerations = spec.get("tolerations") or []
    for key in _DEFAULT_TOLERATIONS:
        if not any(_tolerates(toleration, key) for toleration in tolerations):
            tolerations = [
                *tolerations,
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS},
            ]
    spec["tolerations"] = tolerations


def _tolerates(toleration: Json, key: str) -> bool:
    return toleration.get("key") in (key, "", None) and toleration.get("effect") in ("NoExecute", "", None)
