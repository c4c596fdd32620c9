"""The registry of kinds: one entry has all that the API server needs to serve a kind.

Discovery, decoding, defaulting, validation, printing, merge keys, field selectors and OpenAPI all start here.
A kind is stored once, in its storage version; the other versions are views made by `convert`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phalanx.base.client import Resource
from phalanx.model.schema import Object

Json = dict[str, Any]


def clone(value: Any) -> Any:
    """Return a deep copy of JSON; its depth is bounded by the readers of bodies."""
    if isinstance(value, dict):
        return {key: clone(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [clone(inner) for inner in value]
    return value


class Column(msgspec.Struct, frozen=True):
    """A printer column of the Table answer."""

    name: str
    type: str  # string, integer, date, …
    value: Callable[[Json, float], Any]  # (object, now) -> cell; ages are computed from `now`
    priority: int = 0  # 1 = only with -o wide
    format: str = ""
    description: str = ""


class Version(msgspec.Struct, frozen=True):
    name: str  # "v1beta1"
    schema: Object
    gate: str = ""  # served only while this gate is on
    # Views: storage object <-> this version's object. None: only apiVersion differs.
    from_storage: Callable[[Json], Json] | None = None
    to_storage: Callable[[Json], Json] | None = None
    openapi: Json | None = None  # custom resources: the schema as their CustomResourceDefinition wrote it
    columns: tuple[Column, ...] = ()  # custom resources: of this version; others have the same in all
    alias: bool = False  # served for documents that write it; never the preferred version


class FieldError(msgspec.Struct, frozen=True):
    """One line of a 422 answer. `type` is the reason in causes (FieldValueInvalid, …)."""

    path: str
    type: str  # FieldValueRequired, FieldValueInvalid, FieldValueNotSupported, FieldValueForbidden, …
    message: str  # the text after the path, e.g. 'Invalid value: -1: must be greater than or equal to 1'
    warns: bool = False  # it does not refuse the object

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class Scale(msgspec.Struct, frozen=True):
    """JSON paths (dotted) behind the scale subresource."""

    spec_replicas: str = "spec.replicas"
    status_replicas: str = "status.replicas"
    selector: str = ""  # dotted path of a label selector object or string; "" = none


class Part(msgspec.Struct, frozen=True):
    """A subresource that has the kind of its object and writes a part of it (`pods/resize`)."""

    only: Callable[[Json, Json], Json]  # (new, old) -> the old object with the fields that may change
    errors: Callable[[Json, Json], list[FieldError]]  # (new, old), in place of `validate_update`


@dataclass(frozen=True, slots=True)
class Kind:
    kind: str
    group: str
    plural: str
    versions: tuple[Version, ...]  # in order of preference
    storage_version: str
    namespaced: bool = True
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()  # status, scale, binding, eviction, …
    verbs: tuple[str, ...] = (
        "create", "delete", "deletecollection", "get", "list", "patch", "update", "watch",
    )  # fmt: skip
    columns: tuple[Column, ...] = ()
    # Field selectors beyond metadata.name and metadata.namespace: label -> value of an object, as text.
    selectable: Mapping[str, Callable[[Json], str]] = field(default_factory=dict)
    scale: Scale | None = None
    generation: bool = True  # metadata.generation counts spec changes (false for the kinds where upstream keeps 0)
    unconditional_update: bool = True  # PUT without resourceVersion allowed
    create_on_update: bool = False  # PUT may create (leases, events, …)
    strategic: bool = True  # strategic merge patch offered (false for custom resources: 415)
    zeros: Json = field(default_factory=dict)  # fields that every stored object has (model.zero_values)
    parts: Mapping[str, Part] = field(default_factory=dict)  # by subresource
    status_writes: tuple[str, ...] = ()  # metadata that a write to the status subresource may change, too
    convert: Json | None = None  # custom resources: the webhook that turns one version into another
    warning: str = ""  # sent to every client that writes one
    stored: bool = True  # false: answered in the same request, nothing is stored (reviews, Binding)
    stored_as: str = ""  # storage key of the kind this one is a view of (events.k8s.io Event of core Event)
    # Rules work on the storage version. `default` edits in place. Gate dropping is part of `prepare`.
    default: Callable[[Json], None] | None = None
    prepare_create: Callable[[Json], None] | None = None  # clear status, drop gated fields
    prepare_update: Callable[[Json, Json], None] | None = None  # (new, old)
    prepare_status: Callable[[Json, Json], None] | None = None  # (new, old) on the status subresource
    validate_create: Callable[[Json], list[FieldError]] | None = None
    validate_update: Callable[[Json, Json], list[FieldError]] | None = None  # (new, old)
    validate_status: Callable[[Json, Json], list[FieldError]] | None = None  # (new, old)
    # What will be refused of the objects that a controller makes from this one: a warning, as the object is accepted.
    template_errors: Callable[[Json], list[FieldError]] | None = None
    validate_name: Callable[[str], list[str]] | None = None  # default: DNS subdomain

    # Unique per kind: the plural with its group, as in the name of a CustomResourceDefinition.
    key: str = field(init=False, compare=False)
    # The store's resource name, whatever the version. Two kinds share it only when one is a view of the other.
    storage_key: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        key = f"{self.plural}.{self.group}" if self.group else self.plural
        object.__setattr__(self, "key", key)  # computed once: every request reads it several times
        object.__setattr__(self, "storage_key", self.stored_as or key)

    def version(self, name: str) -> Version:
        for version in self.versions:
            if version.name == name:
                return version
        raise KeyError(name)

    def resource(self, version: str = "") -> Resource:
        return Resource(self.group, version or self.storage_version, self.plural, self.kind, self.namespaced)

    def whole_floats(self, schema: Object) -> bool:
        """Return True if 1.0 stands for 1 in this schema: the kind is a custom resource upstream."""
        return not self.strategic and any(version.schema is schema for version in self.versions)

    def new_object_errors(self, obj: Json) -> list[FieldError]:
        """Return why a new object is refused, or why the objects made from it will be."""
        checks = (self.validate_create, self.template_errors)
        return [error for check in checks if check is not None for error in check(obj)]


# Kinds of subresources that have another kind than their parent: (group, version, kind).
SUBRESOURCE_KINDS: dict[str, tuple[str, str, str]] = {
    "scale": ("autoscaling", "v1", "Scale"),
    "binding": ("", "v1", "Binding"),
    "eviction": ("policy", "v1", "Eviction"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
}

_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?")


def version_rank(version: str) -> tuple[int, int, int, str]:
    """Return the sort key of a version: stable, beta, alpha, each newest first; others last, by name."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (3, 0, 0, version)
    major, stage, minor = match.groups()
    return ({None: 0, "beta": 1, "alpha": 2}[stage], -int(major), -int(minor or 0), "")


