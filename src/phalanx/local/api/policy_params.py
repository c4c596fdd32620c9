"""Parameters of admission policies: the objects that a binding's paramRef chooses."""

from __future__ import annotations

from typing import Any

from phalanx.local.api.context import Context
from phalanx.local.api.rule_matching import Admitted
from phalanx.local.api.view import object_in
from phalanx.model.kinds import Json, Kind
from phalanx.model.selectors import from_selector


class ConfigurationError(Exception):
    """A policy cannot be evaluated as it is configured."""


def params_of(ctx: Context, spec: Json, binding: Json, about: Admitted) -> list[Any]:
    """Return the parameters that a policy is evaluated with, once for each; [None] if it has none."""
    wanted, ref = spec.get("paramKind"), binding.get("paramRef")
    if not wanted or not ref:
        return [None]
    group, _, version = str(wanted.get("apiVersion") or "").rpartition("/")
    kind = ctx.registry.by_kind(group, version, str(wanted.get("kind") or ""))
    if kind is None:
        shown = f"{wanted.get('apiVersion')}, Kind={wanted.get('kind')}"
        raise ConfigurationError(f"paramKind kind `{shown}` not known")
    found = _chosen(ctx, kind, version, ref, _namespace(kind, ref, about))
    if not found and ref.get("parameterNotFoundAction") == "Deny":
        raise ConfigurationError("no params found for policy binding with `Deny` parameterNotFoundAction")
    return found


def _namespace(kind: Kind, ref: Json, about: Admitted) -> str:
    named = str(ref.get("namespace") or "")
    if not kind.namespaced:
        if named:
            raise ConfigurationError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        return ""
    namespace = named or about.request.namespace
    if not namespace:
        text = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
        raise ConfigurationError(text)
    return namespace


def _chosen(ctx: Context, kind: Kind, version: str, ref: Json, namespace: str) -> list[Any]:
    if ref.get("name"):
        entry = ctx.store.latest((kind.storage_key, namespace, str(ref["name"])))
        entries = [] if entry is None else [entry]
    else:
        selector = from_selector(ref.get("selector") or {})
        listed = ctx.store.list(kind.storage_key, namespace)
        entries = [entry for entry in listed if selector.matches(entry.index.labels or {})]
    return [object_in(kind, kind.version(version), entry.value) for entry in entries]
