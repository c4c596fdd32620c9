"""Kinds about the cluster itself: Namespace, Node, PriorityClass, PodDisruptionBudget, Lease, Event, and the like."""

from __future__ import annotations

from phalanx.model import names
from phalanx.model.fieldpath import duplicate, forbidden, invalid, not_supported
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.quantity import compare
from phalanx.model.rules import placement, podspec_defaults, resources
from phalanx.model.rules.assembly import OwnRules, number_or_percent

HIGHEST_USER_PRIORITY = 1_000_000_000
_SYSTEM_CLASSES = {"system-node-critical": 2_000_001_000, "system-cluster-critical": 2_000_000_000}


def namespace(gates: Gates) -> OwnRules:
    """Return the rules of Namespace.

    Each namespace has its name as a label, and a finalizer keeps it until its content is deleted.
    """

    def default(obj: Json) -> None:
        meta: Json = obj.setdefault("metadata", {})
        if meta.get("name"):
            labels = meta.get("labels")
            if labels is None:
                labels = meta["labels"] = {}
            labels["kubernetes.io/metadata.name"] = meta["name"]

    def prepare(new: Json, old: Json | None) -> None:
        spec: Json = new.setdefault("spec", {})
        if old is None:
            finalizers = spec.get("finalizers") or []
            spec["finalizers"] = finalizers if "kubernetes" in finalizers else [*finalizers, "kubernetes"]
            return
        held = (old.get("spec") or {}).get("finalizers") or []
        ending = bool((old.get("metadata") or {}).get("deletionTimestamp"))
        # Finalizers only go, and only from a namespace that is being deleted (the finalize subresource).
        kept = [name for name in held if name in (spec.get("finalizers") or [])] if ending else held
        if kept:
            spec["finalizers"] = kept
        else:
            spec.pop("finalizers", None)

    return OwnRules(
        default=default, prepare=prepare, first_status=lambda obj: {"phase": "Active"}, name=names.dns_label
    )


def node(gates: Gates) -> OwnRules:
    """Return the rules of Node. A new node keeps its status, since nodes register with it."""

    def default(obj: Json) -> None:
        obj.setdefault("spec", {})  # clients read it without asking: kube-apiserver never leaves it out
        status = obj.get("status")
        if status and status.get("capacity") and status.get("allocatable") is None:
            status["allocatable"] = dict(status["capacity"])

    def errors_of(obj: Json) -> list[FieldError]:
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        errors = placement.taints(spec.get("taints") or [], "spec.taints")
        for field in ("capacity", "allocatable"):
            errors += resources.resource_list(status.get(field), f"status.{field}")
        return errors

    def update(new: Json, old: Json) -> list[FieldError]:
        errors = placement.taints((new.get("spec") or {}).get("taints") or [], "spec.taints")
        provider, before = (new.get("spec") or {}).get("providerID"), (old.get("spec") or {}).get("providerID")
        if before and provider != before:
            errors.append(invalid("spec.providerID", None, "field cannot be modified once set"))
        return errors

    def status(new: Json, old: Json) -> list[FieldError]:
        found: Json = new.get("status") or {}
        errors = resources.resource_list(found.get("capacity"), "status.capacity")
        return errors + resources.resource_list(found.get("allocatable"), "status.allocatable")

    return OwnRules(default=default, create=errors_of, update=update, status=status, keeps_first_status=True)


def priority_class(gates: Gates) -> OwnRules:
    def create(obj: Json) -> list[FieldError]:
        errors: list[FieldError] = []
        name, value = (obj.get("metadata") or {}).get("name") or "", obj.get("value") or 0
        if name.startswith("system-"):
            known = _SYSTEM_CLASSES.get(name)
            if known is None or known != value or obj.get("globalDefault"):
                problem = (
                    f"{name} is not a known system priority class"
                    if known is None
                    else f"value of {name} PriorityClass must be {known}"
                    if known != value
                    else f"globalDefault of {name} PriorityClass must be false"
                )
                text = f"priority class names with 'system-' prefix are reserved for system use only. error: {problem}"
                errors.append(forbidden("metadata.name", text))
        elif value > HIGHEST_USER_PRIORITY:
            text = f"maximum allowed value of a user defined priority is {HIGHEST_USER_PRIORITY}"
            errors.append(forbidden("value", text))
        return errors

    def update(new: Json, old: Json) -> list[FieldError]:
        if (new.get("value") or 0) == (old.get("value") or 0):
            return []
        return [forbidden("value", "may not be changed in an update.")]

    return OwnRules(create=create, update=update)


