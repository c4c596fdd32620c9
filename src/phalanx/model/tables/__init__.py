"""Loads the record tables: one text file per API group version, read when first asked for.

Grammar, one record after the other:

    RecordName [kind] [atomic] [oneOf=a,b] | what it is
      field  type  number  flags… | what it means

`kind` adds apiVersion and kind. `*` as field name embeds a record: its fields appear here in JSON, nested on the
protobuf wire. Types: a scalar, a record of the same file, `group/version.Record`, `[]T`, `{}T` (map by string).
Number 0: not on the protobuf wire. Flags: req, ptr (explicit zero kept), set, map=k1,k2, atomic (server-side apply),
merge or merge=key, retain (strategic merge); default=value (OpenAPI; set by `model.rules`).

What values may be, shown by OpenAPI and enforced by `model.rules.declared` where the rules of a kind ask it: enum=A,B,
min=n, max=n, maxItems=n, format=name, nonempty, fixed (or fixed=+Gate, fixed=-Gate: while a gate is on or off),
fixedItems, kept, gate=Gate, drop=Gate (`model.schema.Checks` says what these mean). Only shown:
minItems=n, minLength=n, maxLength=n.
"""

from __future__ import annotations

from importlib import resources
from threading import RLock
from typing import cast, get_args

from phalanx.model.schema import UNCHECKED, Checks, Field, ListOf, MapOf, Object, Scalar, ScalarName, Type, Wire

_SCALARS: dict[str, Type] = {name: Scalar(name) for name in get_args(ScalarName)}
# Unions of the CRD schema language: any JSON, except for the protobuf decoder.
_WIRES: dict[str, Wire] = {"schemaorbool": "orbool", "schemaorarray": "orarray", "schemaorstrings": "orstrings"}
_records: dict[str, Object] = {}
_loaded: set[str] = set()  # or being loaded: tables may refer to each other in circles
_complete: set[str] = set()  # and so is all that they refer to
_loading = RLock()  # clusters may start in several threads of a process

_API_VERSION = Field(
    "apiVersion",
    _SCALARS["string"],
    doc="APIVersion defines in which group and version this object is written, such as apps/v1.",
)
_METADATA = "Standard object's metadata."
_KIND = Field("kind", _SCALARS["string"], doc="The kind of object this is, in CamelCase.")


def record(name: str) -> Object:
    """Return a record by its full name, "core/v1.PodSpec"; raises KeyError if no table declares it."""
    group_version = name.rpartition(".")[0]
    if group_version not in _complete:
        _ensure(group_version)
    return _records[name]


def records(group_version: str) -> list[Object]:
    """Return every record that the table of a group version such as "core/v1" declares."""
    if group_version not in _complete:
        _ensure(group_version)
    prefix = group_version + "."
    return [found for name, found in _records.items() if name.startswith(prefix)]


def tables() -> list[str]:
    """Return all group versions that have a table."""
    names = [entry.name for entry in resources.files(__package__).iterdir() if entry.name.endswith(".table")]
    return sorted(name.removesuffix(".table").replace("_", "/") for name in names)


def _ensure(group_version: str) -> None:
    with _loading:
        outermost = _loaded == _complete
        if group_version not in _loaded:
            _load(group_version)
        if outermost:
            _complete.update(_loaded)


def _load(group_version: str) -> None:
    _loaded.add(group_version)
    text = resources.files(__package__).joinpath(group_version.replace("/", "_") + ".table").read_text("utf-8")
    lines = [line for line in text.split("\n") if line and line[0] != "#"]
    prefix = group_version + "."
    for line in lines:
        if line[0] != " ":
            head, _, doc = line.partition(" | ")
            name, *flags = head.split()
            one_of = tuple(next((flag[6:].split(",") for flag in flags if flag.startswith("oneOf=")), ()))
            found = Object(prefix + name, doc=doc.strip(), atomic="atomic" in flags, one_of=one_of)
            if "kind" in flags:
                found.fields.update(apiVersion=_API_VERSION, kind=_KIND)
            _records[found.name] = found
    current = Object("")
    embedding: list[Object] = []
    for line in lines:
        if line[0] != " ":
            current = _records[prefix + line.split(None, 1)[0]]
            continue
        facts, _, doc = line.partition(" | ")
        name, type_text, number, *flags = facts.split()
        if name == "*":
            current.embedded += (Field(type_text, _type(type_text, prefix), int(number), inline=True),)
            embedding.append(current)
            # A place holder keeps the order of fields until the embedded record is complete.
            current.fields["*" + type_text] = current.embedded[-1]
        else:
            words = doc.strip() or (_METADATA if name == "metadata" else "")
            current.fields[name] = _field(name, type_text, int(number), flags, words, prefix)
    done: set[str] = set()
    for each in embedding:
        _flatten(each, done)


