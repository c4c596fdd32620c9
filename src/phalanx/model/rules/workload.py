"""Workload: templates of groups. Rules of the tree first, then those of its tables, as Kubernetes 1.37 orders them.

KEP-6012 rule that 1.37 left out: below a composite template with disruption mode `all` every template is `all`.
"""

from __future__ import annotations

from phalanx.model.fieldpath import duplicate, invalid, shown
from phalanx.model.gates import Gates
from phalanx.model.groups.hierarchy import MAX_DEPTH
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import meta, workload_v1alpha1
from phalanx.model.rules.contract import Rules, Viewed
from phalanx.model.rules.declared import declared_errors, drop_gated

SPEC = "scheduling/v1beta1.WorkloadSpec"
_LEAVES, _COMPOSITES = "podGroupTemplates", "compositePodGroupTemplates"


def _drop_tree(gates: Gates, record: str, new: Json, old: Json) -> None:
    """Remove what a gate forbids."""
    drop_gated(record, new, old, gates)
    leaves: list[Json] = old.get(_LEAVES) or []
    for index, template in enumerate(new.get(_LEAVES) or ()):  # matched by index, as upstream does
        before = leaves[index] if index < len(leaves) else {}
        drop_gated("scheduling/v1beta1.PodGroupTemplate", template, before, gates)
    earlier = {template.get("name"): template for template in old.get(_COMPOSITES) or ()}
    for template in new.get(_COMPOSITES) or ():
        before = earlier.get(template.get("name")) or {}
        _drop_tree(gates, "scheduling/v1beta1.CompositePodGroupTemplate", template, before)


def _repeated_names(path: str, node: Json, seen: set[str], errors: list[FieldError], top: bool) -> None:
    """Add an error for each template name that is not unique in the tree.

    The field rules report equal names inside one list.
    """
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
    """Check that a template with disruptionMode `all` contains only such templates (KEP-6012)."""
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
    """Check the rules that concern more than one template. They apply to every create and update."""
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


def rules(gates: Gates) -> Rules:
    """Return the rules of Workload."""

    def prepare_create(obj: Json) -> None:
        meta.clear_status(obj)
        _drop_tree(gates, SPEC, obj.setdefault("spec", {}), {})
        if isinstance(obj, Viewed) and obj.view == "v1alpha1":
            workload_v1alpha1.mark(obj)

    def prepare_update(new: Json, old: Json) -> None:
        meta.keep_status(new, old)
        workload_v1alpha1.keep_mark(new, old)
        if isinstance(new, Viewed) and new.view == "v1alpha1":
            workload_v1alpha1.keep_hidden(new, old)
            return  # its groups are as stored, or validation will refuse them
        _drop_tree(gates, SPEC, new.setdefault("spec", {}), old.get("spec") or {})

    def validate_status(new: Json, old: Json) -> list[FieldError]:
        found = (new.get("status") or {}).get("conditions")
        return meta.on_update(new, old) + meta.conditions(found, "status.conditions")

    def validate_create(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        if isinstance(obj, Viewed) and obj.view == "v1alpha1":
            seen = workload_v1alpha1.create_errors(obj)
            if seen:
                return meta.on_create(obj) + seen
        return meta.on_create(obj) + tree_errors(spec) + declared_errors(SPEC, spec, None, "spec", gates)

    def validate_update(new: Json, old: Json) -> list[FieldError]:
        spec: Json = new.get("spec") or {}
        if isinstance(new, Viewed) and new.view == "v1alpha1":
            # The view can touch only what its own rules cover.
            return meta.on_update(new, old) + workload_v1alpha1.update_errors(new, old)
        fixed = workload_v1alpha1.fixed_errors(new, old)
        errors = fixed or declared_errors(SPEC, spec, old.get("spec") or {}, "spec", gates)
        return meta.on_update(new, old) + tree_errors(spec) + errors

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