def pod_disruption_budget(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors: list[FieldError] = []
        low, high = spec.get("minAvailable"), spec.get("maxUnavailable")
        if low is not None and high is not None:
            errors.append(invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set"))
        errors += number_or_percent(low, "spec.minAvailable", up_to_100=True)
        errors += number_or_percent(high, "spec.maxUnavailable", up_to_100=True)
        errors += placement.label_selector(spec.get("selector"), "spec.selector")
        return errors

    return OwnRules(errors=errors_of)


def lease(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        seconds = (obj.get("spec") or {}).get("leaseDurationSeconds")
        if seconds is None or seconds > 0:
            return []
        return [invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")]

    return OwnRules(errors=errors_of)


def event(gates: Gates) -> OwnRules:
    """Return the rules of Event.

    An event is in the namespace of the object it is about; for cluster-scoped objects it is in `default`.
    """

    def create(obj: Json) -> list[FieldError]:
        about = (obj.get("involvedObject") or {}).get("namespace") or ""
        where = (obj.get("metadata") or {}).get("namespace") or ""
        if about and where and about != where:
            return [invalid("involvedObject.namespace", about, "does not match event.namespace")]
        return []

    return OwnRules(create=create)


_SCOPES = frozenset(
    (
        "Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity",
        "VolumeAttributesClass",
    )
)  # fmt: skip


def resource_quota(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors: list[FieldError] = []
        for name in spec.get("hard") or ():
            if "/" not in name and name not in resources.STANDARD and not name.startswith("hugepages-"):
                for text in ("type or fully qualified", "for quota"):
                    errors.append(invalid(f"spec.hard[{name}]", name, f"must be a standard resource {text}"))
        errors += resources.resource_list(spec.get("hard"), "spec.hard")
        if any(scope not in _SCOPES for scope in spec.get("scopes") or ()):
            errors.append(invalid("spec.scopes", spec["scopes"], "unsupported scope"))
        return errors

    return OwnRules(errors=errors_of)


_LIMIT_TYPES = ("Container", "PersistentVolumeClaim", "Pod")
_ORDERED = (("min", "max"), ("min", "defaultRequest"), ("defaultRequest", "default"), ("default", "max"))


def _limit_range_default(obj: Json) -> None:
    for item in (obj.get("spec") or {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        default: Json = {**(item.get("max") or {}), **(item.get("default") or {})}
        request: Json = {**(item.get("min") or {}), **default, **(item.get("defaultRequest") or {})}
        for field, values in (("default", default), ("defaultRequest", request)):
            if values:
                item[field] = values


def limit_range(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        errors: list[FieldError] = []
        twice: list[FieldError] = []
        seen: set[str | None] = set()
        for number, item in enumerate((obj.get("spec") or {}).get("limits") or ()):
            at = f"spec.limits[{number}]"
            if item.get("type") in seen:
                twice.append(duplicate(f"{at}.type", item.get("type") or ""))
            seen.add(item.get("type"))
            if item.get("type") not in _LIMIT_TYPES:
                errors.append(not_supported(f"{at}.type", item.get("type") or "", _LIMIT_TYPES))
            wrong: list[FieldError] = []
            for field in ("min", "max", "default", "defaultRequest", "maxLimitRequestRatio"):
                if item.get(field) and item.get("type") == "Pod" and field.startswith("default"):
                    wrong.append(forbidden(f"{at}.{field}", "may not be specified when `type` is 'Pod'"))
                wrong += resources.resource_list(item.get(field), f"{at}.{field}")
            errors += wrong
            for low, high in () if wrong else _ORDERED:
                for name in (item.get(low) or {}).keys() & (item.get(high) or {}).keys():
                    least, most = item[low][name], item[high][name]
                    if compare(least, most) > 0:
                        text = f"{low} value {least} is greater than {high} value {most}"
                        errors.append(invalid(f"{at}.{low}[{name}]", least, text))
        return errors + twice

    return OwnRules(default=_limit_range_default, errors=errors_of)


def pod_template(gates: Gates) -> OwnRules:
    return OwnRules(default=podspec_defaults.template, table=False)
