"""Builds the Rules of an ordinary kind from its few peculiar parts: metadata and status are handled alike in all."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.model import names
from phalanx.model.fieldpath import immutable, invalid
from phalanx.model.kinds import FieldError, Json
from phalanx.model.rules import meta
from phalanx.model.rules.contract import Rules
from phalanx.model.rules.declared import same

Create = Callable[[Json], list[FieldError]]
Update = Callable[[Json, Json], list[FieldError]]


def assemble(
    *,
    default: Callable[[Json], None] | None = None,
    create: Create | None = None,
    update: Update | None = None,
    status: Update | None = None,
    prepare: Callable[[Json, Json | None], None] | None = None,
    first_status: Callable[[Json], Json] | None = None,
    name: Callable[[str], list[str]] = names.dns_subdomain,
    namespaced: bool = True,
    status_apart: bool = True,
) -> Rules:
    """`create` and `update` look beyond metadata; `prepare(new, old)` drops what gates forbid (old is None on create).

    `status_apart`: the kind has a status subresource, so the main resource cannot write status.
    """

    def prepare_create(obj: Json) -> None:
        if first_status is not None:
            obj["status"] = first_status(obj)
        elif status_apart:
            meta.clear_status(obj)
        if prepare is not None:
            prepare(obj, None)

    def prepare_update(new: Json, old: Json) -> None:
        if status_apart:
            meta.keep_status(new, old)
        if prepare is not None:
            prepare(new, old)

    def validate_create(obj: Json) -> list[FieldError]:
        errors = meta.on_create(obj, name, namespaced)
        return errors + create(obj) if create is not None else errors

    def validate_update(new: Json, old: Json) -> list[FieldError]:
        errors = meta.on_update(new, old)
        return errors + update(new, old) if update is not None else errors

    def validate_status(new: Json, old: Json) -> list[FieldError]:
        errors = meta.on_update(new, old)
        return errors + status(new, old) if status is not None else errors

    return Rules(
        default=default,
        prepare_create=prepare_create,
        prepare_update=prepare_update,
        prepare_status=meta.keep_all_but_status if status_apart else None,
        validate_create=validate_create,
        validate_update=validate_update,
        validate_status=validate_status if status_apart else None,
        validate_name=name,
    )


def frozen(new: Json, old: Json, path: str, *fields: str) -> list[FieldError]:
    """Complaints about fields that may not change."""
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
    """Fields such as maxUnavailable: a count or a share."""
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


def is_zero(value: int | str | None) -> bool:
    return value in (0, "0", "0%")
