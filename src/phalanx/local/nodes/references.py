"""Find the ConfigMaps, Secrets and ClusterTrustBundles that a pod needs to start."""

from __future__ import annotations

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.errors import NotFound
from phalanx.base.resources import CONFIG_MAPS, SECRETS
from phalanx.base.well_known import ROOT_CA
from phalanx.model.objects.meta import Struct

_KEYS = {"ConfigMap": "config", "Secret": "secret"}
TRUST_BUNDLES = Resource("certificates.k8s.io", "v1", "clustertrustbundles", "ClusterTrustBundle", namespaced=False)


class _Item(Struct, frozen=True, gc=False):
    key: str = ""


class _Named(Struct, frozen=True, gc=False):
    name: str = ""
    secret_name: str = ""
    key: str = ""
    items: list[_Item] | None = None
    optional: bool | None = None


class _Projection(Struct, frozen=True, gc=False):
    config_map: _Named | None = None
    secret: _Named | None = None
    cluster_trust_bundle: _Named | None = None


class _Projected(Struct, frozen=True, gc=False):
    sources: list[_Projection] | None = None


class _Volume(Struct, frozen=True, gc=False):
    name: str = ""
    config_map: _Named | None = None
    secret: _Named | None = None
    projected: _Projected | None = None


class _ValueFrom(Struct, frozen=True, gc=False):
    config_map_key_ref: _Named | None = None
    secret_key_ref: _Named | None = None


class _Variable(Struct, frozen=True, gc=False):
    value_from: _ValueFrom | None = None


class _Variables(Struct, frozen=True, gc=False):
    config_map_ref: _Named | None = None
    secret_ref: _Named | None = None


class _Container(Struct, frozen=True, gc=False):
    name: str = ""
    env: list[_Variable] | None = None
    env_from: list[_Variables] | None = None


class _Spec(Struct, frozen=True, gc=False):
    volumes: list[_Volume] | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Pod(Struct, frozen=True, gc=False):
    spec: _Spec = _Spec()


_read = msgspec.json.Decoder(_Pod).decode
_decode = msgspec.json.Decoder(dict).decode


class Need(msgspec.Struct, frozen=True):
    """An object that must exist before a pod starts."""

    resource: Resource
    name: str
    key: str = ""  # that the object must contain
    container: str = ""  # whose environment refers to it; "": a volume does
    volume: str = ""


def needs_of(body: bytes) -> list[Need]:
    """Return the objects that a pod needs; optional references are not included."""
    spec = _read(body).spec
    found: list[Need] = []
    for volume in spec.volumes or ():
        sources = [_Projection(volume.config_map, volume.secret)]
        sources += volume.projected.sources or [] if volume.projected is not None else []
        for source in sources:
            pairs = (
                (CONFIG_MAPS, source.config_map),
                (SECRETS, source.secret),
                (TRUST_BUNDLES, source.cluster_trust_bundle),
            )
            found += [
                Need(resource, named.name or named.secret_name, item.key, volume=volume.name)
                for resource, named in pairs
                if named is not None and not named.optional
                for item in named.items or [_Item()]
            ]
    for container in (*(spec.init_containers or ()), *(spec.containers or ())):
        found += _of_environment(container)
    # Every pod mounts the CA certificate of its API server; no simulated container reads it.
    return [need for need in found if need.name and need.name != ROOT_CA]


def _of_environment(container: _Container) -> list[Need]:
    named: list[tuple[Resource, _Named | None]] = []
    for variables in container.env_from or ():
        named += [(CONFIG_MAPS, variables.config_map_ref), (SECRETS, variables.secret_ref)]
    for variable in container.env or ():
        if variable.value_from is not None:
            source = variable.value_from
            named += [(CONFIG_MAPS, source.config_map_key_ref), (SECRETS, source.secret_key_ref)]
    return [
        Need(resource, one.name, one.key, container.name)
        for resource, one in named
        if one is not None and not one.optional
    ]


async def missing(client: Client, namespace: str, needs: list[Need]) -> dict[Need, str]:
    """Return the needs that are not met, each with a message."""
    found: dict[Need, str] = {}
    for need in needs:
        kind = need.resource.kind.lower()
        try:
            body = await client.get(need.resource, need.name, namespace if need.resource.namespaced else "")
        except NotFound:
            found[need] = f'{kind} "{need.name}" not found'
            continue
        if need.key:
            obj = _decode(body)
            held = {**(obj.get("data") or {}), **(obj.get("binaryData") or {}), **(obj.get("stringData") or {})}
            if need.key not in held:
                found[need] = f"couldn't find key {need.key} in {need.resource.kind} {namespace}/{need.name}"
                if need.volume:
                    found[need] = f"references non-existent {_KEYS[need.resource.kind]} key: {need.key}"
    return found
