"""ResourceSlices and DeviceTaintRules (resource.k8s.io/v1): what drivers publish, and taints of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from phalanx.model import names
from phalanx.model.fieldpath import (
    all_invalid,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from phalanx.model.gates import Gates
from phalanx.model.kinds import FieldError, Json
from phalanx.model.quantity import NANO, is_valid, nanos
from phalanx.model.rules import placement
from phalanx.model.rules.assembly import OwnRules, frozen

MAX_DEVICES = 128  # of one slice
MAX_DEVICES_TAINTED = 64  # of one slice with taints or consumed counters
MAX_ATTRIBUTES = 32  # attributes and capacities of one device
MAX_TAINTS = 16
MAX_CONDITIONS = 4  # binding conditions of one device
MAX_VALUE = 64  # characters of a string or version attribute
MAX_COUNTER_SETS = 8  # of one slice
MAX_COUNTERS = 32  # of one set
MAX_CONSUMED_SETS = 2  # of one device
MAX_VALID_VALUES = 10
MAX_NAME = 32  # characters of the name of an attribute or capacity
EFFECTS = ("NoExecute", "NoSchedule", "None")

_C_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NOT_C = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
_NUMBER, _BEFORE = r"(0|[1-9]\d*)", r"(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)"
_SEMVER = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(-{_BEFORE}(\.{_BEFORE})*)?(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?", re.ASCII
)
_PLACES = ("nodeName", "nodeSelector", "allNodes")
_ONE_PLACE = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_APART = "`perDeviceNodeSelection` is set to true in the ResourceSlice spec"
_ONE_PLACE_OF_DEVICE = f"exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when {_APART}"
_NO_PLACE_OF_DEVICE = f"`nodeName`, `nodeSelector` and `allNodes` can only be set if {_APART}"
_KINDS = ("int", "bool", "string", "version")  # of attributes
_FIELDS = ", ".join(f"`{kind}`" for kind in (*_KINDS, *(f"{kind}s" for kind in _KINDS)))


def pool_name(name: str) -> list[str]:
    return [problem for part in name.split("/") for problem in names.dns_subdomain(part)]


def identifier(name: str, path: str) -> list[FieldError]:
    """Check the name of an attribute or capacity, without its domain."""
    errors = [too_long(path, MAX_NAME)] if len(name) > MAX_NAME else []
    return errors if _C_IDENTIFIER.fullmatch(name) else [*errors, invalid(path, name, _NOT_C)]


def _qualified(name: str, path: str) -> list[FieldError]:
    domain, slash, short = name.partition("/")
    if not slash:
        return identifier(name, path)
    errors = all_invalid(path, domain, names.dns_subdomain(domain))
    if not domain:
        errors = [invalid(path, "", "the domain must not be empty")]
    return [*errors, *(identifier(short, path) if short else [invalid(path, "", "the name must not be empty")])]


def _named(name: str, path: str, known: set[str]) -> list[FieldError]:
    """Check a name that is a DNS label and unique among those of `known`, which it joins."""
    errors = all_invalid(path, name, names.dns_label(name)) if name else [required(path)]
    if name in known:
        errors.append(duplicate(path, name))
    known.add(name)
    return errors


def _slice_errors(obj: Json) -> list[FieldError]:
    spec: Json = obj.get("spec") or {}
    driver, pool = spec.get("driver") or "", spec.get("pool") or {}
    errors = all_invalid("spec.driver", driver, names.dns_subdomain(driver)) if driver else [required("spec.driver")]
    if not pool.get("name"):
        errors.append(required("spec.pool.name"))
    else:
        errors += all_invalid("spec.pool.name", pool["name"], pool_name(pool["name"]))
    if (pool.get("resourceSliceCount") or 0) <= 0:
        text = "must be greater than zero"
        errors.append(invalid("spec.pool.resourceSliceCount", pool.get("resourceSliceCount") or 0, text))
    if (pool.get("generation") or 0) < 0:
        errors.append(invalid("spec.pool.generation", pool["generation"], "must be greater than or equal to zero"))
    errors += _one_place(spec, (*_PLACES, "perDeviceNodeSelection"), "spec", _ONE_PLACE)
    errors += _node_selector(spec.get("nodeSelector"), "spec.nodeSelector")
    devices, counters = spec.get("devices") or (), spec.get("sharedCounters") or ()
    if devices and counters:
        errors.append(forbidden("spec.sharedCounters", "only one of `sharedCounters` or `devices` is allowed"))
    heavy = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    limit = MAX_DEVICES_TAINTED if heavy else MAX_DEVICES
    if len(devices) > limit:
        errors.append(too_many("spec.devices", len(devices), limit))
    return errors + _devices(devices, bool(spec.get("perDeviceNodeSelection"))) + _counter_sets(counters)


def _one_place(part: Json, fields: tuple[str, ...], path: str, text: str) -> list[FieldError]:
    """Check that exactly one of the fields says which nodes can use a device."""
    there = [f"`{field}`" for field in fields if part.get(field)]
    if not there:
        return [required(path, text)]
    return [invalid(path, f"{{{', '.join(there)}}}", f"{text}, but multiple fields are set")] if len(there) > 1 else []


def _node_selector(selector: Json | None, path: str) -> list[FieldError]:
    if selector is None:
        return []
    if len(selector.get("nodeSelectorTerms") or ()) != 1:
        return [invalid(f"{path}.nodeSelectorTerms", None, "must have exactly one node selector term")]
    return placement.node_selector(selector, path)


def _devices(devices: Iterable[Json], apart: bool) -> list[FieldError]:
    errors: list[FieldError] = []
    known: set[str] = set()
    for index, device in enumerate(devices):
        at = f"spec.devices[{index}]"
        errors += _named(device.get("name") or "", f"{at}.name", known)
        if apart:
            errors += _one_place(device, _PLACES, at, _ONE_PLACE_OF_DEVICE)
        elif any(device.get(field) for field in _PLACES):
            errors.append(invalid(at, None, _NO_PLACE_OF_DEVICE))
        if (selector := device.get("nodeSelector")) is not None:
            errors += placement.node_selector(selector, f"{at}.nodeSelector")
        errors += _device(device, at)
    return errors


def _device(device: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if (total := len(attributes) + len(capacity)) > MAX_ATTRIBUTES:
        text = f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES}"
        errors.append(invalid(path, total, text))
    for name, value in attributes.items():
        errors += _qualified(name, f"{path}.attributes") + _attribute(value, f"{path}.attributes[{name}]")
    for name, value in capacity.items():
        at = f"{path}.capacity[{name}]"
        errors += _qualified(name, f"{path}.capacity")
        if not is_valid(value.get("value", "0")):
            errors.append(invalid(f"{at}.value", value.get("value"), "must be a quantity"))
        elif (policy := value.get("requestPolicy")) is not None:
            if device.get("allowMultipleAllocations"):
                errors += _policy(policy, value.get("value", "0"), f"{at}.requestPolicy")
            else:
                errors.append(forbidden(f"{at}.requestPolicy", "allowMultipleAllocations must be true"))
    errors += _consumed(device.get("consumesCounters") or (), f"{path}.consumesCounters")
    return errors + _conditions(device, path) + taints(device.get("taints") or (), path)


def _attribute(value: Json, path: str) -> list[FieldError]:
    kinds = [kind for kind in _KINDS if value.get(kind) is not None]
    if not kinds:
        return [invalid(path, "", f"must specify one of: {_FIELDS}")]
    if len(kinds) > 1:
        return [invalid(path, f"{{{', '.join(kinds)}}}", f"must specify exactly one of: {_FIELDS}")]
    (kind,) = kinds
    errors: list[FieldError] = []
    if kind == "version" and not _SEMVER.fullmatch(value[kind]):
        text = "must be a string compatible with semver.org spec 2.0.0"
        errors.append(invalid(f"{path}.version", value[kind], text))
    if kind in ("string", "version") and len(value[kind].encode()) > MAX_VALUE:
        errors.append(too_long(f"{path}.{kind}", MAX_VALUE))
    return errors


def _policy(policy: Json, most: str, path: str) -> list[FieldError]:
    """Check which parts of a capacity may be requested (KEP-5075). `most`: the capacity."""
    values, bounds, default = policy.get("validValues") or (), policy.get("validRange"), policy.get("default")
    texts = {"default": default, **{f"validRange.{field}": amount for field, amount in (bounds or {}).items()}}
    texts |= {f"validValues[{index}]": amount for index, amount in enumerate(values)}
    wrong = [(field, amount) for field, amount in texts.items() if amount is not None and not is_valid(amount)]
    if wrong:
        return [invalid(f"{path}.{field}", amount, "must be a quantity") for field, amount in wrong]
    if values and bounds is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        return [forbidden(path, text)]
    if default is None and (values or bounds is not None):
        field = "validValues" if values else "validRange"
        return [required(f"{path}.default", f"required when {field} is defined")]
    if values:
        return _valid_values(values, str(default), most, f"{path}.validValues")
    return _valid_range(bounds, str(default), most, f"{path}.validRange") if bounds is not None else []


def _valid_values(values: Sequence[str], default: str, most: str, path: str) -> list[FieldError]:
    amounts = [nanos(each) for each in values]
    errors = [too_many(path, len(values), MAX_VALID_VALUES)] if len(values) > MAX_VALID_VALUES else []
    for index, amount in enumerate(amounts):
        at = f"{path}[{index}]"
        if index and amount < amounts[index - 1]:
            errors.append(invalid(at, values[index], "values must be sorted in ascending order"))
        if amount in amounts[:index]:
            errors.append(duplicate(at, values[index]))
        if amount > nanos(most):
            errors.append(invalid(at, values[index], f"option is larger than capacity value: {most}"))
    if nanos(default) not in amounts:
        errors.append(invalid(path, default, "default value is not valid according to the requestPolicy"))
    return errors


def _valid_range(bounds: Json, default: str, most: str, path: str) -> list[FieldError]:
    least, top, step = bounds.get("min"), bounds.get("max"), bounds.get("step")
    if least is None:
        return [required(f"{path}.min", "required when validRange is defined")]
    wrong: list[tuple[bool, str, str, str]] = [  # (is wrong, field, value, message)
        (nanos(least) > nanos(most), "min", least, f"min is larger than capacity value: {most}"),
        (nanos(default) < nanos(least), "default", default, f"default is less than min: {least}"),
    ]
    if top is not None:
        wrong += [
            (nanos(least) > nanos(top), "max", least, f"min is larger than max: {top}"),
            (nanos(top) > nanos(most), "max", top, f"max is larger than capacity value: {most}"),
            (nanos(default) > nanos(top), "default", default, f"default is more than max: {top}"),
        ]
    if step is not None and nanos(step) <= 0:
        wrong.append((True, "step", step, "must be greater than zero"))
    elif step is not None:
        added = nanos(least) + nanos(step)
        wrong.append((added > nanos(most), "step", step, f"one step is larger than capacity value: {most}"))
        text = f"value is not a multiple of a given step ({step}) from ({least})"
        for value in (default, top):
            if value is not None:
                wrong.append(((nanos(value) - nanos(least)) % nanos(step) != 0, "step", value, text))
        amounts = {"default": default, "min": least, "max": top, "step": step}
        for field, value in amounts.items():
            if value is not None and nanos(value) % (NANO // 1000):
                wrong.append((True, field, value, "value cannot be represented as a milli value"))
    return [invalid(f"{path}.{field}", value, text) for is_wrong, field, value, text in wrong if is_wrong]


def _conditions(device: Json, path: str) -> list[FieldError]:
    """Check the conditions that a driver sets before a pod is bound (KEP-5007)."""
    errors: list[FieldError] = []
    found = {field: device.get(field) or () for field in ("bindingConditions", "bindingFailureConditions")}
    for field, conditions in found.items():
        if len(conditions) > MAX_CONDITIONS:
            errors.append(too_many(f"{path}.{field}", len(conditions), MAX_CONDITIONS))
        for index, condition in enumerate(conditions):
            at = f"{path}.{field}[{index}]"
            errors += all_invalid(at, condition, names.label_key(condition))
            if condition in conditions[:index]:
                errors.append(duplicate(at, condition))
            if field == "bindingFailureConditions" and condition in found["bindingConditions"]:
                text = "bindingFailureConditions must not overlap with bindingConditions"
                errors.append(invalid(at, condition, text))
    for one, other in (tuple(found), tuple(found)[::-1]):
        if not found[one] and found[other]:
            errors.append(invalid(f"{path}.{one}", None, f"{one} are required to use {other}"))
    return errors


def taints(found: Sequence[Json], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if len(found) > MAX_TAINTS:
        errors.append(too_many(f"{path}.taints", len(found), MAX_TAINTS))
    return errors + [error for index, taint in enumerate(found) for error in _taint(taint, f"{path}.taints[{index}]")]


def _taint(taint: Json, path: str) -> list[FieldError]:
    key, value, effect = taint.get("key") or "", taint.get("value") or "", taint.get("effect") or ""
    errors = all_invalid(f"{path}.key", key, names.label_key(key))
    errors += all_invalid(f"{path}.value", value, names.label_value(value)) if value else []
    if not effect:
        errors.append(required(f"{path}.effect"))
    elif effect not in EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, EFFECTS))
    return errors


def _consumed(sets: Sequence[Json], path: str) -> list[FieldError]:
    errors = [too_many(path, len(sets), MAX_CONSUMED_SETS)] if len(sets) > MAX_CONSUMED_SETS else []
    known: set[str] = set()
    for index, each in enumerate(sets):
        at = f"{path}[{index}]"
        errors += _named(each.get("counterSet") or "", f"{at}.counterSet", known)
        errors += _counters(each.get("counters") or {}, f"{at}.counters")
    return errors


def _counter_sets(counters: Sequence[Json]) -> list[FieldError]:
    path = "spec.sharedCounters"
    errors = [too_many(path, len(counters), MAX_COUNTER_SETS)] if len(counters) > MAX_COUNTER_SETS else []
    known: set[str] = set()
    for index, each in enumerate(counters):
        errors += _named(each.get("name") or "", f"{path}[{index}].name", known)
        errors += _counters(each.get("counters") or {}, f"{path}[{index}].counters")
    return errors


def _counters(found: Mapping[str, Any], path: str) -> list[FieldError]:
    if not found:
        return [required(path)]
    errors = [too_many(path, len(found), MAX_COUNTERS)] if len(found) > MAX_COUNTERS else []
    for name, counter in found.items():
        errors += all_invalid(path, name, names.dns_label(name))
        if not is_valid((counter or {}).get("value", "0")):
            errors.append(invalid(f"{path}[{name}].value", counter.get("value"), "must be a quantity"))
    return errors


# ---- kinds

# Fields of feature gates that are off by default in 1.37 and that we do not have.
_LISTS = ("ints", "bools", "strings", "versions")
_OF_SLICES = ("partitionTypeAttribute", "skipNodeOperations")


def _drop_gated(obj: Json, _: Json | None) -> None:
    spec: Json = obj.get("spec") or {}
    for field in _OF_SLICES:
        spec.pop(field, None)
    for device in spec.get("devices") or ():
        device.pop("nodeAllocatableResources", None)
        for value in (device.get("attributes") or {}).values():
            for field in _LISTS:
                value.pop(field, None)
        for consumed in device.get("consumesCounters") or ():
            consumed.pop("compatibilityGroups", None)


def resource_slice(gates: Gates) -> OwnRules:
    def update(new: Json, old: Json) -> list[FieldError]:
        spec, before = new.get("spec") or {}, old.get("spec") or {}
        fixed = frozen(spec, before, "spec", "driver", "nodeName")
        fixed += frozen(spec.get("pool") or {}, before.get("pool") or {}, "spec.pool", "name")
        return _slice_errors(new) + fixed

    return OwnRules(create=_slice_errors, update=update, prepare=_drop_gated)


def device_taint_rule(gates: Gates) -> OwnRules:
    checks: tuple[tuple[str, Callable[[str], list[str]]], ...] = (
        ("driver", names.dns_subdomain),
        ("pool", pool_name),
        ("device", names.dns_label),
    )

    def errors_of(obj: Json) -> list[FieldError]:
        spec: Json = obj.get("spec") or {}
        errors: list[FieldError] = []
        for field, check in checks:
            if (value := (spec.get("deviceSelector") or {}).get(field)) is not None:
                errors += all_invalid(f"spec.deviceSelector.{field}", value, check(value))
        return errors + _taint(spec.get("taint") or {}, "spec.taint")

    return OwnRules(errors=errors_of)