class Registry:
    """All kinds that are served now. Custom resources come and go at run time."""

    def __init__(self, kinds: Iterable[Kind] = ()) -> None:
        self._by_path: dict[tuple[str, str, str], Kind] = {}
        self._by_kind: dict[tuple[str, str, str], Kind] = {}
        self._kinds: dict[str, Kind] = {}
        self.generation = 0  # rises with every change: caches of discovery and OpenAPI depend on it
        self.on_change: list[Callable[[], None]] = []
        for kind in kinds:
            self.add(kind)

    def add(self, kind: Kind) -> None:
        """Serve a kind, in place of an earlier one of the same name."""
        self.remove(kind.key)
        self._kinds[kind.key] = kind
        for version in kind.versions:
            self._by_path[kind.group, version.name, kind.plural] = kind
            self._by_kind[kind.group, version.name, kind.kind] = kind
        self._changed()

    def remove(self, key: str) -> None:
        kind = self._kinds.pop(key, None)
        if kind is None:
            return
        for version in kind.versions:
            self._by_path.pop((kind.group, version.name, kind.plural), None)
            self._by_kind.pop((kind.group, version.name, kind.kind), None)
        self._changed()

    def _changed(self) -> None:
        self.generation += 1
        for notify in self.on_change:
            notify()

    def by_path(self, group: str, version: str, plural: str) -> Kind | None:
        return self._by_path.get((group, version, plural))

    def by_kind(self, group: str, version: str, kind: str) -> Kind | None:
        return self._by_kind.get((group, version, kind))

    def by_storage_key(self, storage_key: str) -> Kind | None:
        return self._kinds.get(storage_key)

    def group_versions(self) -> list[tuple[str, str]]:
        """Return every served (group, version): core first, then by group, preferred versions first."""
        found: dict[tuple[str, str], bool] = {}  # whether only aliases are served in it
        for kind in self._kinds.values():
            for version in kind.versions:
                pair = (kind.group, version.name)
                found[pair] = version.alias and found.get(pair, True)
        return sorted(found, key=lambda pair: (pair[0], found[pair], version_rank(pair[1])))

    def all(self) -> list[Kind]:
        return list(self._kinds.values())
