"""Build the rules of an ordinary kind from its own parts; metadata and status are the same for all."""

from __future__ import annotations

import math
from collections.abc import Callable

from phalanx.model import names
from phalanx.model.fieldpath import immutable, invalid
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import meta
from phalanx.model.rules.contract import Rules
from phalanx.model.rules.declared import declared_defaults, declared_errors, same

Create = Callable[[Json], list[FieldError]]
Update = Callable[[Json, Json], list[FieldError]]


def _fine(*objects: Json) -> list[FieldError]:
    return []


def _leave(*objects: Json | None) -> None:
    pass


def assemble(
    table: str = "",
    *,
    default: Callable[[Json], None] = _leave,
    create: Create = _fine,
    update: Update = _fine,
    status: Update = _fine,
    prepare: Callable[[Json, Json | None], None] = _leave,
    first_status: Callable[[Json], Json] | None = None,
    template: Create | None = None,
    name: Callable[[str], list[str]] = names.dns_subdomain,
    namespaced: bool = True,
    status_apart: bool = True,
    shows_fixed: bool = True,
    declared_first: bool = False,
) -> Rules:
    """Assemble the rules of a kind from its table and its own functions.

    `table`: the record whose declared defaults and rules apply. `create` and `update` check what the table and the
    rules of metadata do not; `prepare(new, old)` drops what gates forbid (old is None on create).

    `status_apart`: the kind has a status subresource, so the main resource cannot write status. `shows_fixed`: errors
    about immutable fields repeat the new value. `declared_first`: errors of the table come first on create.
    """

    def complete(obj: Json) -> None:
        declared_defaults(table, obj)
        default(obj)

    def prepare_create(obj: Json) -> None:
        if first_status is not None:
            obj["status"] = first_status(obj)
        elif status_apart:
            meta.clear_status(obj)
        prepare(obj, None)

    def prepare_update(new: Json, old: Json) -> None:
        if status_apart:
            meta.keep_status(new, old)
        prepare(new, old)

    def validate_create(obj: Json) -> list[FieldError]:
        own, declared = create(obj), declared_errors(table, obj, None, "")
        return meta.on_create(obj, name, namespaced) + (declared + own if declared_first else own + declared)

    def validate_update(new: Json, old: Json) -> list[FieldError]:
        declared = declared_errors(table, new, old, "", show=shows_fixed)
        return meta.on_update(new, old) + update(new, old) + declared

    def validate_status(new: Json, old: Json) -> list[FieldError]:
        return meta.on_update(new, old) + status(new, old)

    return Rules(
        default=complete,
        prepare_create=prepare_create,
        prepare_update=prepare_update,
        prepare_status=meta.keep_all_but_status if status_apart else None,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=validate_status if status_apart else None,
        validate_name=name,
        template_errors=template,
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
