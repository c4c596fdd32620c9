"""Validate CustomResourceDefinitions: names, versions, and a structural schema."""

from __future__ import annotations

from typing import Any

from phalanx.base.well_known import EMBEDDED_RESOURCE, INT_OR_STRING, LIST_MAP_KEYS, LIST_TYPE, PRESERVE_UNKNOWN_FIELDS
from phalanx.local.api.structural import validate
from phalanx.local.api.validation_rules import definition_rule_errors
from phalanx.model.fieldpath import all_invalid, duplicate, forbidden, immutable, invalid, not_supported, required
from phalanx.model.kinds import FieldError, Json
from phalanx.model.names import dns_1035_label, dns_label, dns_subdomain
from phalanx.model.pattern import compiled

_SCOPES = ("Cluster", "Namespaced")
_STRATEGIES = ("None", "Webhook")
_TYPES = ("array", "boolean", "integer", "number", "object", "string")
_LIST_TYPES = ("atomic", "map", "set")
_MAX_DEPTH = 100
# Inside these the structure may not be specified again: they only restrict the schema outside.
_JUNCTORS = ("allOf", "anyOf", "oneOf")
_STRUCTURE = ("type", "default", "additionalProperties", "nullable", "description", "title")


def definition_errors(obj: Json, old: Json | None) -> list[FieldError]:
    spec: Any = obj.get("spec")
    if not isinstance(spec, dict):
        return [required("spec")]
    names = spec.get("names") or {}
    errors = _group_and_names(obj, spec, names)
    if spec.get("scope") not in _SCOPES:
        errors.append(not_supported("spec.scope", spec.get("scope") or "", _SCOPES))
    strategy = (spec.get("conversion") or {}).get("strategy")
    if strategy not in _STRATEGIES:
        errors.append(not_supported("spec.conversion.strategy", strategy, _STRATEGIES))
    elif strategy == "Webhook":
        errors += _webhook(spec["conversion"].get("webhook") or {})
    if spec.get("preserveUnknownFields"):
        text = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
        errors.append(invalid("spec.preserveUnknownFields", True, text))
    errors += _versions(spec.get("versions") or [])
    if old is not None:
        before = old["spec"]
        for path, new_value, old_value in (
            ("spec.group", spec.get("group"), before.get("group")),
            ("spec.scope", spec.get("scope"), before.get("scope")),
            ("spec.names.plural", names.get("plural"), before["names"].get("plural")),
            ("spec.names.kind", names.get("kind"), before["names"].get("kind")),
        ):
            if new_value != old_value:
                errors.append(immutable(path, new_value))
        listed = {version.get("name") for version in spec.get("versions") or []}
        for i, version in enumerate((old.get("status") or {}).get("storedVersions") or []):
            if version not in listed:
                errors.append(invalid(f"status.storedVersions[{i}]", version, "missing from spec.versions"))
    return errors


