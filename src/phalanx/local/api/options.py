"""Query parameters of a write, checked once: dry run, field manager, field validation, force."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import msgspec

from phalanx.base.errors import BadRequest, Invalid
from phalanx.local.api.problems import in_one
from phalanx.local.api.request import Request, query_flag
from phalanx.model.conform import duration_problem
from phalanx.model.fieldpath import not_supported, required
from phalanx.model.kinds import FieldError

_KINDS = {
    "create": "CreateOptions",
    "update": "UpdateOptions",
    "patch": "PatchOptions",
    "delete": "DeleteOptions",
    "deletecollection": "DeleteOptions",
}
_VALIDATIONS = ("Ignore", "Strict", "Warn")
_MANAGER_LENGTH = 128


class WriteOptions(msgspec.Struct, frozen=True):
    manager: str
    dry_run: bool = False
    validation: str = "Warn"
    force: bool = False


def write_options(request: Request) -> WriteOptions:
    query = request.query
    apply = request.verb == "patch" and request.content_type.startswith("application/apply-patch")
    if not query and not apply:  # the hot path of controllers
        return WriteOptions(manager_from_agent(request.user_agent))
    errors: list[FieldError] = []
    dry_run = query.get("dryRun", "")
    if dry_run not in ("", "All"):
        errors.append(not_supported("dryRun", dry_run, ("All",)))
    validation = query.get("fieldValidation", "") or "Warn"
    if validation not in _VALIDATIONS:
        errors.append(not_supported("fieldValidation", validation, _VALIDATIONS))
    manager = query.get("fieldManager", "")
    if len(manager.encode()) > _MANAGER_LENGTH:
        errors.append(FieldError("fieldManager", "FieldValueTooLong", "Too long: may not be more than 128 bytes"))
    elif not manager.isprintable():
        errors.append(
            FieldError("fieldManager", "FieldValueInvalid", "Invalid value: should only contain printable characters")
        )
    force = query_flag(query, "force")
    if apply and not manager:
        errors.append(required("fieldManager", "is required for apply patch"))
    if force and not apply and request.verb == "patch":
        errors.append(FieldError("force", "FieldValueForbidden", "Forbidden: may not be specified for non-apply patch"))
    if errors:
        raise invalid_options(_KINDS[request.verb], errors)
    return WriteOptions(manager or manager_from_agent(request.user_agent), dry_run == "All", validation, force)


def check_timeout(query: Mapping[str, str]) -> None:
    """Check that the timeout of the query is a valid duration. Raises BadRequest.

    client-go writes how long it waits; answers come sooner here, so the value itself has no effect.
    """
    text = query["timeout"]
    problem = duration_problem(text) if text and not query_flag(query, "watch") else ""
    if problem:
        raise BadRequest(f"invalid timeout specified in the request URL - {problem}")


def invalid_options(kind: str, errors: list[FieldError], *, group: str = "meta.k8s.io", name: str = "") -> Invalid:
    return Invalid(
        f'{kind}{group and "." + group} "{name}" is invalid: {in_one(errors)}',
        group=group,
        kind=kind,
        causes=[{"reason": error.type, "message": error.message, "field": error.path} for error in errors],
    )


@lru_cache(maxsize=64)  # few: a user agent may be long
def manager_from_agent(user_agent: str) -> str:
    """Return the default field manager: the program's name in the user agent."""
    name = user_agent.split("/", 1)[0].strip()
    name = "".join(char for char in name if char.isprintable())[:_MANAGER_LENGTH]
    return name or "unknown"
