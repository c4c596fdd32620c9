"""`pods/resize` and `pods/ephemeralcontainers`: the subresources that change fixed fields of a running pod."""

from __future__ import annotations

from phalanx.model.fieldpath import forbidden, invalid
from phalanx.model.kinds import FieldError, Json, Part
from phalanx.model.rules import meta, podspec, resources
from phalanx.model.rules.declared import same

_RESIZABLE = ("cpu", "memory")
_PLACES = ("containers", "initContainers")


def _kept(new: Json, old: Json, spec: Json) -> Json:
    """Return the old pod with another spec; of its metadata only managedFields are new."""
    metadata = dict(old["metadata"])
    managed = new["metadata"].get("managedFields")
    if managed is not None:
        metadata["managedFields"] = managed
    return {**old, "metadata": metadata, "spec": spec}


# -- resize ----------------------------------------------------------------------------------------------------------


def _resize_only(new: Json, old: Json) -> Json:
    spec, before = new.get("spec") or {}, old["spec"]
    if any(_names(spec, place) != _names(before, place) for place in _PLACES):
        return _kept(new, old, spec)  # refused below
    changed = {
        place: [_with_resources(old_one, new_one) for old_one, new_one in zip(before[place], spec[place], strict=True)]
        for place in _PLACES
        if before.get(place)
    }
    return _kept(new, old, {**before, **changed})


def note_allocated(new: Json, old: Json) -> None:
    """Write the old resources of each container into its status if a resize changes the spec.

    Kubelets write them into every status. Simulated kubelets, to save memory, write them only after a resize, when the
    pod's spec no longer has them; here it still does.
    """
    if all(_resources(new.get("spec") or {}, place) == _resources(old.get("spec") or {}, place) for place in _PLACES):
        return
    status: Json = old.get("status") or {}
    changed = {}
    for place, statuses in (("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")):
        asked = {one.get("name"): one.get("resources") or {} for one in (old.get("spec") or {}).get(place) or ()}
        if status.get(statuses):
            changed[statuses] = [_allocated(one, asked.get(one.get("name")) or {}) for one in status[statuses]]
    new["status"] = {**status, **changed}


def _resources(spec: Json, place: str) -> list[Json]:
    return [container.get("resources") or {} for container in spec.get(place) or ()]


def _allocated(status: Json, asked: Json) -> Json:
    simulated = str(status.get("containerID") or "").startswith("simulated://")
    if not simulated or not asked.get("requests") or status.get("allocatedResources") is not None:
        return status
    return {**status, "allocatedResources": asked["requests"], "resources": asked}


def _names(spec: Json, place: str) -> list[str]:
    return [container.get("name") or "" for container in spec.get(place) or ()]


def _with_resources(old: Json, new: Json) -> Json:
    found = {name: value for name, value in old.items() if name not in ("resources", "resizePolicy")}
    for name in ("resources", "resizePolicy"):
        if new.get(name) is not None:
            found[name] = new[name]
    return found


def _resize_errors(new: Json, old: Json) -> list[FieldError]:
    spec, before = new["spec"], old["spec"]
    if (before.get("os") or {}).get("name") == "windows":
        return [forbidden("", "windows pods cannot be resized")]
    errors = meta.on_update(new, old) + podspec.errors_of(spec)
    quality = (old.get("status") or {}).get("qosClass") or resources.quality_of_service(before)
    if resources.quality_of_service(spec) != quality:
        errors.append(invalid("spec", quality, "Pod QOS Class may not change as a result of resizing"))
    order = _order_errors(spec, before)
    if order:
        return errors + order
    for place in _PLACES:
        for index, (now, was) in enumerate(zip(spec.get(place) or (), before.get(place) or (), strict=True)):
            errors += _container_errors(now, was, f"spec.{place}[{index}]", place == "containers")
    return errors


def _order_errors(spec: Json, before: Json) -> list[FieldError]:
    errors = []
    for place in _PLACES:
        now, was = _names(spec, place), _names(before, place)
        if len(now) != len(was):
            errors.append(forbidden(f"spec.{place}", f"{place} may not be added or removed on resize"))
            continue
        errors += [
            forbidden(f"spec.{place}[{index}].name", f"{place} may not be renamed or reordered on resize")
            for index, name in enumerate(was)
            if now[index] != name
        ]
    return errors


def _container_errors(now: Json, was: Json, path: str, regular: bool) -> list[FieldError]:
    errors = []
    given, held = now.get("resources") or {}, was.get("resources") or {}
    if same(given, held):
        return []
    if not regular and was.get("restartPolicy") != "Always":
        return [forbidden("spec", "resources for non-sidecar init containers are immutable")]
    for field in ("requests", "limits"):
        if (held.get(field) or {}).keys() - (given.get(field) or {}).keys():
            errors.append(forbidden(f"{path}.resources.{field}", f"resource {field} cannot be removed"))
    if not same(_fixed(given), _fixed(held)):
        if regular:
            errors.append(forbidden("spec", "only cpu and memory resources are mutable"))
        else:
            errors.append(forbidden(path, "only cpu and memory resources for init or sidecar containers are mutable"))
    return errors


def _fixed(found: Json) -> Json:
    """Return the part of resources that no resize may change."""
    kept: Json = {"claims": found.get("claims") or []}
    for field in ("requests", "limits"):
        kept[field] = {name: value for name, value in (found.get(field) or {}).items() if name not in _RESIZABLE}
    return kept


# -- ephemeralcontainers ---------------------------------------------------------------------------------------------


def _ephemeral_only(new: Json, old: Json) -> Json:
    spec = {name: value for name, value in old["spec"].items() if name != "ephemeralContainers"}
    asked = (new.get("spec") or {}).get("ephemeralContainers")
    return _kept(new, old, {**spec, "ephemeralContainers": asked} if asked else spec)


def _ephemeral_errors(new: Json, old: Json) -> list[FieldError]:
    errors = meta.on_update(new, old) + podspec.errors_of(new["spec"])
    now = {container.get("name"): container for container in new["spec"].get("ephemeralContainers") or ()}
    for was in old["spec"].get("ephemeralContainers") or ():
        name = was.get("name")
        if name not in now:
            text = f'existing ephemeral containers "{name}" may not be removed'
            errors.append(forbidden("spec.ephemeralContainers", text))
        elif not same(now[name], was):
            text = f'existing ephemeral containers "{name}" may not be changed'
            errors.append(forbidden("spec.ephemeralContainers", text))
    return errors


PARTS = {
    "resize": Part(_resize_only, _resize_errors),
    "ephemeralcontainers": Part(_ephemeral_only, _ephemeral_errors),
}
