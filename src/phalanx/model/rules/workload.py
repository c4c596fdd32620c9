"""Workload: templates of groups. Hand-written tree rules first, then the field rules, as Kubernetes 1.37 orders them.

KEP-6012 rule that 1.37 left out: below a composite template with disruption mode `all` every template is `all`.
"""

from __future__ import annotations

from phalanx.model import names
from phalanx.model.fieldpath import duplicate, forbidden, immutable, invalid, shown
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import meta, workload_v1alpha1
from phalanx.model.rules.contract import Rules, Viewed
from phalanx.model.rules.groupparts import Parts, controller_reference, same, union

MAX_TEMPLATES = 8
MAX_DEPTH = 4
_LEAVES, _COMPOSITES = "podGroupTemplates", "compositePodGroupTemplates"


# -- dropping what a gate forbids ------------------------------------------------------------------------------------


def _drop_leaves(gates: Gates, new: list[Json], old: list[Json]) -> None:
    for index, template in enumerate(new):
        before = old[index] if index < len(old) else {}  # matched by index, as upstream does
        if not gates("TopologyAwareWorkloadScheduling") and before.get("schedulingConstraints") is None:
            template.pop("schedulingConstraints", None)
        if not gates("DRAWorkloadResourceClaims") and not before.get("resourceClaims"):
            template.pop("resourceClaims", None)
        if not gates("PodGroupPreemptionPolicy") and before.get("preemptionPolicy") is None:
            template.pop("preemptionPolicy", None)


def _drop_tree(gates: Gates, new: Json, old: Json) -> None:
    if not gates("CompositePodGroup") and not old.get(_COMPOSITES):
        new.pop(_COMPOSITES, None)
    _drop_leaves(gates, new.get(_LEAVES) or [], old.get(_LEAVES) or [])
    before = {template.get("name"): template for template in old.get(_COMPOSITES) or ()}
    for template in new.get(_COMPOSITES) or ():
        earlier = before.get(template.get("name")) or {}
        if not gates("PodGroupPreemptionPolicy") and earlier.get("preemptionPolicy") is None:
            template.pop("preemptionPolicy", None)
        _drop_tree(gates, template, earlier)


# -- rules over the whole tree ---------------------------------------------------------------------------------------


def _repeated_names(path: str, node: Json, seen: set[str], errors: list[FieldError], top: bool) -> None:
    """Names are unique over the tree; twins inside one list are the field rules' business."""
    for field in (_LEAVES, _COMPOSITES):
        templates: list[Json] = node.get(field) or []
        if not (top and field == _LEAVES):
            for index, template in enumerate(templates):
                if (template.get("name") or "") in seen:
                    errors.append(duplicate(f"{path}.{field}[{index}].name", template.get("name") or ""))
        seen.update(template.get("name") or "" for template in templates)
    for index, template in enumerate(node.get(_COMPOSITES) or ()):
        _repeated_names(f"{path}.{_COMPOSITES}[{index}]", template, seen, errors, False)


def _too_deep(template: Json, level: int) -> bool:
    if level >= MAX_DEPTH:
        return True
    return any(_too_deep(child, level + 1) for child in template.get(_COMPOSITES) or ())


def _priorities(node: Json, found: set[tuple[str, int | None]]) -> None:
    for template in node.get(_LEAVES) or ():
        found.add((template.get("priorityClassName") or "", template.get("priority")))
    for template in node.get(_COMPOSITES) or ():
        found.add((template.get("priorityClassName") or "", template.get("priority")))
        _priorities(template, found)


def _childless(path: str, templates: list[Json], errors: list[FieldError]) -> None:
    for index, template in enumerate(templates):
        at = f"{path}[{index}]"
        if not template.get(_LEAVES) and not template.get(_COMPOSITES):
            text = "must have at least one child PodGroupTemplate or CompositePodGroupTemplate"
            errors.append(invalid(at, template.get("name") or "", text))
        _childless(f"{at}.{_COMPOSITES}", template.get(_COMPOSITES) or [], errors)


def _all(template: Json) -> bool:
    return (template.get("disruptionMode") or {}).get("all") is not None


def _split_units(path: str, templates: list[Json], errors: list[FieldError]) -> None:
    """KEP-6012: what is disrupted as one cannot contain what is disrupted piece by piece."""
    for index, template in enumerate(templates):
        at = f"{path}[{index}]"
        if _all(template):
            for field in (_LEAVES, _COMPOSITES):
                for number, child in enumerate(template.get(field) or ()):
                    if not _all(child):
                        parent = shown(template.get("name") or "")
                        text = f"must be `all`, because the parent template {parent} has disruptionMode `all`"
                        mode = next(iter(child.get("disruptionMode") or {}), "")
                        errors.append(invalid(f"{at}.{field}[{number}].disruptionMode", mode, text))
        _split_units(f"{at}.{_COMPOSITES}", template.get(_COMPOSITES) or [], errors)


def tree_errors(spec: Json) -> list[FieldError]:
    """The rules that look at more than one template. They run on every create and every update."""
    errors: list[FieldError] = []
    composites: list[Json] = spec.get(_COMPOSITES) or []
    _repeated_names("spec", spec, set(), errors, True)
    for index, template in enumerate(composites):
        if _too_deep(template, 1):
            text = f"maximum template hierarchy depth is {MAX_DEPTH}"
            errors.append(invalid(f"spec.{_COMPOSITES}[{index}]", template.get(_COMPOSITES) or [], text))
    flat: set[tuple[str, int | None]] = set()
    _priorities({_LEAVES: spec.get(_LEAVES)}, flat)
    if len(flat) > 1:
        errors.append(invalid("spec", None, "detected multiple priority configurations"))
    else:
        _priorities({_COMPOSITES: composites}, flat)
        if len(flat) > 1:
            text = "all priority and priorityClassName values must be identical, detected multiple values"
            errors.append(invalid("spec", None, text))
    _childless(f"spec.{_COMPOSITES}", composites, errors)
    _split_units(f"spec.{_COMPOSITES}", composites, errors)
    return errors


