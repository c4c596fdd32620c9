"""Table answers: what `kubectl get` prints. Cells come from the kind's printer columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from phalanx.base.errors import BadRequest
from phalanx.local.api.view import encode, metadata_of, object_in, view_of
from phalanx.model.kinds import Column, Kind, Version

INCLUDE = ("", "Metadata", "None", "Object")


def _name(obj: dict[str, Any], now: float) -> str:
    return str(obj["metadata"].get("name", ""))


def _created(obj: dict[str, Any], now: float) -> str:
    return str(obj["metadata"].get("creationTimestamp") or "<unknown>")


DEFAULT_COLUMNS = (
    Column("Name", "string", _name, format="name", description="Name must be unique within a namespace."),
    Column("Created At", "date", _created, description="When the object was created."),
)


def check_include(include: str) -> str:
    if include not in INCLUDE:
        raise BadRequest(f'unrecognized includeObject value: "{include}"')
    return include or "Metadata"


PIECE_BYTES = 256 << 10  # of objects handled before other tasks of the event loop run


class TableMaker:
    """Makes rows of one kind in one version."""

    def __init__(self, kind: Kind, version: Version, meta_version: str, include: str, now: float) -> None:
        self.kind = kind
        self.version = version
        self.include = check_include(include)
        self.now = now
        self.meta_version = meta_version
        self.columns = version.columns or kind.columns or DEFAULT_COLUMNS
        self._view = view_of(kind, version)

    def row(self, value: bytes) -> dict[str, Any]:
        obj = object_in(self.kind, self.version, value)
        row: dict[str, Any] = {"cells": [column.value(obj, self.now) for column in self.columns]}
        if self.include == "Metadata":
            row["object"] = {
                "kind": "PartialObjectMetadata",
                "apiVersion": f"meta.k8s.io/{self.meta_version}",
                "metadata": msgspec.Raw(metadata_of(value)),
            }
        elif self.include == "Object":
            row["object"] = msgspec.Raw(self._view(value))
        return row

    def definitions(self) -> list[dict[str, Any]]:
        return [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            }
            for column in self.columns
        ]

    def table(self, values: Iterable[bytes], metadata: dict[str, Any], *, headers: bool = True) -> bytes:
        """Encode a table; headers: with column definitions, which later events of one watch do not need."""
        rows = [self.row(value) for value in values]
        return encode(self._frame(metadata, headers) | {"rows": rows})

    def pieces(self, values: Sequence[bytes], metadata: dict[str, Any], size: int) -> Iterator[bytes]:
        """Yield a long table piece by piece: building rows takes time that other requests need too."""
        yield encode(self._frame(metadata, True))[:-1] + b',"rows":['
        separator = b""
        start = weight = 0
        for at, value in enumerate(values, 1):
            weight += len(value)
            if at - start == size or weight >= PIECE_BYTES or at == len(values):
                rows = encode([self.row(each) for each in values[start:at]])
                yield separator + rows[1:-1]
                separator, start, weight = b",", at, 0
        yield b"]}\n"

    def _frame(self, metadata: dict[str, Any], headers: bool) -> dict[str, Any]:
        return {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self.meta_version}",
            "metadata": metadata,
            "columnDefinitions": self.definitions() if headers else None,
        }
