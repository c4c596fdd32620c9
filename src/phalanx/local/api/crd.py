"""CustomResourceDefinitions: a kind is served as long as its definition is stored.

Versions differ in apiVersion only, or are turned into each other by a webhook (conversion.py).
"""

from __future__ import annotations

from typing import Any

from phalanx.base.clock import rfc3339
from phalanx.base.errors import MethodNotAllowed
from phalanx.local.api.context import Context
from phalanx.local.api.crd_rules import definition_errors
from phalanx.local.api.custom_kind import CustomRules, kind_of, served_names
from phalanx.local.api.problems import invalid
from phalanx.local.api.view import decode
from phalanx.local.store.contract import Key
from phalanx.model.kinds import Json, Kind, Version

RESOURCE = "customresourcedefinitions.apiextensions.k8s.io"
FINALIZER = "customresourcecleanup.apiextensions.k8s.io"
BUILT_IN = "{name} is built into this server: the definition is stored, the built-in kind keeps being served"


class CustomKinds:
    """Keeps the registry in step with the stored definitions."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._served: dict[str, Json] = {}  # storage key of the custom kind -> its definition
        self._rules: dict[tuple[str, str], tuple[Any, CustomRules]] = {}  # (kind, version) -> its schema and rules
        for entry in ctx.store.list(RESOURCE):
            self._serve(decode(entry.value))

    # -- hooks of the pipeline ----------------------------------------------------------------------------------

    def creating(self, kind: Kind) -> None:
        definition = self._served.get(kind.storage_key)
        if definition is not None and definition["metadata"].get("deletionTimestamp"):
            raise MethodNotAllowed(
                "create not allowed while custom resource definition is terminating",
                group=kind.group,
                kind=kind.plural,
            )

    def prepare_create(self, kind: Kind, obj: Json) -> None:
        if kind.storage_key == RESOURCE:
            _default(obj)
            self._check(kind, obj, None)
            finalizers = obj["metadata"].get("finalizers") or []
            if FINALIZER not in finalizers:
                obj["metadata"]["finalizers"] = [*finalizers, FINALIZER]
            self._set_status(obj, {})
        elif kind.storage_key in self._served and "status" in kind.subresources:
            obj.pop("status", None)

    def prepare_update(self, kind: Kind, new: Json, old: Json) -> None:
        if kind.storage_key == RESOURCE:
            _default(new)
            self._check(kind, new, old)
            self._set_status(new, old.get("status") or {})

    def warnings(self, kind: Kind, obj: Json) -> tuple[str, ...]:
        if kind.storage_key != RESOURCE:
            return ()
        name = obj["metadata"]["name"]
        found = []
        if self._built_in(obj):
            found.append(BUILT_IN.format(name=name))
        return tuple(found)

    def rules_of(self, kind: Kind, version: Version) -> CustomRules | None:
        """Return the rules of a version that is not the stored one; None where the rules of the kind itself apply.

        A write is validated by the version that it is written in.
        """
        if version.openapi is None or version.name == kind.storage_version:
            return None
        known = self._rules.get((kind.key, version.name))
        if known is None or known[0] is not version.openapi:
            made = CustomRules(version.openapi, namespaced=kind.namespaced, status="status" in kind.subresources)
            known = self._rules[(kind.key, version.name)] = (version.openapi, made)
        return known[1]

    def changed(self, key: Key, obj: Json) -> None:
        if key[0] == RESOURCE:
            self._serve(obj)

    def removed(self, key: Key, obj: Json) -> None:
        if key[0] == RESOURCE:
            name = key[2]
            self._ctx.conversions.forget(name)
            if self._served.pop(name, None) is not None:
                self._ctx.registry.remove(name)

    # -- deletion -----------------------------------------------------------------------------------------------

    def terminating(self, resource: str) -> Json | None:
        """Return the definition of a resource if it is being deleted and waits for its last object."""
        definition = self._served.get(resource)
        if definition is None or not definition["metadata"].get("deletionTimestamp"):
            return None
        return definition

    def recheck_names(self, definition: Json) -> bool:
        """Check again a definition whose names were refused; return True if its status changed."""
        if _condition(definition, "NamesAccepted") == "True":
            return False
        before = definition.get("status") or {}
        self._set_status(definition, before)
        return bool(definition["status"] != before)

    def kind(self, name: str) -> Kind | None:
        """Return the kind that a definition serves; None if it serves none.

        It never served one, or the name is built in.
        """
        return self._ctx.registry.by_storage_key(name) if name in self._served else None

    # -- serving ------------------------------------------------------------------------------------------------

    def _built_in(self, obj: Json) -> bool:
        name = obj["metadata"]["name"]
        return name not in self._served and self._ctx.registry.by_storage_key(name) is not None

    def _serve(self, definition: Json) -> None:
        name = definition["metadata"]["name"]
        if self._built_in(definition):
            return
        accepted = _condition(definition, "NamesAccepted") == "True"
        kind = kind_of(definition) if accepted else None
        if kind is None:
            if self._served.pop(name, None) is not None:
                self._ctx.registry.remove(name)
            return
        before = self._served.get(name)
        self._served[name] = definition
        if before is None or before["spec"] != definition["spec"] or self._ctx.registry.by_storage_key(name) is None:
            self._ctx.registry.add(kind)

    def _check(self, kind: Kind, obj: Json, old: Json | None) -> None:
        errors = definition_errors(obj, old)
        if errors:
            raise invalid(kind, obj["metadata"].get("name") or "", errors)

    def _set_status(self, obj: Json, status: Json) -> None:
        """Set the accepted names, conditions and stored versions in the status of a definition.

        Controllers do this in Kubernetes; here it is known right away.
        """
        now = rfc3339(self._ctx.clock.now())
        spec = obj["spec"]
        storage = next((v["name"] for v in spec["versions"] if v.get("storage")), "")
        stored = [*(status.get("storedVersions") or [])]
        if storage and storage not in stored:
            stored.append(storage)
        conflict = self._conflict(obj)
        if conflict:
            names = status.get("acceptedNames") or {"plural": "", "kind": ""}
            conditions = [
                ("NamesAccepted", "False", *conflict),
                ("Established", "False", "NotAccepted", "not all names are accepted"),
            ]
            if _find(status, "Established").get("status") == "True":
                conditions.pop()
        else:
            names = dict(spec["names"])
            conditions = [
                ("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
                ("Established", "True", "InitialNamesAccepted", "the initial names have been accepted"),
            ]
        kept = [c for c in status.get("conditions") or [] if c["type"] not in [fresh[0] for fresh in conditions]]
        for kind, value, reason, message in conditions:
            before = _find(status, kind)
            time = before.get("lastTransitionTime", now) if before.get("status") == value else now
            kept.append(
                {"type": kind, "status": value, "lastTransitionTime": time, "reason": reason, "message": message}
            )
        obj["status"] = {"conditions": kept, "acceptedNames": names, "storedVersions": stored}

    def _conflict(self, obj: Json) -> tuple[str, str] | None:
        """Return (reason, message) if another kind of the group already has one of the names."""
        name, group = obj["metadata"]["name"], obj["spec"]["group"]
        names = obj["spec"]["names"]
        taken: dict[str, set[str]] = {"resource": set(), "kind": set()}
        for kind in self._ctx.registry.all():
            if kind.group == group and kind.storage_key != name:
                resources, kinds = served_names(kind)
                taken["resource"] |= resources
                taken["kind"] |= kinds
        checks = [
            ("Plural", "resource", [names["plural"]]),
            ("Singular", "resource", [names["singular"]]),
            ("ShortNames", "resource", names.get("shortNames") or []),
            ("Kind", "kind", [names["kind"]]),
            ("ListKind", "kind", [names["listKind"]]),
        ]
        for what, where, wanted in checks:
            for word in wanted:
                if word in taken[where]:
                    return f"{what}Conflict", f'"{word}" is already in use'
        return None


def _find(status: Json, kind: str) -> Json:
    found: Any = next((c for c in status.get("conditions") or [] if c.get("type") == kind), {})
    return dict(found)


def _condition(obj: Json, kind: str) -> str:
    return str(_find(obj.get("status") or {}, kind).get("status", ""))


def _default(obj: Json) -> None:
    spec = obj.get("spec")
    if not isinstance(spec, dict):
        return
    names = spec.setdefault("names", {})
    if names.get("kind"):
        if not names.get("singular"):
            names["singular"] = names["kind"].lower()
        if not names.get("listKind"):
            names["listKind"] = names["kind"] + "List"
    conversion = spec.setdefault("conversion", {})
    conversion.setdefault("strategy", "None")
