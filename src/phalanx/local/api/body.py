"""Read the object in a request body and check that it matches the path of the request."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from phalanx.base.errors import BadRequest
from phalanx.base.well_known import PROTOBUF
from phalanx.local.api.options import WriteOptions
from phalanx.local.api.request import Request
from phalanx.local.api.structural import CustomObject
from phalanx.local.api.view import api_version
from phalanx.model.decode import as_json, conform, in_order, is_slow, media_type, parse
from phalanx.model.kinds import Json, Kind, Version
from phalanx.model.schema import Object

# One thread: many slow bodies must not take more than half of the interpreter from the loop.
_READERS = ThreadPoolExecutor(1, "phalanx-bodies")


@dataclass(slots=True)
class Body:
    obj: Json
    warnings: tuple[str, ...] = ()


def read_object(request: Request, options: WriteOptions) -> Body:
    """Read the object of a create or update, in the version of the path."""
    schema = request.version.schema
    # Finding repeated keys costs a second decoding: only for clients that ask for field validation.
    duplicates = options.validation != "Ignore" and "fieldValidation" in request.query
    obj, repeated = parse_body(request, schema, duplicates=duplicates)
    check_type(request.kind, request.version, obj)
    warnings = shape(obj, request.kind, schema, options, repeated, body=request.body)
    check_place(request, obj)
    return Body(obj, warnings)


def parse_body(request: Request, schema: Object, *, duplicates: bool) -> tuple[Json, list[str]]:
    """Parse the body; return its values, and its repeated keys if `duplicates` asks for them."""
    known = request.repeated is not None
    obj, repeated = parse(request.body, request.content_type, schema, duplicates=duplicates and not known)
    return obj, list(request.repeated or ()) if known and duplicates else repeated


async def read_apart(request: Request) -> None:
    """Decode a slow body in another thread and put JSON in its place.

    Only for whole objects and their status.
    """
    if request.verb not in ("create", "update", "patch") or request.subresource not in ("", "status"):
        return
    if not is_slow(request.body, request.content_type):
        return
    loop = asyncio.get_running_loop()
    work = partial(as_json, request.body, request.content_type, request.version.schema, duplicates=True)
    request.body, repeated = await loop.run_in_executor(_READERS, work)
    request.repeated = tuple(repeated)
    if media_type(request.content_type) == PROTOBUF:
        request.content_type = "application/json"


# KEP-1068 considered these fields of a JobSet before it settled on `gangConfig`.
_BEFORE_GANG_CONFIG = ('scheduleAtOnce"', 'scheduleAtOncePerReplica"')


def shape(
    obj: Json, kind: Kind, schema: Object, options: WriteOptions, repeated: list[str], *, body: bytes = b""
) -> tuple[str, ...]:
    """Check types, drop unknown fields; what was dropped is a problem, a warning or nothing, as the client asked.

    Of a JSON `body` repeated and unknown fields are reported in their order, otherwise repeated ones first.
    """
    custom = isinstance(schema, CustomObject)
    unknown = _conformed(obj, kind, schema)
    if not unknown and not repeated:
        return ()
    if options.validation == "Ignore":
        return ()
    texts = [*repeated, *unknown]
    if unknown and not custom and any(text.startswith("duplicate field ") for text in repeated):
        texts = in_order(body, set(unknown))
    if kind.kind == "JobSet":
        texts = [f"{text} (use gangConfig)" if text.endswith(_BEFORE_GANG_CONFIG) else text for text in texts]
    if options.validation == "Strict":
        version = str(obj.get("apiVersion", "")).rpartition("/")[2]
        raise BadRequest(
            f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: '
            f"strict decoding error: {', '.join(yaml_lines_joined(texts))}"
        )
    return tuple(texts)


def _conformed(obj: Json, kind: Kind, schema: Object, *, zeros: bool = False) -> list[str]:
    """Conform the object to its schema; return texts for unknown fields, which are removed."""
    if isinstance(schema, CustomObject):
        return schema.shape(obj)
    return conform(obj, schema, zeros=zeros, whole_floats=kind.whole_floats(schema))


def shape_applied(request: Request, obj: Json, options: WriteOptions, repeated: list[str]) -> tuple[str, ...]:
    """Shape an applied configuration like `shape`, but refuse every field that is not declared.

    A field that is not declared cannot be owned. Zero values stay: the client set them here; everywhere else they are
    omitted.
    """
    schema = request.version.schema
    unknown = _conformed(obj, request.kind, schema, zeros=True)
    check_place(request, obj)
    if unknown:
        metadata = obj["metadata"]
        where = f"{metadata.get('namespace', '')}/{metadata['name']}; {obj['apiVersion']}, Kind={obj['kind']}"
        paths = [text.removeprefix('unknown field "').removesuffix('"') for text in unknown]
        problems = [f".{path}: field not declared in schema" for path in paths]
        announced = problems[0] if len(problems) == 1 else "\n  ".join(["errors:", *problems])
        raise BadRequest(f"failed to create typed patch object ({where}): {announced}")
    if repeated and options.validation == "Strict":
        announced = ", ".join(yaml_lines_joined(repeated))
        raise BadRequest(f"error strict decoding patch: error converting YAML to JSON: {announced}")
    return () if options.validation == "Ignore" else tuple(repeated)


def yaml_lines_joined(texts: list[str]) -> list[str]:
    """Join the errors about repeated keys of YAML into one of several lines, for strict validation."""
    lines = [text for text in texts if text.startswith("line ")]
    if not lines:
        return texts
    return ["\n  ".join(["yaml: unmarshal errors:", *lines]), *(text for text in texts if text not in lines)]


def check_type(kind: Kind, version: Version, obj: Json) -> None:
    """Check that apiVersion and kind fit the path, and fill them in if left out. Raises BadRequest."""
    expected = api_version(kind.group, version.name)
    given, name = obj.get("apiVersion"), obj.get("kind")
    for field, value in (("apiVersion", given), ("kind", name)):
        if value is not None and not isinstance(value, str):
            raise BadRequest(f"couldn't get version/kind; json parse error: {field} must be a string")
    if given and given != expected:
        raise BadRequest(f"the API version in the data ({given}) does not match the expected API version ({expected})")
    if name and name != kind.kind:
        raise BadRequest(
            f'{name} in version "{version.name}" cannot be handled as a {kind.kind}: '
            f'the path serves "{kind.plural}", whose kind is {kind.kind}'
        )
    obj["apiVersion"], obj["kind"] = expected, kind.kind


def check_place(request: Request, obj: Json) -> None:
    """Check that name and namespace of the object are those of the path, and fill them in.

    Raises BadRequest.
    """
    metadata: Any = obj.get("metadata")
    if metadata is None:
        metadata = obj["metadata"] = {}
    name, namespace = metadata.get("name") or "", metadata.get("namespace") or ""
    if request.verb != "create" or request.subresource:
        if not name and request.verb == "update":
            raise BadRequest("name must be provided")
        if name and name != request.name:
            raise BadRequest(f"the name of the object ({name}) does not match the name on the URL ({request.name})")
        metadata["name"] = request.name
        if namespace and namespace != request.namespace:
            raise BadRequest(
                f"the namespace of the object ({namespace}) does not match the namespace on the request "
                f"({request.namespace})"
            )
    elif namespace and namespace != request.namespace:
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")
    if request.namespace:
        metadata["namespace"] = request.namespace
