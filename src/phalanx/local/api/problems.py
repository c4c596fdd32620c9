"""The sentences of the API server, in the words clients look for. Builds problems; raises nothing."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.base.errors import AlreadyExists, BadRequest, Conflict, Forbidden, Invalid, NotFound
from phalanx.model.kinds import FieldError, Kind


def group_resource(kind: Kind) -> str:
    return kind.storage_key


def group_kind(kind: Kind) -> str:
    return f"{kind.kind}.{kind.group}" if kind.group else kind.kind


def not_found(kind: Kind, name: str) -> NotFound:
    return NotFound(f'{group_resource(kind)} "{name}" not found', name=name, group=kind.group, kind=kind.plural)


def already_exists(kind: Kind, name: str) -> AlreadyExists:
    return AlreadyExists(
        f'{group_resource(kind)} "{name}" already exists', name=name, group=kind.group, kind=kind.plural
    )


def conflict(kind: Kind, name: str, why: str, resource: str = "") -> Conflict:
    shown = resource or group_resource(kind)
    return Conflict(
        f'Operation cannot be fulfilled on {shown} "{name}": {why}',
        name=name,
        group=kind.group,
        kind=resource or kind.plural,
    )


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def modified(kind: Kind, name: str) -> Conflict:
    return conflict(kind, name, MODIFIED)


def forbidden(kind: Kind, name: str, why: str, causes: Sequence[dict[str, str]] = ()) -> Forbidden:
    shown = f' "{name}"' if name else ""
    return Forbidden(
        f"{group_resource(kind)}{shown} is forbidden: {why}",
        name=name,
        group=kind.group,
        kind=kind.plural,
        causes=causes,
    )


def in_one(errors: Sequence[FieldError]) -> str:
    texts = [str(error) for error in errors]
    return texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"


def invalid(kind: Kind, name: str, errors: Sequence[FieldError]) -> Invalid:
    return Invalid(
        f'{group_kind(kind)} "{name}" is invalid: {in_one(errors)}',
        name=name,
        group=kind.group,
        kind=kind.kind,
        causes=[{"reason": error.type, "message": error.message, "field": error.path} for error in errors],
    )


def rejected_patch(why: str) -> Invalid:
    return Invalid(f"the server rejected our request due to an error in our request: {why}")


def bad_request(why: str) -> BadRequest:
    return BadRequest(why)