# -- rules of single fields ------------------------------------------------------------------------------------------


class _Templates(Parts):
    def leaf(self, path: str, new: Json, old: Json | None) -> None:
        before = old or {}
        self.text(f"{path}.name", new.get("name"), before.get("name"), names.short_name)
        self.policy(f"{path}.schedulingPolicy", new.get("schedulingPolicy"), before.get("schedulingPolicy"), "minCount")
        self.constraints(
            f"{path}.schedulingConstraints",
            new.get("schedulingConstraints"),
            before.get("schedulingConstraints"),
            gate="TopologyAwareWorkloadScheduling",
        )
        self.claims(f"{path}.resourceClaims", new.get("resourceClaims"), before.get("resourceClaims"))
        self.disruption(f"{path}.disruptionMode", new.get("disruptionMode"), before.get("disruptionMode"))
        self.priority(path, new, old)

    def composite(self, path: str, new: Json, old: Json | None) -> None:
        before = old or {}
        self.text(f"{path}.name", new.get("name"), before.get("name"), names.short_name)
        policy = f"{path}.schedulingPolicy"
        self.policy(policy, new.get("schedulingPolicy"), before.get("schedulingPolicy"), "minGroupCount")
        self.constraints(
            f"{path}.schedulingConstraints", new.get("schedulingConstraints"), before.get("schedulingConstraints")
        )
        self.disruption(f"{path}.disruptionMode", new.get("disruptionMode"), before.get("disruptionMode"))
        self.priority(path, new, old)
        self.frozen_list(f"{path}.{_LEAVES}", new.get(_LEAVES), before.get(_LEAVES), MAX_TEMPLATES, self.leaf)
        self.frozen_list(
            f"{path}.{_COMPOSITES}", new.get(_COMPOSITES), before.get(_COMPOSITES), MAX_TEMPLATES, self.composite
        )

    def controller(self, path: str, new: Json | None, old: Json | None) -> None:
        if self.update:
            if not same(new, old):
                self.errors.append(immutable(path))
            return
        if new is not None:
            self.errors += controller_reference(path, new)

    def spec(self, new: Json, old: Json | None) -> None:
        before = old or {}
        union(self.errors, "spec", (_LEAVES, _COMPOSITES), new, old, lists=True)
        self.controller("spec.controllerRef", new.get("controllerRef"), before.get("controllerRef"))
        self.frozen_list(f"spec.{_LEAVES}", new.get(_LEAVES), before.get(_LEAVES), MAX_TEMPLATES, self.leaf)
        path = f"spec.{_COMPOSITES}"
        found = new.get(_COMPOSITES)
        if not self.gates("CompositePodGroup") and found and not same(found, before.get(_COMPOSITES)):
            self.errors.append(forbidden(path))
            if not self.update:
                return
        self.frozen_list(path, found, before.get(_COMPOSITES), MAX_TEMPLATES, self.composite)


def rules(gates: Gates) -> Rules:
    """Everything about Workload."""

    def prepare_create(obj: Json) -> None:
        meta.clear_status(obj)
        _drop_tree(gates, obj.setdefault("spec", {}), {})
        if isinstance(obj, Viewed) and obj.view == "v1alpha1":
            workload_v1alpha1.mark(obj)

    def prepare_update(new: Json, old: Json) -> None:
        meta.keep_status(new, old)
        workload_v1alpha1.keep_mark(new, old)
        if isinstance(new, Viewed) and new.view == "v1alpha1":
            workload_v1alpha1.keep_hidden(new, old)
            return  # its groups are as stored, or validation will refuse them
        _drop_tree(gates, new.setdefault("spec", {}), old.get("spec") or {})

    def validate_status(new: Json, old: Json) -> list[FieldError]:
        found = (new.get("status") or {}).get("conditions")
        return meta.on_update(new, old) + meta.conditions(found, "status.conditions")

    def validate_create(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        if isinstance(obj, Viewed) and obj.view == "v1alpha1":
            seen = workload_v1alpha1.create_errors(obj)
            if seen:
                return meta.on_create(obj) + seen
        parts = _Templates(gates, update=False)
        parts.spec(spec, None)
        return meta.on_create(obj) + tree_errors(spec) + parts.errors

    def validate_update(new: Json, old: Json) -> list[FieldError]:
        spec: Json = new.get("spec") or {}
        if isinstance(new, Viewed) and new.view == "v1alpha1":
            # The view can touch only what its own rules cover.
            return meta.on_update(new, old) + workload_v1alpha1.update_errors(new, old)
        parts = _Templates(gates, update=True)
        before: Json = old.get("spec") or {}
        if not same(spec, before):
            parts.spec(spec, before)
        fixed = workload_v1alpha1.fixed_errors(new, old)
        return meta.on_update(new, old) + tree_errors(spec) + (fixed or parts.errors)

    return Rules(
        prepare_create=prepare_create,
        prepare_update=prepare_update,
        validate_create=validate_create,
        validate_update=validate_update,
        prepare_status=meta.keep_all_but_status,
        validate_status=validate_status,
        from_storage={"v1alpha1": workload_v1alpha1.from_storage},
        to_storage={"v1alpha1": workload_v1alpha1.to_storage},
    )