def _webhook(webhook: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    client = webhook.get("clientConfig")
    if not client:  # by the name the field has inside kube-apiserver, as there
        errors.append(required("spec.conversion.webhookClientConfig", "required when strategy is set to Webhook"))
    elif bool(client.get("url")) == bool(client.get("service")):
        errors.append(required("spec.conversion.webhookClientConfig", "exactly one of url or service is required"))
    versions = webhook.get("conversionReviewVersions")
    if not versions:
        errors.append(required("spec.conversion.conversionReviewVersions"))
    elif not set(versions) & {"v1", "v1beta1"}:
        text = "must include at least one of v1, v1beta1"
        errors.append(invalid("spec.conversion.conversionReviewVersions", versions, text))
    return errors


def _group_and_names(obj: Json, spec: Json, names: Json) -> list[FieldError]:
    errors: list[FieldError] = []
    group, plural = spec.get("group") or "", names.get("plural") or ""
    if not group:
        errors.append(required("spec.group"))
    else:
        errors += all_invalid("spec.group", group, dns_subdomain(group))
        if "." not in group:
            errors.append(invalid("spec.group", group, "should be a domain with at least one dot"))
    for field in ("plural", "singular", "kind", "listKind"):
        value = names.get(field) or ""
        if value:
            shown = value if field in ("plural", "singular") else value.lower()
            errors += all_invalid(f"spec.names.{field}", value, dns_1035_label(shown))
        elif field in ("plural", "kind"):
            errors.append(required(f"spec.names.{field}"))
    if names.get("kind") and names.get("kind") == names.get("listKind"):
        errors.append(invalid("spec.names.listKind", names["listKind"], "kind and listKind may not be the same"))
    for i, short in enumerate(names.get("shortNames") or []):
        errors += all_invalid(f"spec.names.shortNames[{i}]", short, dns_1035_label(short))
    for i, category in enumerate(names.get("categories") or []):
        errors += all_invalid(f"spec.names.categories[{i}]", category, dns_1035_label(category))
    expected = f"{plural}.{group}"
    name = obj["metadata"].get("name")
    if plural and group and name != expected:
        errors.append(invalid("metadata.name", name, 'must be spec.names.plural+"."+spec.group'))
    return errors


def _schema_errors(schema: Json, where: str) -> list[FieldError]:
    kind = schema.get("type")
    if not kind:
        return [required(f"{where}.type", "must not be empty at the root")]
    errors = [] if kind == "object" else [invalid(f"{where}.type", kind, "must be object at the root")]
    found = structural_errors(schema, where)
    return errors + (found or definition_rule_errors(schema, where))


def _versions(versions: list[Json]) -> list[FieldError]:
    errors: list[FieldError] = []
    if not versions:
        errors.append(required("spec.versions"))
    seen: set[str] = set()
    schemas: list[Any] = [(version.get("schema") or {}).get("openAPIV3Schema") for version in versions]
    common = bool(schemas) and isinstance(schemas[0], dict) and all(each == schemas[0] for each in schemas)
    if common:  # a schema of all versions is checked once, under the name of the internal field
        errors += _schema_errors(schemas[0], "spec.validation.openAPIV3Schema")
    for i, version in enumerate(versions):
        at = f"spec.versions[{i}]"
        name = version.get("name") or ""
        if name in seen:
            errors.append(duplicate(f"{at}.name", name))
        seen.add(name)
        errors += all_invalid(f"{at}.name", name, dns_label(name))
        if not isinstance(schemas[i], dict):
            errors.append(required(f"{at}.schema.openAPIV3Schema"))
        elif not common:
            errors += _schema_errors(schemas[i], f"{at}.schema.openAPIV3Schema")
        scale = (version.get("subresources") or {}).get("scale")
        if scale is not None:
            for field, prefix in (("specReplicasPath", ".spec."), ("statusReplicasPath", ".status.")):
                path = scale.get(field) or ""
                if not path:
                    errors.append(required(f"{at}.subresources.scale.{field}"))
                elif not path.startswith(prefix):
                    text = f"should be a json path under {prefix.rstrip('.')}"
                    errors.append(invalid(f"{at}.subresources.scale.{field}", path, text))
    storage = [version for version in versions if version.get("storage")]
    if versions and len(storage) != 1:
        shown = [version.get("name") for version in storage]
        errors.append(invalid("spec.versions", shown, "must have exactly one version marked as storage version"))
    return errors


def structural_errors(schema: Json, path: str, depth: int = 0) -> list[FieldError]:
    """Check the rules that make pruning, defaulting and merging well defined."""
    if depth > _MAX_DEPTH:
        return [invalid(path, "", f"must not be nested deeper than {_MAX_DEPTH} levels")]
    errors: list[FieldError] = []
    kind = schema.get("type") or ""
    free = schema.get(INT_OR_STRING) or schema.get(PRESERVE_UNKNOWN_FIELDS)
    if not kind and not free:
        errors.append(required(f"{path}.type", "must not be empty for specified object fields"))
    elif kind and kind not in _TYPES:
        errors.append(not_supported(f"{path}.type", kind, _TYPES))
    if kind and schema.get(INT_OR_STRING):
        text = "must be empty if x-kubernetes-int-or-string is true"
        errors.append(invalid(f"{path}.type", kind, text))
    if schema.get(EMBEDDED_RESOURCE) and kind != "object":
        errors.append(invalid(f"{path}.type", kind, "must be object if x-kubernetes-embedded-resource is true"))
    if schema.get("properties") and schema.get("additionalProperties"):
        errors.append(
            forbidden(f"{path}.additionalProperties", "additionalProperties and properties are mutual exclusive")
        )
    if schema.get("$ref"):
        errors.append(forbidden(f"{path}.$ref", "$ref is not supported"))
    if schema.get("uniqueItems"):
        text = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic"
        errors.append(forbidden(f"{path}.uniqueItems", text))
    if schema.get("pattern") and compiled(schema["pattern"]) is None:
        errors.append(invalid(f"{path}.pattern", schema["pattern"], "must be a valid regular expression"))
    errors += _list_errors(schema, kind, path)
    if schema.get("default") is not None and not errors:
        errors += validate(schema["default"], schema, f"{path}.default")
    return errors + _errors_below(schema, path, depth)


def _errors_below(schema: Json, path: str, depth: int) -> list[FieldError]:
    """Check the schemas that a schema contains."""
    errors: list[FieldError] = []
    for name, part in (schema.get("properties") or {}).items():
        errors += structural_errors(part, f"{path}.properties[{name}]", depth + 1)
    if isinstance(schema.get("additionalProperties"), dict):
        errors += structural_errors(schema["additionalProperties"], f"{path}.additionalProperties", depth + 1)
    if isinstance(schema.get("items"), dict):
        errors += structural_errors(schema["items"], f"{path}.items", depth + 1)
    for word in _JUNCTORS:
        for i, part in enumerate(schema.get(word) or []):
            errors += _junctor_errors(part, f"{path}.{word}[{i}]", bool(schema.get(INT_OR_STRING)))
    if isinstance(schema.get("not"), dict):
        errors += _junctor_errors(schema["not"], f"{path}.not", False)
    return errors


def _list_errors(schema: Json, kind: str, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    if kind == "array":
        if isinstance(schema.get("items"), list):
            errors.append(forbidden(f"{path}.items", "items must be a schema object and not an array"))
        elif not isinstance(schema.get("items"), dict):
            errors.append(required(f"{path}.items", "must be specified"))
    listed = schema.get(LIST_TYPE)
    if listed is None:
        return errors
    if listed not in _LIST_TYPES:
        errors.append(not_supported(f"{path}.{LIST_TYPE}", listed, _LIST_TYPES))
    if kind != "array":
        errors.append(invalid(f"{path}.type", kind, f"must be array if {LIST_TYPE} is specified"))
    keys = schema.get(LIST_MAP_KEYS) or []
    if listed == "map":
        errors += _map_keys_errors(keys, schema.get("items"), path)
    elif keys:
        errors.append(forbidden(f"{path}.{LIST_MAP_KEYS}", "must be empty if x-kubernetes-list-type is not map"))
    return errors


def _map_keys_errors(keys: list[Any], items: Any, path: str) -> list[FieldError]:
    if not keys:
        return [required(f"{path}.{LIST_MAP_KEYS}", "must not be empty if x-kubernetes-list-type is map")]
    errors: list[FieldError] = []
    item: Json = items if isinstance(items, dict) else {}
    properties, needed = item.get("properties") or {}, item.get("required") or []
    for i, key in enumerate(keys):
        if key not in properties:
            errors.append(invalid(f"{path}.{LIST_MAP_KEYS}[{i}]", key, "entries must all be names of item properties"))
        elif key not in needed and "default" not in properties[key]:
            text = "this property is in x-kubernetes-list-map-keys, so it must have a default or be required"
            errors.append(required(f"{path}.items.properties[{key}].default", text))
    return errors


def _junctor_errors(schema: Any, path: str, int_or_string: bool) -> list[FieldError]:
    if not isinstance(schema, dict):
        return [invalid(path, schema, "must be a schema")]
    errors: list[FieldError] = []
    for word in _STRUCTURE:
        if word == "type" and int_or_string and schema.get("type") in ("integer", "string"):
            continue
        if schema.get(word):
            errors.append(forbidden(f"{path}.{word}", "must be empty to be structural"))
    for name, part in (schema.get("properties") or {}).items():
        errors += _junctor_errors(part, f"{path}.properties[{name}]", False)
    if isinstance(schema.get("items"), dict):
        errors += _junctor_errors(schema["items"], f"{path}.items", False)
    for word in _JUNCTORS:
        for i, part in enumerate(schema.get(word) or []):
            errors += _junctor_errors(part, f"{path}.{word}[{i}]", int_or_string)
    return errors
