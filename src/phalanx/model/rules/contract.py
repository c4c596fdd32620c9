"""The hooks of the rules of a kind. Every hook is optional and works on the storage version of an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from phalanx.model.kinds import FieldError, Json, Part

Errors = list[FieldError]


class Rules(msgspec.Struct, frozen=True):
    """Signatures are those of `model.kinds.Kind`; the two maps are keyed by version name ("v1alpha1")."""

    default: Callable[[Json], None] | None = None
    prepare_create: Callable[[Json], None] | None = None
    prepare_update: Callable[[Json, Json], None] | None = None  # (new, old)
    prepare_status: Callable[[Json, Json], None] | None = None  # (new, old)
    validate_create: Callable[[Json], Errors] | None = None
    validate_update: Callable[[Json, Json], Errors] | None = None  # (new, old)
    validate_status: Callable[[Json, Json], Errors] | None = None  # (new, old)
    template_errors: Callable[[Json], Errors] | None = None
    validate_name: Callable[[str], list[str]] | None = None
    parts: Mapping[str, Part] = msgspec.field(default_factory=dict)  # by subresource
    selectable: Mapping[str, Callable[[Json], str]] = msgspec.field(default_factory=dict)
    from_storage: Mapping[str, Callable[[Json], Json]] = msgspec.field(default_factory=dict)
    to_storage: Mapping[str, Callable[[Json], Json]] = msgspec.field(default_factory=dict)


EMPTY = Rules()


class Viewed(dict[str, Any]):
    """A storage object that came in through another version than the storage one.

    An ordinary dict elsewhere; rules that are stricter in that version (and name its paths) look at
    `view`. Nothing of it reaches the store.
    """

    view: str = ""
