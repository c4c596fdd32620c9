"""Serve subresources other than status: binding, eviction, scale, finalize, token, and connections into a pod.

No process runs in a simulated pod. So exec, attach, port-forward and proxy are refused, but only after missing rights
and refusals of webhooks are reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn
from urllib.parse import parse_qsl

import msgspec

from phalanx.base.clock import rfc3339
from phalanx.base.errors import BadRequest, Invalid, NotFound
from phalanx.base.well_known import PROTOBUF
from phalanx.local.api.binding import Bindings
from phalanx.local.api.change import Changes
from phalanx.local.api.delete import Deletes
from phalanx.local.api.eviction import EvictionHandler
from phalanx.local.api.options import WriteOptions, write_options
from phalanx.local.api.patch import APPLY_PATCH, Patches, pins, read_patch, transform
from phalanx.local.api.problems import conflict, not_found
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.route import CONNECTIONS
from phalanx.local.api.rule_matching import Admitted
from phalanx.local.api.tokens import AUDIENCE
from phalanx.local.api.view import api_version, decode, encode
from phalanx.local.api.writable import released
from phalanx.local.store.contract import Entry, RevisionMismatch
from phalanx.model.annotation_values import natural
from phalanx.model.builtin import body_schema
from phalanx.model.decode import conform, media_type, parse
from phalanx.model.fieldpath import invalid as invalid_value
from phalanx.model.kinds import SUBRESOURCE_KINDS, Json, Kind
from phalanx.model.names import MAX_PORT
from phalanx.model.schema import Object

_FLAGS = ("stdin", "stdout", "stderr", "tty")


async def connect(request: Request, changes: Changes) -> NoReturn:
    """Refuse a connection to a simulated pod: always raises ApiProblem.

    The body of the request is its query: keys may be repeated in it.
    """
    own = ("", "v1", CONNECTIONS[request.subresource])
    if changes.storing.beyond and changes.webhooks.active:
        about = Admitted(request, "CONNECT", _options(own[2], request.body), None, False, own)
        await changes.webhooks.refuse_or_pass(about)
    if changes.latest(request) is None:
        raise not_found(request.kind, request.name)
    what = f'pod "{request.name}" is simulated: nothing runs in its containers'
    raise BadRequest(f"{what}, so there is no {request.subresource}")


def _options(kind: str, query: bytes) -> Json:
    options: Json = {"kind": kind, "apiVersion": "v1"}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name in _FLAGS:
            options[name] = value.lower() in ("true", "1")
        elif name == "command":
            options.setdefault("command", []).append(value)
        elif name == "ports":
            ports = (natural(port, MAX_PORT) for port in value.split(","))
            options.setdefault("ports", []).extend(port for port in ports if port)
        else:
            options[name] = value
    return options


_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def at(obj: Json, path: str) -> Any:
    """Return the value at a dotted path; None if there is none."""
    here: Any = obj
    for part in path.strip(".").split("."):
        if not isinstance(here, dict):
            return None
        here = here.get(part)
    return here


def scale_of(kind: Kind, obj: Json) -> Json:
    scale = kind.scale
    assert scale is not None  # a kind that lists the subresource declares its paths
    metadata = obj.get("metadata", {})
    status: Json = {"replicas": at(obj, scale.status_replicas) or 0}
    if scale.selector:
        selector = selector_text(at(obj, scale.selector))
        if selector:
            status["selector"] = selector
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: metadata[key] for key in _KEPT if key in metadata},
        "spec": {"replicas": at(obj, scale.spec_replicas) or 0},
        "status": status,
    }


def selector_text(selector: Any) -> str:
    """Format a label selector object in the text form of a query parameter."""
    if isinstance(selector, str):
        return selector
    if not isinstance(selector, dict):
        return ""
    parts = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for rule in selector.get("matchExpressions") or ():
        key, operator = rule.get("key", ""), rule.get("operator")
        values = ",".join(sorted(rule.get("values") or ()))
        if operator == "Exists":
            parts.append(key)
        elif operator == "DoesNotExist":
            parts.append(f"!{key}")
        else:
            parts.append(f"{key} {'in' if operator == 'In' else 'notin'} ({values})")
    return ",".join(parts)


_TOKEN_SECONDS = 3600
_SHORTEST_TOKEN = 600
_LONGEST_TOKEN = 1 << 32  # seconds


class Subresources:
    def __init__(self, changes: Changes, deletes: Deletes, patches: Patches) -> None:
        self._changes = changes
        self._patches = patches
        self._bindings = Bindings(changes)
        self._evictions = EvictionHandler(changes, deletes)

    async def handle(self, request: Request) -> Answer:
        if request.subresource in CONNECTIONS:
            await connect(request, self._changes)
        match request.subresource, request.verb:
            case "binding", "create":
                return await self.bind(request)
            case "eviction", "create":
                eviction = await self._admitted(request, "CREATE", read_body(request)[0])
                return await self._evictions.evict(request, eviction)
            case "scale", "update" | "patch":
                return await self._scale(request)
            case "finalize", "update":
                return await self._finalize(request)
            case "token", "create":
                body, warnings = read_body(request, write_options(request))
                return self._token(request, await self._admitted(request, "CREATE", body), warnings)
        raise NotFound("the server could not find the requested resource")

    async def bind(self, request: Request) -> Answer:
        """Bind a pod: POST pods/NAME/binding, or the older POST bindings that names the pod in its metadata."""
        options = write_options(request)
        schema = body_schema(*SUBRESOURCE_KINDS["binding"])
        binding, _ = parse(request.body, request.content_type, schema)
        if schema is not None and media_type(request.content_type) != PROTOBUF:
            conform(binding, schema)
        binding = await self._admitted(request, "CREATE", binding)
        return await self._bindings.bind(request, binding, dry_run=options.dry_run)

    # -- scale --------------------------------------------------------------------------------------------------

    async def _scale(self, request: Request) -> Answer:
        kind = request.kind
        if kind.scale is None:
            raise NotFound("the server could not find the requested resource")
        home = next((version for version in kind.versions if version.name == kind.storage_version), request.version)
        if kind.convert is not None:  # its paths are those of the storage version
            request = msgspec.structs.replace(request, version=home)
        options = write_options(request)
        warnings: list[str] = []
        schema = _scale_schema()
        if request.verb == "update":
            body, texts = read_body(request, options)
            warnings += texts
            pinned = bool((body.get("metadata") or {}).get("resourceVersion"))

            def wanted(current: Json) -> Json:
                return body
        else:
            language = self._patches.language(request)
            if language == APPLY_PATCH:
                patch: Any = read_body(request, options)[0]
                language = "application/merge-patch+json"
                pinned = False
            else:
                patch = read_patch(request, language)
                pinned = pins(patch, language)

            def wanted(current: Json) -> Json:
                new = transform(scale_of(kind, current), patch, language, schema)
                if not isinstance(new, dict):
                    raise BadRequest("the patch makes the Scale something that is not an object")
                warnings[:] = _shape_scale(new, options)
                return new

        chosen = await self._admitted_scale(request, wanted) if self._hooked else wanted

        def mutate(current: Json) -> Json:
            scale = chosen(current)
            replicas = (scale.get("spec") or {}).get("replicas") or 0
            if replicas < 0:
                error = invalid_value("spec.replicas", replicas, "must be greater than or equal to 0")
                raise Invalid(
                    f'Scale.autoscaling "{request.name}" is invalid: {error}',
                    name=request.name,
                    group="autoscaling",
                    kind="Scale",
                    causes=[{"reason": error.type, "message": error.message, "field": error.path}],
                )
            assert kind.scale is not None
            put_at(current, kind.scale.spec_replicas, replicas)
            metadata = scale.get("metadata") or {}
            for name in ("resourceVersion", "uid"):
                if metadata.get(name):
                    current["metadata"][name] = metadata[name]
            return current

        obj, entry = await self._changes.change(request, options, mutate, pinned=pinned)
        stored = decode(entry.value) if entry is not None else obj
        return Answer(200, encode(scale_of(kind, stored)), warnings=tuple(warnings))

    async def _admitted_scale(self, request: Request, wanted: Callable[[Json], Json]) -> Callable[[Json], Json]:
        """Return the Scale that the webhooks made of the requested one.

        They are called once, with the current object.
        """
        entry = self._changes.latest(request)
        if entry is None:
            raise not_found(request.kind, request.name)
        current = decode(entry.value)
        old = scale_of(request.kind, current)
        asked = wanted(current)
        metadata = {**old["metadata"], **(asked.get("metadata") or {})}
        scale = await self._admitted(request, "UPDATE", {**asked, "metadata": metadata}, old)
        scale["metadata"] = asked.get("metadata") or {}  # the client decides whether to send a revision
        return lambda _: scale

    # -- webhooks -----------------------------------------------------------------------------------------------

    @property
    def _hooked(self) -> bool:
        return self._changes.storing.beyond and self._changes.webhooks.active

    async def _admitted(self, request: Request, operation: str, new: Json, old: Json | None = None) -> Json:
        """Return the object of a subresource as admission webhooks changed it; unchanged if there are none."""
        if not self._hooked:
            return new
        group, version, kind = SUBRESOURCE_KINDS[request.subresource or "binding"]
        metadata = {"name": request.name, "namespace": request.namespace, **(new.get("metadata") or {})}
        new = {**new, "apiVersion": api_version(group, version), "kind": kind, "metadata": metadata}
        dry_run = write_options(request).dry_run
        return await self._changes.webhooks.admit_own(request, operation, new, old, dry_run=dry_run)

    # -- namespaces/finalize ------------------------------------------------------------------------------------

    async def _finalize(self, request: Request) -> Answer:
        options = write_options(request)
        asked, _ = parse(request.body, request.content_type, request.version.schema)
        conform(asked, request.version.schema)
        wanted = (asked.get("spec") or {}).get("finalizers") or []
        for _ in range(5):
            entry = self._changes.latest(request)
            if entry is None:
                raise not_found(request.kind, request.name)
            try:
                obj, stored = await self._store_finalizers(request, entry, wanted, asked, options)
            except RevisionMismatch:
                continue
            return await self._changes.answer(request, obj, stored, 200)
        raise BadRequest("the namespace keeps changing; try again")

    async def _store_finalizers(
        self, request: Request, entry: Entry, wanted: list[str], asked: Json, options: WriteOptions
    ) -> tuple[Json, Entry | None]:
        changes, kind = self._changes, request.kind
        old: Json = decode(entry.value)
        changes.check_preconditions(kind, request.name, asked.get("metadata") or {}, old["metadata"])
        spec = {key: value for key, value in (old.get("spec") or {}).items() if key != "finalizers"}
        if wanted:
            spec["finalizers"] = wanted
        new: Json = {**old, "spec": spec, "metadata": dict(old["metadata"])}
        if self._hooked:
            about = Admitted(request, "UPDATE", new, old, options.dry_run)
            new = await changes.webhooks.mutate(about)
            await changes.webhooks.validate(about)
        if new == old and not released(new, old):
            return old, entry
        if options.dry_run:
            return new, None
        if released(new, old):
            return new, await changes.storing.remove(kind, entry.key, new, entry.revision)
        return new, await changes.storing.put(kind, entry.key, new, entry.revision)

    # -- serviceaccounts/token ----------------------------------------------------------------------------------

    def _token(self, request: Request, body: Json, warnings: tuple[str, ...]) -> Answer:
        entry = self._changes.latest(request)
        if entry is None:
            raise not_found(request.kind, request.name)
        spec = body.get("spec") or {}
        seconds = spec.get("expirationSeconds", _TOKEN_SECONDS)
        text = ""
        if seconds < _SHORTEST_TOKEN:
            text = "may not specify a duration less than 10 minutes"
        elif seconds > _LONGEST_TOKEN:
            text = "may not specify a duration larger than 2^32 seconds"
        if text:
            error = invalid_value("spec.expirationSeconds", seconds, text)
            raise Invalid(
                f'TokenRequest.authentication.k8s.io "" is invalid: {error}',
                group="authentication.k8s.io",
                kind="TokenRequest",
                causes=[{"reason": error.type, "message": error.message, "field": error.path}],
            )
        spec["expirationSeconds"] = seconds
        spec["audiences"] = spec.get("audiences") or [AUDIENCE]
        now = self._changes.ctx.clock.now()
        uid = decode(entry.value)["metadata"]["uid"]
        bound = self._bound_to(request.namespace, request.name, spec.get("boundObjectRef"))
        tokens = self._changes.ctx.tokens
        token = tokens.issue(request.namespace, request.name, uid, spec["audiences"], seconds, bound)
        answer = {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": request.name, "namespace": request.namespace, "creationTimestamp": rfc3339(now)},
            "spec": spec,
            "status": {"token": token, "expirationTimestamp": rfc3339(now + seconds)},
        }
        return Answer(201, encode(answer), warnings=warnings)

    def _bound_to(self, namespace: str, account: str, ref: Json | None) -> dict[str, dict[str, str]]:
        """Return the object that a token shall not outlive.

        Raises NotFound, Conflict and BadRequest.
        """
        if not ref:
            return {}
        resource = {"Pod": "pods", "Secret": "secrets", "Node": "nodes"}.get(str(ref.get("kind")))
        kind = self._changes.ctx.registry.by_storage_key(resource) if resource else None
        if kind is None:
            raise BadRequest(
                f"cannot bind token for serviceaccount to type {ref.get('kind')}: give Pod, Secret or Node"
            )
        name = str(ref.get("name") or "")
        entry = self._changes.store.latest((kind.storage_key, namespace if kind.namespaced else "", name))
        if entry is None:
            raise not_found(kind, name)
        if ref.get("uid") and ref["uid"] != entry.index.uid:
            why = f"the UID in the bound object reference ({ref['uid']}) does not match the UID in record"
            raise conflict(kind, name, f"{why} ({entry.index.uid})")
        if kind.kind == "Pod" and (decode(entry.value)["spec"].get("serviceAccountName") or "default") != account:
            raise BadRequest(
                f'cannot bind token for serviceaccount "{account}" to pod running with different serviceaccount name.'
            )
        return {kind.kind.lower(): {"name": name, "uid": entry.index.uid}}


def read_body(request: Request, options: WriteOptions | None = None) -> tuple[Json, tuple[str, ...]]:
    """Read the body of a subresource that has its own kind; return it with its warnings."""
    group, version, kind = SUBRESOURCE_KINDS[request.subresource]
    schema = body_schema(group, version, kind)
    assert schema is not None
    if not request.body.strip():
        return {}, ()
    obj, _ = parse(request.body, request.content_type, schema)
    given = obj.get("kind")
    if given and given != kind:
        raise BadRequest(f'{given} in version "{version}" cannot be handled as a {kind}')
    unknown = conform(obj, schema)
    name = (obj.get("metadata") or {}).get("name")
    if name and name != request.name:
        if kind in ("Eviction", "Binding"):
            raise BadRequest(f"name in URL does not match name in {kind} object")
        raise BadRequest(f"the name of the object ({name}) does not match the name on the URL ({request.name})")
    namespace = (obj.get("metadata") or {}).get("namespace")
    if namespace and namespace != request.namespace:
        raise BadRequest("the namespace of the provided object does not match the namespace sent on the request")
    return obj, _unknown(unknown, kind, version, options)


def _unknown(texts: list[str], kind: str, version: str, options: WriteOptions | None) -> tuple[str, ...]:
    if not texts or options is None or options.validation == "Ignore":
        return ()
    if options.validation == "Strict":
        raise BadRequest(
            f'{kind} in version "{version}" cannot be handled as a {kind}: strict decoding error: {", ".join(texts)}'
        )
    return tuple(texts)


def _scale_schema() -> Object:
    schema = body_schema(*SUBRESOURCE_KINDS["scale"])
    assert schema is not None
    return schema


def _shape_scale(scale: Json, options: WriteOptions) -> tuple[str, ...]:
    return _unknown(conform(scale, _scale_schema()), "Scale", "v1", options)


def put_at(obj: Json, path: str, value: Any) -> None:
    """Set the value at a dotted path, making the way there."""
    *parents, last = path.strip(".").split(".")
    here = obj
    for part in parents:
        below = here.get(part)
        if not isinstance(below, dict):
            below = here[part] = {}
        here = below
    here[last] = value