def _flatten(target: Object, done: set[str]) -> None:
    if target.name in done:
        return
    done.add(target.name)
    flat: dict[str, Field] = {}
    for name, each in target.fields.items():
        if name[0] != "*":
            flat[name] = each
            continue
        inner = each.type
        assert isinstance(inner, Object)
        _flatten(inner, done)
        for inner_name, inner_field in inner.fields.items():
            flat[inner_name] = Field(
                inner_name,
                inner_field.type,
                0,
                inner_field.required,
                inner_field.pointer,
                inner_field.retain_keys,
                True,
                inner_field.doc,
                inner_field.default,
                limits=inner_field.limits,
                checks=inner_field.checks,
            )
    target.fields = flat


def _field(name: str, type_text: str, number: int, flags: list[str], doc: str, prefix: str) -> Field:
    wire = _WIRES.get(type_text.lstrip("{}[]"), "")
    if wire:
        type_text = type_text[: -len(type_text.lstrip("{}[]"))] + "json"
    field_type: Type
    if type_text[:2] == "[]":
        item = _type(type_text[2:], prefix)
        kind, keys, patch_merge, patch_key = "atomic", (), False, ""
        for flag in flags:
            if flag == "set":
                kind = "set"
            elif flag.startswith("map="):
                kind, keys = "map", tuple(flag[4:].split(","))  # type: ignore[assignment]
            elif flag.startswith("merge"):
                patch_merge, patch_key = True, flag[6:]
        field_type = ListOf(item, kind, keys, patch_merge, patch_key, "retain" in flags)  # type: ignore[arg-type]
    elif type_text[:2] == "{}":
        field_type = MapOf(_type(type_text[2:], prefix), "atomic" in flags)
    else:
        field_type = _type(type_text, prefix)
    if not flags:
        return Field(name, field_type, number, doc=doc, wire=wire)
    retain = "retain" in flags and not isinstance(field_type, ListOf)
    atomic = "atomic" in flags and isinstance(field_type, Object)
    return Field(
        name,
        field_type,
        number,
        "req" in flags,
        "ptr" in flags,
        retain,
        doc=doc,
        default=_default(flags, field_type),
        wire=wire,
        atomic=atomic,
        limits=_limits(flags),
        checks=_checks(flags),
    )


_CHECKS = ("nonempty", "fixed", "fixedItems", "kept", "gate", "drop")
_BOUNDS = {"min": "minimum", "max": "maximum"}
_SIZES = ("minItems", "maxItems", "minLength", "maxLength")


def _default(flags: list[str], field_type: Type) -> object:
    text = next((flag[8:] for flag in flags if flag.startswith("default=")), None)
    if text is None:
        return None
    if isinstance(field_type, Scalar) and field_type.name in ("int32", "int64", "intorstring"):
        return int(text)
    return text == "true" if text in ("true", "false") else text


def _checks(flags: list[str]) -> Checks:
    found = {name: value for name, _, value in (flag.partition("=") for flag in flags) if name in _CHECKS}
    if not found:
        return UNCHECKED
    return Checks(
        "nonempty" in found,
        found.get("fixed", "") or ("always" if "fixed" in found else ""),
        "fixedItems" in found,
        "kept" in found,
        found.get("gate", ""),
        found.get("drop", ""),
    )


def _limits(flags: list[str]) -> tuple[tuple[str, object], ...]:
    found: list[tuple[str, object]] = []
    for flag in flags:
        word, equals, text = flag.partition("=")
        if not equals:
            continue
        if word == "enum":
            found.append((word, text.split(",")))
        elif word == "format":
            found.append((word, text))
        elif word in _BOUNDS:
            found.append((_BOUNDS[word], int(text)))
        elif word in _SIZES:
            found.append((word, int(text)))
    return tuple(found)


def _type(text: str, prefix: str) -> Type:
    scalar = _SCALARS.get(text)
    if scalar is not None:
        return scalar
    if text[:2] == "[]":
        return ListOf(_type(text[2:], prefix))
    if text[:2] == "{}":
        return MapOf(_type(text[2:], prefix))
    if "/" in text:
        group_version = text.rpartition(".")[0]
        if group_version not in _loaded:
            _load(group_version)
        return _records[text]
    return cast(Type, _records[prefix + text])
