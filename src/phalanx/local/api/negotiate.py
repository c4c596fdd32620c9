"""Content negotiation: which of the forms we can answer in does an Accept header want."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import msgspec

from phalanx.base.errors import NotAcceptable
from phalanx.base.well_known import PROTOBUF

Shape = Literal["object", "table", "metadata"]


class Form(msgspec.Struct, frozen=True):
    """How an answer is to look."""

    shape: Shape = "object"
    yaml: bool = False
    meta_version: str = "v1"  # of meta.k8s.io, for tables and partial metadata
    protobuf: bool = False
    discovery: str = ""  # "v2" or "v2beta1" when an aggregated discovery document is wanted

    @property
    def content_type(self) -> str:
        return "application/yaml" if self.yaml else "application/json"


@lru_cache(maxsize=512)
def negotiate(accept: str, tables: bool = True) -> Form:
    """Choose the first form of the header that can be served; clients list what they prefer first.

    `tables`: whether what is asked for has columns. Reviews and the like have none.
    """
    if not accept.strip():
        return Form()
    for clause in accept.split(","):
        form = _form(clause)
        if form is not None and (tables or form.shape == "object"):
            return form
    # The store has JSON: protobuf is sent only to clients that accept nothing else.
    if any(_is_plain_protobuf(clause) for clause in accept.split(",")):
        return Form(protobuf=True)
    raise NotAcceptable(
        "only the following media types are accepted: application/json, application/yaml, application/json;as=Table"
    )


def _is_plain_protobuf(clause: str) -> bool:
    media, *params = (part.strip() for part in clause.split(";"))
    return media == PROTOBUF and not any(param.startswith("as=") for param in params)


def _form(clause: str) -> Form | None:
    media, *params = (part.strip() for part in clause.split(";"))
    options = dict(param.split("=", 1) for param in params if "=" in param)
    wanted = options.get("as", "")
    if media == PROTOBUF:
        # The metadata client prefers this, and expects items of its lists without a kind.
        metadata = wanted.startswith("PartialObjectMetadata") and options.get("g") == "meta.k8s.io"
        return Form("metadata", protobuf=True) if metadata and options.get("v") == "v1" else None
    if media not in ("application/json", "application/yaml", "*/*", "application/*"):
        return None
    yaml = media == "application/yaml"
    if not wanted:
        return Form(yaml=yaml)
    group, version = options.get("g", ""), options.get("v", "")
    if wanted == "APIGroupDiscoveryList":
        known = group == "apidiscovery.k8s.io" and version in ("v2", "v2beta1")
        return Form(yaml=yaml, discovery=version) if known else None
    if group != "meta.k8s.io" or version not in ("v1", "v1beta1"):
        return None
    if wanted == "Table":
        return Form("table", yaml, version)
    if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
        return Form("metadata", yaml, version)
    return None
