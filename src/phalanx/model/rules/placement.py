"""Where pods may go: tolerations, taints, node and pod affinity, spread constraints, and the selectors inside them."""

from __future__ import annotations

from phalanx.base.well_known import PREFERRED_AFFINITY, REQUIRED_AFFINITY
from phalanx.model import names
from phalanx.model.fieldpath import all_invalid, duplicate, forbidden, invalid, not_supported, required
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules.meta import label_errors
from phalanx.model.selectors import integer

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def places_exclusively(affinity: Json, topology: str) -> bool:
    """Return True if a pod has its own affinity and anti-affinity terms for this topology."""
    return all(
        any(term.get("topologyKey") == topology for term in (affinity.get(field) or {}).get(REQUIRED_AFFINITY) or ())
        for field in ("podAffinity", "podAntiAffinity")
    )


def label_selector(selector: Json | None, path: str) -> list[FieldError]:
    """Check a LabelSelector object, which may be absent."""
    if not selector:
        return []
    errors = label_errors(selector.get("matchLabels"), f"{path}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions") or ()):
        errors += _expression(expression, f"{path}.matchExpressions[{index}]", numeric=False)
    return errors


def _expression(expression: Json, at: str, *, numeric: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    operator, values = expression.get("operator") or "", expression.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            errors.append(required(f"{at}.values", "must be specified when `operator` is 'In' or 'NotIn'"))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            text = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            errors.append(forbidden(f"{at}.values", text))
    elif numeric and operator in ("Gt", "Lt"):
        if len(values) != 1:
            errors.append(required(f"{at}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'"))
    else:
        errors.append(invalid(f"{at}.operator", operator, "not a valid selector operator"))
    key = expression.get("key") or ""
    errors += all_invalid(f"{at}.key", key, names.label_key(key))
    if not (numeric and operator in ("Gt", "Lt")):
        for index, value in enumerate(values):
            errors += all_invalid(f"{at}.values[{index}]", value, names.label_value(value))
    return errors


def node_term(term: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, expression in enumerate(term.get("matchExpressions") or ()):
        errors += _expression(expression, f"{path}.matchExpressions[{index}]", numeric=True)
    for index, expression in enumerate(term.get("matchFields") or ()):
        at = f"{path}.matchFields[{index}]"
        values = expression.get("values") or []
        if expression.get("operator") not in ("In", "NotIn"):
            text = "not a valid selector operator"
            errors.append(invalid(f"{at}.operator", expression.get("operator") or "", text))
        elif len(values) != 1:
            text = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            errors.append(required(f"{at}.values", text))
        if expression.get("key") != "metadata.name":
            errors.append(invalid(f"{at}.key", expression.get("key") or "", "not a valid field selector key"))
        else:
            for number, value in enumerate(values):
                errors += all_invalid(f"{at}.values[{number}]", value, names.dns_subdomain(value))
    return errors


def node_selector(selector: Json, path: str) -> list[FieldError]:
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        return [required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")]
    errors: list[FieldError] = []
    for index, term in enumerate(terms):
        errors += node_term(term, f"{path}.nodeSelectorTerms[{index}]")
    return errors


def toleration_key(key: str, operator: str, at: str) -> list[FieldError]:
    if key:
        return all_invalid(f"{at}.key", key, names.label_key(key))
    if operator == "Exists":
        return []
    text = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
    return [invalid(f"{at}.operator", operator, text)]


def tolerations(found: list[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, toleration in enumerate(found):
        at = f"{path}[{index}]"
        key, operator = toleration.get("key") or "", toleration.get("operator") or ""
        value, effect = toleration.get("value") or "", toleration.get("effect") or ""
        errors += toleration_key(key, operator, at)
        if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
            text = "effect must be 'NoExecute' when `tolerationSeconds` is set"
            errors.append(invalid(f"{at}.effect", effect, text))
        if operator in ("", "Equal"):
            if problems := names.label_value(value):
                errors.append(invalid(f"{at}.operator", value, ";".join(problems)))
        elif operator == "Exists":
            if value:
                text = "value must be empty when `operator` is 'Exists'"
                errors.append(invalid(f"{at}.operator", value, text))
        elif operator in ("Gt", "Lt"):
            if integer(value) is None:
                errors.append(invalid(f"{at}.value", value, "must be a valid decimal integer in the 64-bit range"))
        else:
            errors.append(not_supported(f"{at}.operator", operator, ("Equal", "Exists")))
        if effect and effect not in _EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, _EFFECTS))
    return errors


def taints(found: list[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(found):
        at = f"{path}[{index}]"
        key, effect = taint.get("key") or "", taint.get("effect") or ""
        errors += all_invalid(f"{at}.key", key, names.label_key(key))
        value = taint.get("value") or ""
        if problems := names.label_value(value):
            errors.append(invalid(f"{at}.value", value, ";".join(problems)))
        if not effect:
            errors.append(required(f"{at}.effect"))
        elif effect not in _EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, _EFFECTS))
        if (key, effect) in seen:
            errors.append(duplicate(at, taint, "taints must be unique by key and effect pair"))
        seen.add((key, effect))
    return errors


def _pod_term(term: Json, path: str) -> list[FieldError]:
    errors = label_selector(term.get("labelSelector"), f"{path}.labelSelector")
    errors += label_selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    for name in term.get("namespaces") or ():
        errors += all_invalid(f"{path}.namespace", name, names.dns_label(name))
    for field in ("matchLabelKeys", "mismatchLabelKeys"):
        errors += _label_keys(term.get(field), term.get("labelSelector"), f"{path}.{field}")
    key = term.get("topologyKey") or ""
    if not key:
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    return errors + all_invalid(f"{path}.topologyKey", key, names.label_key(key))


def _label_keys(keys: list[str] | None, selector: Json | None, path: str) -> list[FieldError]:
    if not keys:
        return []
    if selector is None:
        return [forbidden(path, "must not be specified when labelSelector is not set")]
    errors: list[FieldError] = []
    for index, key in enumerate(keys):
        errors += all_invalid(f"{path}[{index}]", key, names.label_key(key))
    return errors


def _pod_affinity(affinity: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, term in enumerate(affinity.get(REQUIRED_AFFINITY) or ()):
        errors += _pod_term(term, f"{path}.{REQUIRED_AFFINITY}[{index}]")
    for index, weighted in enumerate(affinity.get(PREFERRED_AFFINITY) or ()):
        at = f"{path}.{PREFERRED_AFFINITY}[{index}]"
        errors += _weight(weighted, at)
        errors += _pod_term(weighted.get("podAffinityTerm") or {}, f"{at}.podAffinityTerm")
    return errors


def _weight(weighted: Json, at: str) -> list[FieldError]:
    weight = weighted.get("weight") or 0
    return [] if 1 <= weight <= 100 else [invalid(f"{at}.weight", weight, "must be in the range 1-100")]


def affinity(found: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if node := found.get("nodeAffinity"):
        if node.get(REQUIRED_AFFINITY) is not None:
            errors += node_selector(node[REQUIRED_AFFINITY], f"{path}.nodeAffinity.{REQUIRED_AFFINITY}")
        for index, weighted in enumerate(node.get(PREFERRED_AFFINITY) or ()):
            at = f"{path}.nodeAffinity.{PREFERRED_AFFINITY}[{index}]"
            errors += _weight(weighted, at)
            errors += node_term(weighted.get("preference") or {}, f"{at}.preference")
    for field in ("podAffinity", "podAntiAffinity"):
        if found.get(field):
            errors += _pod_affinity(found[field], f"{path}.{field}")
    return errors


def spread(found: list[Json], path: str) -> list[FieldError]:
    """Check topologySpreadConstraints."""
    errors: list[FieldError] = []
    last = {(each.get("topologyKey") or "", each.get("whenUnsatisfiable") or ""): i for i, each in enumerate(found)}
    for index, constraint in enumerate(found):
        at = f"{path}[{index}]"
        if (constraint.get("maxSkew") or 0) <= 0:
            errors.append(invalid(f"{at}.maxSkew", constraint.get("maxSkew") or 0, "must be greater than zero"))
        key, action = constraint.get("topologyKey") or "", constraint.get("whenUnsatisfiable") or ""
        if not key:
            errors.append(required(f"{at}.topologyKey", "can not be empty"))
        else:
            errors += all_invalid(f"{at}.topologyKey", key, names.label_key(key))
        if action not in ("DoNotSchedule", "ScheduleAnyway"):
            errors.append(not_supported(f"{at}.whenUnsatisfiable", action, ("DoNotSchedule", "ScheduleAnyway")))
        if last[key, action] > index:
            shown = f"{{{key}, {action}}}"
            errors.append(duplicate(f"{at}.{{topologyKey, whenUnsatisfiable}}", shown))
        errors += _spread_details(constraint, action, at)
    return errors


def _spread_details(constraint: Json, action: str, at: str) -> list[FieldError]:
    errors: list[FieldError] = []
    domains = constraint.get("minDomains")
    if domains is not None:
        if domains <= 0:
            errors.append(invalid(f"{at}.minDomains", domains, "must be greater than zero"))
        if action != "DoNotSchedule":
            text = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}"
            errors.append(invalid(f"{at}.minDomains", domains, text))
    for field in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
        value = constraint.get(field)
        if value is not None and value not in ("Honor", "Ignore"):
            errors.append(not_supported(f"{at}.{field}", value, ("Honor", "Ignore")))
    errors += _label_keys(constraint.get("matchLabelKeys"), constraint.get("labelSelector"), f"{at}.matchLabelKeys")
    return errors + label_selector(constraint.get("labelSelector"), f"{at}.labelSelector")


def merge_label_keys(spec: Json, labels: Json) -> None:
    """Convert matchLabelKeys and mismatchLabelKeys to requirements with the labels of the new pod.

    A scheduler then does not need the pod's labels to evaluate them.
    """
    for constraint in spec.get("topologySpreadConstraints") or ():
        _merge_label_keys(constraint, labels, "matchLabelKeys", "In")
    for field in ("podAffinity", "podAntiAffinity"):
        found: Json = (spec.get("affinity") or {}).get(field) or {}
        terms = list(found.get(REQUIRED_AFFINITY) or ())
        terms += [weighted.get("podAffinityTerm") or {} for weighted in found.get(PREFERRED_AFFINITY) or ()]
        for term in terms:
            _merge_label_keys(term, labels, "matchLabelKeys", "In")
            _merge_label_keys(term, labels, "mismatchLabelKeys", "NotIn")


def _merge_label_keys(term: Json, labels: Json, field: str, operator: str) -> None:
    keys = term.get(field)
    selector = term.get("labelSelector")
    if not keys or selector is None:
        return
    expressions = list(selector.get("matchExpressions") or ())
    for key in keys:
        if key in labels:
            requirement = {"key": key, "operator": operator, "values": [labels[key]]}
            if requirement not in expressions:
                expressions.append(requirement)
    if expressions:
        selector["matchExpressions"] = expressions
