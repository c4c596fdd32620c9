"""Dynamic resource allocation (resource.k8s.io/v1): claims and their templates, device classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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
    too_many,
)
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.objects.devices import MAX_CONSUMERS, MAX_RESULTS
from phalanx.model.quantity import is_valid
from phalanx.model.rules import meta, placement
from phalanx.model.rules.assembly import OwnRules, frozen
from phalanx.model.rules.declared import same
from phalanx.model.rules.slices import EFFECTS, identifier, pool_name

MAX_REQUESTS = MAX_CONSTRAINTS = MAX_CONFIGS = MAX_SELECTORS = 32
MAX_ALTERNATIVES = 8
MAX_EXPRESSION = 10 * 1024  # bytes
MAX_REPORTED = 8  # conditions of one allocated device
_DEVICE = ("driver", "pool", "device", "shareID")
_MODES = ("All", "ExactCount")
_OPERATORS = ("Equal", "Exists")

# ---- requests of a claim


def _spec_default(spec: Json) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        for part in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if part is None:
                continue
            part.setdefault("allocationMode", "ExactCount")
            if part["allocationMode"] == "ExactCount" and not part.get("count"):
                part["count"] = 1
            for toleration in part.get("tolerations") or ():
                toleration.setdefault("operator", "Equal")


def _drop_gated(spec: Json) -> None:
    """Drop the fields of feature gates that are off by default in 1.37 and that we do not have."""
    for request in (spec.get("devices") or {}).get("requests") or ():
        for part in (request.get("exactly"), *(request.get("firstAvailable") or ())):
            if part is not None:
                part.pop("derivedAttributes", None)


def _selectors(found: Iterable[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    selectors = list(found)
    if len(selectors) > MAX_SELECTORS:
        errors.append(too_many(path, len(selectors), MAX_SELECTORS))
    for index, selector in enumerate(selectors):
        at = f"{path}[{index}].cel"
        if not selector.get("cel"):
            errors.append(required(at))
            continue
        expression = selector["cel"].get("expression") or ""
        if not expression:
            errors.append(required(f"{at}.expression"))
        elif len(expression.encode()) > MAX_EXPRESSION:
            errors.append(too_long(f"{at}.expression", MAX_EXPRESSION))
    return errors


def _tolerations(found: Iterable[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, toleration in enumerate(found):
        at, key = f"{path}[{index}]", toleration.get("key") or ""
        operator = toleration.get("operator") or "Equal"
        if operator in _OPERATORS:
            errors += placement.toleration_key(key, operator, at)
        else:
            errors.append(not_supported(f"{at}.operator", operator, _OPERATORS))
        if operator == "Exists" and toleration.get("value"):
            errors.append(invalid(f"{at}.value", toleration["value"], "must be empty for operator `Exists`"))
        effect = toleration.get("effect") or ""
        if effect and effect not in EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, EFFECTS))
    return errors


def _part(part: Json, path: str) -> list[FieldError]:
    """Check a device request, or an alternative of one."""
    errors: list[FieldError] = []
    class_name = part.get("deviceClassName") or ""
    if not class_name:
        errors.append(required(f"{path}.deviceClassName"))
    else:
        errors += all_invalid(f"{path}.deviceClassName", class_name, names.dns_subdomain(class_name))
    errors += _selectors(part.get("selectors") or (), f"{path}.selectors")
    mode, count = part.get("allocationMode") or "ExactCount", part.get("count") or 0
    if mode not in _MODES:
        errors.append(not_supported(f"{path}.allocationMode", mode, _MODES))
    elif mode == "All" and count:
        errors.append(invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'"))
    elif mode == "ExactCount" and count <= 0:
        errors.append(invalid(f"{path}.count", count, "must be greater than zero"))
    errors += _tolerations(part.get("tolerations") or (), f"{path}.tolerations")
    errors += _quantities((part.get("capacity") or {}).get("requests") or {}, f"{path}.capacity.requests")
    return errors


def _quantities(found: Mapping[str, Any], path: str) -> list[FieldError]:
    text = "must be a quantity"
    return [invalid(f"{path}[{name}]", value, text) for name, value in found.items() if not is_valid(value)]


def _request(request: Json, path: str) -> list[FieldError]:
    name = request.get("name") or ""
    errors = all_invalid(f"{path}.name", name, names.dns_label(name)) if name else [required(f"{path}.name")]
    exactly, options = request.get("exactly"), request.get("firstAvailable") or ()
    if exactly is not None and options:
        errors.append(
            invalid(path, None, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set")
        )
    elif exactly is None and not options:
        errors.append(required(path, "exactly one of `exactly` or `firstAvailable` is required"))
    if exactly is not None:
        errors += _part(exactly, f"{path}.exactly")
    if len(options) > MAX_ALTERNATIVES:
        errors.append(too_many(f"{path}.firstAvailable", len(options), MAX_ALTERNATIVES))
    known: set[str] = set()
    for index, option in enumerate(options):
        at, own = f"{path}.firstAvailable[{index}]", option.get("name") or ""
        errors += all_invalid(f"{at}.name", own, names.dns_label(own)) if own else [required(f"{at}.name")]
        if own in known:
            errors.append(duplicate(f"{at}.name", own))
        known.add(own)
        errors += _part(option, at)
    return errors


def _request_names(devices: Json) -> set[str]:
    found = set()
    for request in devices.get("requests") or ():
        name = request.get("name") or ""
        found.add(name)
        found.update(f"{name}/{option.get('name')}" for option in request.get("firstAvailable") or ())
    return found


def _references(used: Iterable[str], known: set[str], path: str) -> list[FieldError]:
    text = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
    return [invalid(f"{path}[{index}]", name, text) for index, name in enumerate(used) if name not in known]


def _constraint(limit: Json, known: set[str], path: str) -> list[FieldError]:
    errors = _references(limit.get("requests") or (), known, f"{path}.requests")
    attributes = [field for field in ("matchAttribute", "distinctAttribute") if limit.get(field) is not None]
    if not attributes:
        return [*errors, required(path, "one of `matchAttribute` and `distinctAttribute` is required")]
    # With both, kube-apiserver accepts the constraint and the allocator uses the first.
    at, name = f"{path}.{attributes[0]}", limit[attributes[0]]
    if "/" not in name:
        errors.append(invalid(at, name, "a fully qualified name must be a domain and a name separated by a slash"))
        return errors
    domain, _, short = name.partition("/")
    return [*errors, *all_invalid(at, domain, names.dns_subdomain(domain)), *identifier(short, at)]


def _config(found: Iterable[Json], known: set[str] | None, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, each in enumerate(found):
        at = f"{path}[{index}]"
        if known is not None:
            errors += _references(each.get("requests") or (), known, f"{at}.requests")
        opaque = each.get("opaque")
        if opaque is None:
            errors.append(required(f"{at}.opaque"))
            continue
        driver = opaque.get("driver") or ""
        errors += (
            all_invalid(f"{at}.opaque.driver", driver, names.dns_subdomain(driver))
            if driver
            else [required(f"{at}.opaque.driver")]
        )
        errors += _parameters(opaque.get("parameters"), f"{at}.opaque.parameters")
    return errors


def _parameters(found: Any, path: str) -> list[FieldError]:
    if found is None:
        return [required(path)]
    return [] if isinstance(found, dict) else [invalid(path, "<value omitted>", "must be a valid JSON object")]


def _spec_errors(spec: Json, path: str) -> list[FieldError]:
    devices: Json = spec.get("devices") or {}
    at = f"{path}.devices"
    errors: list[FieldError] = []
    known: set[str] = set()
    requests = devices.get("requests") or ()
    for field, limit in (("requests", MAX_REQUESTS), ("constraints", MAX_CONSTRAINTS), ("config", MAX_CONFIGS)):
        if len(devices.get(field) or ()) > limit:
            errors.append(too_many(f"{at}.{field}", len(devices[field]), limit))
    for index, request in enumerate(requests):
        errors += _request(request, f"{at}.requests[{index}]")
        if request.get("name") in known:
            errors.append(duplicate(f"{at}.requests[{index}].name", request["name"]))
        known.add(request.get("name") or "")
    every = _request_names(devices)
    for index, limit in enumerate(devices.get("constraints") or ()):
        errors += _constraint(limit, every, f"{at}.constraints[{index}]")
    return errors + _config(devices.get("config") or (), every, f"{at}.config")


# ---- what a claim was given


def _status_errors(new: Json, old: Json) -> list[FieldError]:
    status: Json = new.get("status") or {}
    before: Json = old.get("status") or {}
    errors: list[FieldError] = []
    allocation, had = status.get("allocation"), before.get("allocation")
    if allocation is not None and had is not None and not same(allocation, had):
        errors.append(immutable("status.allocation", allocation))
    elif allocation is not None and had is None:
        errors += _allocation_errors(allocation, (new.get("spec") or {}).get("devices") or {})
        if (new.get("metadata") or {}).get("deletionTimestamp"):
            errors.append(forbidden("status.allocation", "resource claim is being deleted"))
    reserved = status.get("reservedFor") or ()
    errors += _reserved_errors(reserved, before.get("reservedFor") or (), new)
    if reserved and allocation is None:
        errors.append(forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
    return errors + _reported_errors(status.get("devices") or (), allocation or {})


def _reported_errors(found: Iterable[Json], allocation: Json) -> list[FieldError]:
    """Check what drivers report about the devices of a claim."""
    errors: list[FieldError] = []
    results = (allocation.get("devices") or {}).get("results") or ()
    allocated = {tuple(result.get(field) for field in _DEVICE) for result in results}
    known: set[tuple[Any, ...]] = set()
    for index, each in enumerate(found):
        at = f"status.devices[{index}]"
        errors += _device_name(each, at)
        identity = tuple(each.get(field) for field in _DEVICE)
        if identity not in allocated:
            errors.append(invalid(at, "/".join(map(str, identity[:3])), "must be an allocated device in the claim"))
        elif identity in known:
            errors.append(duplicate(at, "/".join(map(str, identity[:3]))))
        known.add(identity)
        conditions = each.get("conditions") or []
        if len(conditions) > MAX_REPORTED:
            errors.append(too_many(f"{at}.conditions", len(conditions), MAX_REPORTED))
        errors += meta.conditions(conditions, f"{at}.conditions")
        if each.get("data") is not None:
            errors += _parameters(each["data"], f"{at}.data")
    return errors


def _reserved_errors(reserved: Iterable[Json], before: Iterable[Json], claim: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    entries = list(reserved)
    if len(entries) > MAX_CONSUMERS:
        errors.append(too_many("status.reservedFor", len(entries), MAX_CONSUMERS))
    known: set[str] = set()
    for index, each in enumerate(entries):
        at = f"status.reservedFor[{index}]"
        errors += [required(f"{at}.{field}") for field in ("resource", "name", "uid") if not each.get(field)]
        if each.get("uid") in known:
            errors.append(duplicate(f"{at}.uid", each["uid"]))
        known.add(each.get("uid") or "")
    more = known - {each.get("uid") or "" for each in before}
    if more and (claim.get("metadata") or {}).get("deletionTimestamp"):
        errors.append(forbidden("status.reservedFor", "resource claim is being deleted"))
    return errors


def _allocation_errors(allocation: Json, devices: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    path = "status.allocation.devices.results"
    results = (allocation.get("devices") or {}).get("results") or ()
    if len(results) > MAX_RESULTS:
        errors.append(too_many(path, len(results), MAX_RESULTS))
    known = _request_names(devices)
    for index, result in enumerate(results):
        at = f"{path}[{index}]"
        if result.get("request") not in known:
            errors.append(
                invalid(f"{at}.request", result.get("request") or "", "must be the name of a request in the claim")
            )
        errors += _device_name(result, at)
    if (selector := allocation.get("nodeSelector")) is not None:
        errors += placement.node_selector(selector, "status.allocation.nodeSelector")
    return errors


def _device_name(found: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for field, problems in (("driver", names.dns_subdomain), ("pool", pool_name), ("device", names.dns_label)):
        value = found.get(field) or ""
        errors += all_invalid(f"{path}.{field}", value, problems(value)) if value else [required(f"{path}.{field}")]
    return errors


# ---- kinds


def resource_claim(gates: Gates) -> OwnRules:
    return OwnRules(
        default=lambda obj: _spec_default(obj.setdefault("spec", {})),
        prepare=lambda new, old: _drop_gated(new.get("spec") or {}),
        create=lambda obj: _spec_errors(obj.get("spec") or {}, "spec"),
        update=lambda new, old: frozen(new, old, "", "spec"),
        status=_status_errors,
    )


def resource_claim_template(gates: Gates) -> OwnRules:
    return OwnRules(
        default=lambda obj: _spec_default(obj.setdefault("spec", {}).setdefault("spec", {})),
        prepare=lambda new, old: _drop_gated((new.get("spec") or {}).get("spec") or {}),
        create=lambda obj: _spec_errors((obj.get("spec") or {}).get("spec") or {}, "spec.spec"),
        update=lambda new, old: frozen(new, old, "", "spec"),
    )


def device_class(gates: Gates) -> OwnRules:
    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors = _selectors(spec.get("selectors") or (), "spec.selectors")
        errors += _config(spec.get("config") or (), None, "spec.config")
        resource = spec.get("extendedResourceName")
        if resource is not None and ("/" not in resource or resource.partition("/")[0].endswith("kubernetes.io")):
            errors.append(invalid("spec.extendedResourceName", resource, "must be an extended resource name"))
        return errors

    return OwnRules(errors=errors_of)


def expressions(obj: Json, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the CEL selectors of a claim, a template or a class, with the paths of their fields."""
    spec: Json = obj.get("spec") or {}
    if kind == "DeviceClass":
        yield from _expressions(spec.get("selectors") or (), "spec.selectors")
        return
    path = "spec"
    if kind == "ResourceClaimTemplate":
        spec, path = spec.get("spec") or {}, "spec.spec"
    for index, request in enumerate((spec.get("devices") or {}).get("requests") or ()):
        at = f"{path}.devices.requests[{index}]"
        yield from _expressions((request.get("exactly") or {}).get("selectors") or (), f"{at}.exactly.selectors")
        for number, option in enumerate(request.get("firstAvailable") or ()):
            yield from _expressions(option.get("selectors") or (), f"{at}.firstAvailable[{number}].selectors")


def _expressions(selectors: Sequence[Json], path: str) -> Iterator[tuple[str, str]]:
    for index, selector in enumerate(selectors):
        expression = (selector.get("cel") or {}).get("expression")
        if isinstance(expression, str) and expression:
            yield f"{path}[{index}].cel.expression", expression


def admin_access(spec: Json) -> str:
    """Return the path of the first request for administrative access to devices; "" if there is none."""
    requests = (spec.get("devices") or {}).get("requests") or ()
    asking = (i for i, request in enumerate(requests) if (request.get("exactly") or {}).get("adminAccess"))
    return next((f"devices.requests[{i}].adminAccess" for i in asking), "")
