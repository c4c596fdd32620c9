"""Build a Kind from a CustomResourceDefinition: versions, rules, columns, subresources."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from phalanx.base.well_known import LIST_MAP_KEYS, LIST_TYPE, PRESERVE_UNKNOWN_FIELDS
from phalanx.local.api.structural import custom_object, set_defaults, validate
from phalanx.local.api.validation_rules import compile_rules, rule_errors
from phalanx.model import names as name_rules
from phalanx.model.kinds import Column, FieldError, Json, Kind, Scale, Version, version_rank
from phalanx.model.printing.cells import AGE, NAME, since
from phalanx.model.rules import meta

_STEP = re.compile(
    r"""\.((?:[^.\[\]\\]|\\.)+)       # .field, dots escaped with a backslash
    |\[\s*(\d+|\*)\s*\]               # [0] or [*]
    |\[\s*'([^']*)'\s*\]              # ['field']
    |\[\?\(\s*@\.([\w.\-/]+)\s*(==|!=)\s*(?:"([^"]*)"|'([^']*)'|(\w+))\s*\)\]  # [?(@.type=="Ready")]
    """,
    re.VERBOSE,
)


def served_names(kind: Kind) -> tuple[set[str], set[str]]:
    """Return the resource names and the kind names that a kind occupies in its group."""
    return {kind.plural, kind.singular, *kind.short_names} - {""}, {kind.kind, kind.kind + "List"}


def kind_of(definition: Json) -> Kind | None:
    """Build the kind of a definition; None if the definition serves no version."""
    spec = definition["spec"]
    names, group = spec["names"], spec["group"]
    listed = sorted(spec["versions"], key=lambda version: version_rank(version["name"]))
    served = [version for version in listed if version.get("served")]
    if not served:
        return None
    storage = next((version for version in listed if version.get("storage")), served[0])
    versions = []
    for version in served:
        schema = _schema(version)
        record = custom_object(group, version["name"], names["kind"], schema)
        read = _completed(schema) if has_defaults(schema) else None
        versions.append(Version(version["name"], record, from_storage=read, openapi=schema, columns=_columns(version)))
    subresources = storage.get("subresources") or {}
    scale = subresources.get("scale")
    rules = CustomRules(_schema(storage), namespaced=spec["scope"] == "Namespaced", status="status" in subresources)
    return Kind(
        names["kind"],
        group,
        names["plural"],
        tuple(versions),
        storage["name"],
        namespaced=spec["scope"] == "Namespaced",
        singular=names.get("singular") or names["kind"].lower(),
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        subresources=frozenset(name for name in ("status", "scale") if name in subresources),
        columns=_columns(served[0]),
        selectable={
            field["jsonPath"].lstrip("."): _selector(field["jsonPath"])
            for field in served[0].get("selectableFields") or ()
        },
        scale=Scale(
            scale["specReplicasPath"].lstrip("."),
            scale["statusReplicasPath"].lstrip("."),
            (scale.get("labelSelectorPath") or "").lstrip("."),
        )
        if scale
        else None,
        convert=_converter(spec) if len(listed) > 1 else None,
        strategic=False,
        unconditional_update=False,
        default=rules.default,
        validate_create=rules.validate_create,
        validate_update=rules.validate_update,
        validate_status=rules.validate_status,
    )


def _converter(spec: Json) -> Json | None:
    conversion = spec.get("conversion") or {}
    return (conversion.get("webhook") or {}) if conversion.get("strategy") == "Webhook" else None


def _schema(version: Json) -> Json:
    found: Any = (version.get("schema") or {}).get("openAPIV3Schema")
    return found if isinstance(found, dict) else {"type": "object", PRESERVE_UNKNOWN_FIELDS: True}


def schema_errors(obj: Json, schema: Json) -> list[FieldError]:
    """Validate an object against a version's schema.

    apiVersion, kind and metadata are checked elsewhere.
    """
    head = ("apiVersion", "kind", "metadata")
    properties = schema.get("properties") or {}
    body = {**schema, "properties": {key: part for key, part in properties.items() if key not in head}}
    body["required"] = [name for name in schema.get("required") or [] if name not in head]
    return validate({key: value for key, value in obj.items() if key not in head}, body, "")


class CustomRules:
    """The rules of one version of a custom resource: its schema and its expressions."""

    def __init__(self, schema: Json, *, namespaced: bool, status: bool) -> None:
        self._schema = schema
        self._namespaced = namespaced
        self._status = status
        self._rules = compile_rules(schema)

    def default(self, obj: Json) -> None:
        set_defaults(obj, self._schema)

    def _errors(self, obj: Json) -> list[FieldError]:
        return schema_errors(obj, self._schema)

    def validate_create(self, obj: Json) -> list[FieldError]:
        errors = self._errors(obj)
        errors += rule_errors(self._rules, obj, None, errors)
        return meta.on_create(obj, name_rules.dns_subdomain, self._namespaced) + errors

    def validate_update(self, new: Json, old: Json) -> list[FieldError]:
        return meta.on_update(new, old) + self.validate_status(new, old)

    def validate_status(self, new: Json, old: Json) -> list[FieldError]:
        errors = self._new_errors(new, old)
        return errors + rule_errors(self._rules, new, old, errors)

    def _new_errors(self, new: Json, old: Json) -> list[FieldError]:
        """Return the errors of `new`, without those that `old` had at values that did not change.

        A schema may have become stricter since the object was stored.
        """
        errors = self._errors(new)
        if not errors:
            return []
        known = {str(error) for error in self._errors(old)}
        return [
            error for error in errors if str(error) not in known or not _as_it_was(error.path, new, old, self._schema)
        ]


def _as_it_was(path: str, new: Any, old: Any, schema: Any) -> bool:
    """Return True if what an error is about did not change: the value at its path, or what lacks it."""
    for field, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        known = schema if isinstance(schema, dict) else {}
        if field:
            if not (isinstance(new, dict) and isinstance(old, dict) and field in new and field in old):
                break  # a missing required field is reported for the object that lacks it
            new, old = new[field], old[field]
            schema = (known.get("properties") or {}).get(field) or known.get("additionalProperties")
        else:
            if known.get(LIST_TYPE) != "map":
                break  # items of a list without keys have no identity: the list is compared as a whole
            new, old = _copies(new, old, int(index), known.get(LIST_MAP_KEYS) or [])
            schema = known.get("items")
    return bool(new == old)


def _copies(new: Any, old: Any, index: int, keys: list[str]) -> tuple[Any, Any]:
    """Return an item of a list with keys, and the item that had the same keys before."""
    item = new[index] if isinstance(new, list) and index < len(new) else None
    if not isinstance(item, dict) or not isinstance(old, list):
        return item, None
    wanted = [item.get(key) for key in keys]
    return item, next((o for o in old if isinstance(o, dict) and [o.get(key) for key in keys] == wanted), None)


def has_defaults(schema: Any) -> bool:
    """Return True if anything in a schema has a default."""
    if isinstance(schema, list):
        return any(map(has_defaults, schema))
    if not isinstance(schema, dict):
        return False
    return "default" in schema or any(has_defaults(part) for part in schema.values() if isinstance(part, dict | list))


def _completed(schema: Json) -> Callable[[Json], Json]:
    """Return a function that adds the current defaults of the schema to an object that is read."""

    def read(obj: Json) -> Json:
        set_defaults(obj, schema)
        return obj

    return read


def _columns(version: Json) -> tuple[Column, ...]:
    listed = version.get("additionalPrinterColumns")
    if not listed:
        return (NAME, AGE)
    columns = [NAME]
    for column in listed:
        columns.append(
            Column(
                column["name"],
                column["type"],
                _cell(column["jsonPath"], column["type"]),
                int(column.get("priority") or 0),
                column.get("format") or "",
                column.get("description") or "",
            )
        )
    return tuple(columns)


def _cell(path: str, kind: str) -> Callable[[Json, float], Any]:
    find = json_path(path)

    def cell(obj: Json, now: float) -> Any:
        found = find(obj)
        if not found:
            return None if kind in ("integer", "number", "boolean") else ""
        value = found[0]
        if kind == "date":
            return since(value, now) if isinstance(value, str) else ""
        if kind == "string" and not isinstance(value, str):
            return str(value).lower() if isinstance(value, bool) else str(value)
        return value

    return cell


def _selector(path: str) -> Callable[[Json], str]:
    find = json_path(path)

    def select(obj: Json) -> str:
        found = find(obj)
        if not found or found[0] is None:
            return ""
        return str(found[0]).lower() if isinstance(found[0], bool) else str(found[0])

    return select


def json_path(path: str) -> Callable[[Any], list[Any]]:
    """Compile the simple JSONPath of a printer column: fields, indexes, [*] and one comparison.

    A bad path finds nothing.
    """
    text = path.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    text = text.removeprefix("$")
    steps: list[re.Match[str]] = []
    here = 0
    while here < len(text):
        match = _STEP.match(text, here)
        if match is None:
            return lambda obj: []
        steps.append(match)
        here = match.end()

    def find(obj: Any) -> list[Any]:
        found = [obj]
        for step in steps:
            found = _advance(found, step)
        return found

    return find


def _advance(values: list[Any], step: re.Match[str]) -> list[Any]:
    field, index, quoted, inner, operator, *texts = step.groups()
    out: list[Any] = []
    name = quoted if quoted is not None else re.sub(r"\\(.)", r"\1", field) if field is not None else None
    for value in values:
        if name is not None:
            if isinstance(value, dict) and name in value:
                out.append(value[name])
        elif index is not None:
            if isinstance(value, list):
                out += value if index == "*" else value[int(index) : int(index) + 1]
        elif isinstance(value, list):
            wanted = next(text for text in texts if text is not None)
            for item in value:
                there: Any = item
                for part in inner.split("."):
                    there = there.get(part) if isinstance(there, dict) else None
                if ((str(there).lower() if isinstance(there, bool) else str(there)) == wanted) == (operator == "=="):
                    out.append(item)
    return out
