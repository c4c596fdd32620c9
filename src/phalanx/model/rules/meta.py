"""ObjectMeta: names, labels, annotations, owners, finalizers; and the bookkeeping of status that all kinds share."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.model import names
from phalanx.model.fieldpath import (
    all_invalid,
    duplicate,
    forbidden,
    immutable,
    invalid,
    not_supported,
    required,
    too_long,
)
from phalanx.model.kinds import FieldError, Json

NameRule = Callable[[str], list[str]]
MAX_ANNOTATIONS = 256 * 1024  # bytes, keys and values together


def label_errors(found: Json | None, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for key, value in (found or {}).items():
        if problems := names.label_key(key):
            errors += all_invalid(path, key, problems)
        if problems := names.label_value(value):
            errors += all_invalid(path, value, problems)
    return errors


def annotation_errors(found: Json | None, path: str) -> list[FieldError]:
    if not found:
        return []
    errors: list[FieldError] = []
    size = 0
    for key, value in found.items():
        if problems := names.label_key(key.lower()):
            errors += all_invalid(path, key, problems)
        size += len(key) + len(value)
    # Characters are at least one byte: exact counting is needed only near the limit.
    if size * 4 > MAX_ANNOTATIONS:
        size = sum(len(key.encode()) + len(value.encode()) for key, value in found.items())
        if size > MAX_ANNOTATIONS:
            errors.append(too_long(path, MAX_ANNOTATIONS))
    return errors


def _owners(references: list[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    controller = ""
    for index, reference in enumerate(references):
        at = f"{path}[{index}]"
        version = reference.get("apiVersion") or ""
        if not version:
            errors.append(required(f"{at}.apiVersion", "must not be empty"))
        elif version.count("/") > 1 or version.endswith("/"):
            errors.append(invalid(f"{at}.apiVersion", version, "must be <group>/<version> or <version>"))
        for name in ("kind", "name", "uid"):
            if not reference.get(name):
                errors.append(required(f"{at}.{name}", "must not be empty"))
        if version == "v1" and reference.get("kind") == "Event":
            errors.append(invalid(at, reference, "/v1, Kind=Event is disallowed from being an owner"))
        if reference.get("controller"):
            this = f"{reference.get('kind')}/{reference.get('name')}"
            if controller:
                text = (
                    'Only one reference can have Controller set to true. Found "true" in references for '
                    f"{controller} and {this}"
                )
                errors.append(invalid(path, references, text))
            controller = controller or this
    return errors


def _finalizers(found: list[str], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for name in found:
        errors += all_invalid(path, name, names.label_key(name))
    if "orphan" in found and "foregroundDeletion" in found:
        errors.append(invalid(path, found, "finalizer orphan and foregroundDeletion cannot be both set"))
    return errors


def _common(meta: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    if found := meta.get("labels"):
        errors += label_errors(found, "metadata.labels")
    if found := meta.get("annotations"):
        errors += annotation_errors(found, "metadata.annotations")
    if found := meta.get("ownerReferences"):
        errors += _owners(found, "metadata.ownerReferences")
    return errors


def on_create(obj: Json, name_rule: NameRule = names.dns_subdomain, namespaced: bool = True) -> list[FieldError]:
    """Check the metadata of a new object."""
    meta: Json = obj.get("metadata") or {}
    errors: list[FieldError] = []
    prefix = meta.get("generateName")
    if prefix:
        errors += all_invalid("metadata.generateName", prefix, name_rule(names.generated_prefix(prefix)))
    name = meta.get("name")
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    elif problems := name_rule(name):
        errors += all_invalid("metadata.name", name, problems)
    namespace = meta.get("namespace")
    if namespace:
        if not namespaced:
            errors.append(forbidden("metadata.namespace", "not allowed on this type"))
        elif problems := names.dns_label(namespace):
            errors += all_invalid("metadata.namespace", namespace, problems)
    errors += _common(meta)
    if found := meta.get("finalizers"):
        errors += _finalizers(found, "metadata.finalizers")
    return errors


def on_update(new: Json, old: Json) -> list[FieldError]:
    """Check changed metadata.

    Fields that the server sets itself (resourceVersion, times) are not checked here.
    """
    meta: Json = new.get("metadata") or {}
    before: Json = old.get("metadata") or {}
    errors: list[FieldError] = []
    if before.get("deletionTimestamp"):
        added = sorted(set(meta.get("finalizers") or ()) - set(before.get("finalizers") or ()))
        if added:
            listed = ", ".join(f'"{name}"' for name in added)
            text = (
                "no new finalizers can be added if the object is being deleted, "
                f"found new finalizers []string{{{listed}}}"
            )
            errors.append(forbidden("metadata.finalizers", text))
    for name in ("name", "namespace", "uid"):
        if meta.get(name) and meta.get(name) != before.get(name):
            errors.append(immutable(f"metadata.{name}", meta.get(name)))
    errors += _common(meta)
    if meta.get("finalizers") and meta.get("finalizers") != before.get("finalizers"):
        errors += _finalizers(meta["finalizers"], "metadata.finalizers")
    return errors


def clear_status(obj: Json) -> None:
    """Clear the status of a new object, even if its manifest has one."""
    if "status" in obj:
        obj["status"] = {}


def keep_status(new: Json, old: Json) -> None:
    """Restore the old status: a write to the object itself cannot change it."""
    if "status" in old:
        new["status"] = old["status"]
    else:
        new.pop("status", None)


def keep_all_but_status(new: Json, old: Json) -> None:
    """Restore all old fields except metadata and status: a write to /status changes only the status.

    The server knows for each kind which metadata such a write may change.
    """
    for name in [name for name in new if name not in ("apiVersion", "kind", "metadata", "status")]:
        if name not in old:
            del new[name]
    for name, value in old.items():
        if name not in ("apiVersion", "kind", "metadata", "status"):
            new[name] = value


def conditions(found: list[Json] | None, path: str) -> list[FieldError]:
    """Check a list of metav1.Condition. Pod and Node conditions have an older, looser form."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, condition in enumerate(found or ()):
        at = f"{path}[{index}]"
        kind = condition.get("type") or ""
        if kind in seen:
            errors.append(duplicate(at, kind))
        seen.add(kind)
        errors += _condition(condition, kind, at)
    return errors


def status_conditions(new: Json, old: Json) -> list[FieldError]:
    """Check the conditions in the new status of a kind whose definition has metav1.Condition."""
    return conditions((new.get("status") or {}).get("conditions"), "status.conditions")


def _condition(condition: Json, kind: str, at: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if not kind:
        errors.append(required(f"{at}.type", "is required"))
    else:
        errors += all_invalid(f"{at}.type", kind, names.label_key(kind))
    status = condition.get("status") or ""
    if not status:
        errors.append(required(f"{at}.status"))
    elif status not in ("True", "False", "Unknown"):
        errors.append(not_supported(f"{at}.status", status, ("False", "True", "Unknown")))
    if (condition.get("observedGeneration") or 0) < 0:
        value = condition["observedGeneration"]
        errors.append(invalid(f"{at}.observedGeneration", value, "must be greater than or equal to zero"))
    if not condition.get("lastTransitionTime"):
        errors.append(required(f"{at}.lastTransitionTime"))
    reason = condition.get("reason") or ""
    if not reason:
        errors.append(required(f"{at}.reason"))
    else:
        errors += all_invalid(f"{at}.reason", reason, names.condition_reason(reason))
        if len(reason) > 1024:
            errors.append(too_long(f"{at}.reason", 1024))
    if len((condition.get("message") or "").encode()) > 32768:
        errors.append(too_long(f"{at}.message", 32768))
    return errors
