"""Build the rules of an ordinary kind from its own parts; metadata and status are the same for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import msgspec

from phalanx.model import names
from phalanx.model.fieldpath import immutable, invalid
from phalanx.model.kinds import FieldError, Json, Kind
from phalanx.model.rules import meta
from phalanx.model.rules.contract import Rules
from phalanx.model.rules.declared import declared_defaults, declared_errors, same

Create = Callable[[Json], list[FieldError]]
Update = Callable[[Json, Json], list[FieldError]]


def _fine(*objects: Json) -> list[FieldError]:
    return []


def _leave(*objects: Json | None) -> None:
    pass


class OwnRules(msgspec.Struct, frozen=True):
    """What a kind has beyond its table and the rules of metadata and status, which are the same for all kinds.

    `errors` checks every version of an object, with `if_changed` only those whose spec has changed; `create` and
    `update` check what else is wrong with a new object or with a change. `prepare(new, old)` drops what gates forbid
    (old is None on create).
    """

    default: Callable[[Json], None] = _leave
    errors: Create = _fine
    if_changed: bool = False
    create: Create = _fine
    update: Update = _fine
    status: Update = _fine
    prepare: Callable[[Json, Json | None], None] = _leave
    prepare_status: Callable[[Json, Json], None] = meta.keep_all_but_status
    first_status: Callable[[Json], Json] | None = None
    keeps_first_status: bool = False  # a new object may have a status
    template: Create | None = None
    name: Callable[[str], list[str]] = names.dns_subdomain
    table: bool = True  # the defaults and rules that its table declares apply; False: its functions apply them
    declared_first: bool = False  # on create, errors of the table come before its own
    shows_fixed: bool = True  # errors about immutable fields repeat the new value
    from_storage: Mapping[str, Callable[[Json], Json]] = MappingProxyType({})
    to_storage: Mapping[str, Callable[[Json], Json]] = MappingProxyType({})


def assemble(kind: Kind, own: OwnRules) -> Rules:
    """Assemble the rules of a kind from its table, its scope, whether it has a status subresource, and its own ones."""
    table = kind.version(kind.storage_version).schema.name if own.table else ""
    status_apart = "status" in kind.subresources  # then the main resource cannot write the status

    def complete(obj: Json) -> None:
        declared_defaults(table, obj)
        own.default(obj)

    def prepare_create(obj: Json) -> None:
        if own.first_status is not None:
            obj["status"] = own.first_status(obj)
        elif status_apart and not own.keeps_first_status:
            meta.clear_status(obj)
        own.prepare(obj, None)

    def prepare_update(new: Json, old: Json) -> None:
        if status_apart:
            meta.keep_status(new, old)
        own.prepare(new, old)

    def validate_create(obj: Json) -> list[FieldError]:
        errors, declared = own.create(obj) + own.errors(obj), declared_errors(table, obj, None, "")
        return meta.on_create(obj, own.name, kind.namespaced) + (
            declared + errors if own.declared_first else errors + declared
        )

    def validate_update(new: Json, old: Json) -> list[FieldError]:
        unchanged = own.if_changed and new.get("spec") == old.get("spec")
        errors = own.update(new, old) + ([] if unchanged else own.errors(new))
        return meta.on_update(new, old) + errors + declared_errors(table, new, old, "", show=own.shows_fixed)

    def validate_status(new: Json, old: Json) -> list[FieldError]:
        return meta.on_update(new, old) + own.status(new, old)

    return Rules(
        default=complete,
        prepare_create=prepare_create,
        prepare_update=prepare_update,
        prepare_status=own.prepare_status if status_apart else None,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=validate_status if status_apart else None,
        validate_name=own.name,
        template_errors=own.template,
        from_storage=own.from_storage,
        to_storage=own.to_storage,
    )


def frozen(new: Json, old: Json, path: str, *fields: str) -> list[FieldError]:
    """Return an error for each of these fields that has changed."""
    return [
        immutable(f"{path}.{field}" if path else field, new.get(field))
        for field in fields
        if not same(new.get(field), old.get(field))
    ]


def not_negative(holder: Json, path: str, *fields: str) -> list[FieldError]:
    return [
        invalid(f"{path}.{field}", holder[field], "must be greater than or equal to 0")
        for field in fields
        if holder.get(field) is not None and holder[field] < 0
    ]


def status_counts(new: Json, old: Json) -> list[FieldError]:
    """Check that no number in the new status is negative."""
    status: Json = new.get("status") or {}
    return not_negative(status, "status", *(name for name, value in status.items() if type(value) is int))


def number_or_percent(value: int | str | None, path: str, *, up_to_100: bool = False) -> list[FieldError]:
    """Check a field such as maxUnavailable: a count or a percentage."""
    if value is None:
        return []
    if isinstance(value, str):
        problems = names.percent(value)
        if problems:
            return [invalid(path, value, problem) for problem in problems]
        return at_most_all(value, path) if up_to_100 else []
    return [invalid(path, value, "must be greater than or equal to 0")] if value < 0 else []


def at_most_all(value: int | str | None, path: str) -> list[FieldError]:
    if not isinstance(value, str) or names.percent(value) or int(value[:-1]) <= 100:
        return []
    return [invalid(path, value, "must not be greater than 100%")]


def scaled(value: int | str, total: int, *, up: bool) -> int:
    """Return a number, or a percentage of `total` rounded up or down."""
    if isinstance(value, int):
        return value
    share = int(value.rstrip("%")) * total / 100
    return math.ceil(share) if up else math.floor(share)


def is_zero(value: int | str | None) -> bool:
    return value in (0, "0", "0%")
