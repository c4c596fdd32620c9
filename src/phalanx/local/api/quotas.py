"""ResourceQuotas: what the objects of a namespace use together, and refusing what would be more than is allowed.

Every namespace with a quota has a ledger: what each of its objects counts for, read from the store once and followed
with every write from then on. A write is counted before it is on the disk, so that two at once cannot both have the
last place. Namespaces without quotas cost one look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from phalanx.base.errors import Forbidden
from phalanx.base.well_known import COMPUTE_RESOURCES, PREFERRED_AFFINITY, REQUIRED_AFFINITY
from phalanx.local.api.context import Context
from phalanx.local.api.problems import forbidden
from phalanx.local.api.view import decode
from phalanx.local.store.contract import Key
from phalanx.model.kinds import Json, Kind
from phalanx.model.pod_amounts import Amounts, amounts, of_whole_pod, pod_amounts
from phalanx.model.quantity import canonical, nanos

TABLE = "resourcequotas"
ONE = 10**9  # nano-units of one object
DEVICES_OF_A_CLAIM = 32  # at most, as in resource.k8s.io
_SHORT = frozenset(
    ("pods", "services", "replicationcontrollers", "resourcequotas", "secrets", "configmaps", "persistentvolumeclaims")
)


class QuotaCharge(msgspec.Struct, frozen=True):
    """What one object counts for, and what scopes ask about it."""

    amounts: Amounts
    pod: bool = False
    terminating: bool = False
    best_effort: bool = False
    priority_class: str = ""
    across: bool = False  # a pod whose (anti-)affinity looks into other namespaces
    attributes: frozenset[str] | None = None  # of a claim: its present, earlier and requested VolumeAttributesClasses


class Quota(msgspec.Struct):
    name: str
    spec: Json
    used: Amounts = msgspec.field(default_factory=dict)
    hard: Amounts = msgspec.field(default_factory=dict)

    def counts(self, charge: QuotaCharge) -> bool:
        scopes = self.spec.get("scopes") or ()
        selector = (self.spec.get("scopeSelector") or {}).get("matchExpressions") or ()
        return all(_in_scope(scope, charge) for scope in scopes) and all(_selected(rule, charge) for rule in selector)

    def add(self, charge: QuotaCharge, times: int) -> None:
        if self.counts(charge):
            for name in self.hard.keys() & charge.amounts.keys():
                self.used[name] = self.used.get(name, 0) + times * charge.amounts[name]


def _in_scope(scope: str, charge: QuotaCharge) -> bool:
    if scope == "VolumeAttributesClass":
        return bool(charge.attributes)
    if not charge.pod:
        return False
    match scope:
        case "Terminating":
            return charge.terminating
        case "NotTerminating":
            return not charge.terminating
        case "BestEffort":
            return charge.best_effort
        case "NotBestEffort":
            return not charge.best_effort
        case "PriorityClass":
            return bool(charge.priority_class)
        case "CrossNamespacePodAffinity":
            return charge.across
    return False


def _selected(rule: Json, charge: QuotaCharge) -> bool:
    scope, values = str(rule.get("scopeName")), rule.get("values") or ()
    if scope == "PriorityClass" and charge.pod:
        names = frozenset({charge.priority_class} - {""})
    elif scope == "VolumeAttributesClass" and charge.attributes is not None:
        names = charge.attributes
    else:
        return _in_scope(scope, charge)
    match rule.get("operator"):
        case "In":
            return not names.isdisjoint(values)
        case "NotIn":
            return names.isdisjoint(values)
        case "DoesNotExist":
            return not names
    return bool(names)


class Ledger(msgspec.Struct):
    seen: object  # the quotas of the namespace as the store listed them
    quotas: list[Quota]
    charges: dict[tuple[str, str], QuotaCharge] = msgspec.field(default_factory=dict)  # (storage key, name)

    def set(self, key: Key, charge: QuotaCharge | None) -> bool:
        """Set the charge of an object (None: it is gone); return True if anything changed."""
        place = (key[0], key[2])
        before = self.charges.get(place)
        if before == charge:
            return False
        if before is not None:
            for quota in self.quotas:
                quota.add(before, -1)
        if charge is None:
            self.charges.pop(place, None)
        else:
            self.charges[place] = charge
            for quota in self.quotas:
                quota.add(charge, 1)
        return True


class Quotas:
    def __init__(self, ctx: Context) -> None:
        self._store, self._registry = ctx.store, ctx.registry
        self._ledgers: dict[str, Ledger] = {}
        self.dirty: set[str] = set()  # namespaces whose quotas may have another status now
        self.woken = asyncio.Event()

    def check(self, kind: Kind, new: Json, namespace: str) -> None:
        """Check that writing this object exceeds no quota; `note` must follow at once. Raises Forbidden."""
        if not namespace or not self._store.list(TABLE, namespace):
            return
        ledger = self._ledger(namespace)
        name = str(new["metadata"].get("name") or "")
        charge, before = charge_of(kind, new), ledger.charges.get((kind.storage_key, name))
        for quota in ledger.quotas:
            if not quota.counts(charge):
                continue
            self._complete(kind, new, quota, before)
            had = before.amounts if before is not None and quota.counts(before) else {}
            asked = {name_: charge.amounts.get(name_, 0) - had.get(name_, 0) for name_ in quota.hard}
            over = [
                name_
                for name_, more in asked.items()
                if more > 0 and quota.used.get(name_, 0) + more > quota.hard[name_]
            ]
            if over:
                raise self._exceeded(kind, name, quota, asked, sorted(over))

    def _complete(self, kind: Kind, new: Json, quota: Quota, before: QuotaCharge | None) -> None:
        """Check that every container of a new pod specifies the cpu and memory that the quota limits.

        A pod that specifies them for the pod as a whole passes. Raises Forbidden.
        """
        if kind.storage_key != "pods" or before is not None:
            return
        spec = new["spec"]
        if any(of_whole_pod(name) for part in ("requests", "limits") for name in amounts(spec, part)):
            return  # set for the whole pod
        missing: list[str] = []
        for resource in sorted(quota.hard):
            part, _, plain = resource.rpartition(".")
            if resource in ("cpu", "memory"):
                part, plain = "requests", resource
            if part not in ("requests", "limits") or plain not in COMPUTE_RESOURCES:
                continue
            names = sorted(
                {
                    str(container.get("name"))
                    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
                    if plain not in ((container.get("resources") or {}).get(part) or {})
                }
            )
            if names:
                missing.append(f"{resource} for: {','.join(names)}")
        if missing:
            raise forbidden(
                kind,
                str(new["metadata"].get("name") or ""),
                f"failed quota: {quota.name}: must specify {'; '.join(missing)}",
            )

    def _exceeded(self, kind: Kind, name: str, quota: Quota, asked: Amounts, over: list[str]) -> Forbidden:
        def shown(table: Amounts) -> str:
            return ",".join(f"{resource}={text_of(table.get(resource, 0))}" for resource in over)

        parts = f"requested: {shown(asked)}, used: {shown(quota.used)}, limited: {shown(quota.hard)}"
        return forbidden(kind, name, f"exceeded quota: {quota.name}, {parts}")

    def note(self, key: Key, obj: Json | None) -> None:
        """Charge an object that is being written, or is gone (None).

        Called for every write: most namespaces have no ledger.
        """
        if key[0] == TABLE:
            self._wake(key[1])
        ledger = self._ledgers.get(key[1]) if self._ledgers else None
        if ledger is None:
            return
        kind = self._registry.by_storage_key(key[0])  # None: its definition was deleted before it
        charge = charge_of(kind, obj) if kind is not None and obj is not None else None
        if ledger.set(key, charge):
            self._wake(key[1])

    def _wake(self, namespace: str) -> None:
        self.dirty.add(namespace)
        self.woken.set()

    def forget(self) -> None:
        """Count everything again, in case a write was missed."""
        self._ledgers.clear()
        for entry in self._store.list(TABLE):
            self._wake(entry.key[1])

    def statuses(self, namespace: str) -> Iterator[tuple[str, Json]]:
        """Yield the quotas of a namespace and what their status should be."""
        if not self._store.list(TABLE, namespace):
            self._ledgers.pop(namespace, None)
            return
        for quota in self._ledger(namespace).quotas:
            hard = quota.spec.get("hard") or {}
            used = {name: text_of(quota.used.get(name, 0), str(hard[name])) for name in hard}
            yield quota.name, {"hard": hard, "used": used}

    def _ledger(self, namespace: str) -> Ledger:
        listed = self._store.list(TABLE, namespace)
        known = self._ledgers.get(namespace)
        if known is not None and known.seen is listed:
            return known
        quotas = []
        for entry in listed:
            spec: Json = decode(entry.value).get("spec") or {}
            hard = {name: nanos(text) for name, text in (spec.get("hard") or {}).items()}
            quotas.append(Quota(entry.key[2], spec, {}, hard))
        if known is not None and [(q.name, q.spec) for q in quotas] == [(q.name, q.spec) for q in known.quotas]:
            known.seen = listed  # only a status was written
            return known
        ledger = Ledger(listed, quotas)
        if known is not None:
            for (table, name), charge in known.charges.items():
                ledger.set((table, namespace, name), charge)
        else:
            for kind in self._registry.all():
                if kind.stored and not kind.stored_as and kind.namespaced:
                    for entry in self._store.list(kind.storage_key, namespace):
                        ledger.set(entry.key, charge_of(kind, decode(entry.value)))
        self._ledgers[namespace] = ledger
        return ledger


def charge_of(kind: Kind, obj: Json) -> QuotaCharge:
    found: Amounts = {f"count/{kind.key}": ONE}
    key, spec = kind.storage_key, obj.get("spec") or {}
    if key == "pods":
        return _pod_charge(obj, found)
    if key in _SHORT:
        found[key] = ONE
    if key == "services":
        ports = len(spec.get("ports") or ())
        if spec.get("type") == "LoadBalancer":
            found["services.loadbalancers"] = ONE
        if spec.get("type") in ("NodePort", "LoadBalancer") and spec.get("allocateLoadBalancerNodePorts") is not False:
            found["services.nodeports"] = ports * ONE
    elif key == "persistentvolumeclaims":
        storage = ((spec.get("resources") or {}).get("requests") or {}).get("storage")
        size = nanos(storage) if storage else 0
        found["requests.storage"] = size
        if spec.get("storageClassName"):
            prefix = f"{spec['storageClassName']}.storageclass.storage.k8s.io"
            found[f"{prefix}/requests.storage"], found[f"{prefix}/persistentvolumeclaims"] = size, ONE
        return QuotaCharge(found, attributes=_attributes_classes(obj))
    elif key == "resourceclaims.resource.k8s.io":
        for name, count in _devices(spec).items():
            found[f"{name}.deviceclass.resource.k8s.io/devices"] = count * ONE
    return QuotaCharge(found)


def _devices(spec: Json) -> dict[str, int]:
    """Return how many devices of each class a claim may get.

    Of alternatives the largest count; for all devices of a class, the most that a claim can hold.
    """
    found: dict[str, int] = {}
    for request in (spec.get("devices") or {}).get("requests") or ():
        most: dict[str, int] = {}
        for requested in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if requested:
                name = str(requested.get("deviceClassName"))
                count = (
                    DEVICES_OF_A_CLAIM if requested.get("allocationMode") == "All" else int(requested.get("count") or 1)
                )
                most[name] = max(most.get(name, 0), count)
        for name, count in most.items():
            found[name] = found.get(name, 0) + count
    return found


def _attributes_classes(claim: Json) -> frozenset[str]:
    status = claim.get("status") or {}
    asked = (claim.get("spec") or {}).get("volumeAttributesClassName")
    target = (status.get("modifyVolumeStatus") or {}).get("targetVolumeAttributesClassName")
    return frozenset(filter(None, (asked, status.get("currentVolumeAttributesClassName"), target)))


def _pod_charge(pod: Json, found: Amounts) -> QuotaCharge:
    spec = pod.get("spec") or {}
    requests, limits = pod_amounts(spec, "requests"), pod_amounts(spec, "limits")
    if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"):  # a finished pod uses nothing
        found["pods"] = ONE
        for name, amount in requests.items():
            found[f"requests.{name}"] = amount
            if name in COMPUTE_RESOURCES or name.startswith("hugepages-"):
                found[name] = amount
        for name, amount in limits.items():
            found[f"limits.{name}"] = amount
    seconds = spec.get("activeDeadlineSeconds")
    best_effort = not any(table.get(name) for table in (requests, limits) for name in ("cpu", "memory"))
    return QuotaCharge(
        found,
        True,
        seconds is not None and seconds >= 0,
        best_effort,
        str(spec.get("priorityClassName") or ""),
        _looks_across(spec.get("affinity") or {}),
    )


def _looks_across(affinity: Json) -> bool:
    for kind in ("podAffinity", "podAntiAffinity"):
        rules = affinity.get(kind) or {}
        terms = [*(rules.get(REQUIRED_AFFINITY) or ())]
        for weighed in rules.get(PREFERRED_AFFINITY) or ():
            terms.append(weighed.get("podAffinityTerm") or {})
        if any(term.get("namespaces") or term.get("namespaceSelector") is not None for term in terms):
            return True
    return False


def text_of(amount: int, like: str = "") -> str:
    """Format an amount as a quantity, in binary units if `like`, the limit, is written so."""
    if like.endswith("i") and amount % ONE == 0:
        whole = amount // ONE
        for unit, size in (("Ti", 1 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)):
            if whole and whole % size == 0:
                return f"{whole // size}{unit}"
        return str(whole)
    return canonical(f"{amount}n") if amount % ONE else canonical(str(amount // ONE))
