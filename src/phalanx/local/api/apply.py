"""Server-side apply: merge a configuration into the live object and decide which manager owns each field.

Works in the storage version, on plain JSON, for any type of `model.schema`. Raises only API problems.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from phalanx.base.errors import BadRequest, Conflict
from phalanx.base.well_known import LAST_APPLIED
from phalanx.local.api.fieldset import Fields, difference, intersection, members, owned, path_text, union
from phalanx.local.api.managed_fields import (
    APPLY,
    UPDATE,
    FieldTracker,
    Manager,
    acceptable,
    read_managers,
    tracked,
    write_managers,
)
from phalanx.local.api.ownership import Walker
from phalanx.local.api.writable import metadata_of
from phalanx.model.kinds import Json, Kind, clone

BEFORE_FIRST_APPLY = "before-first-apply"
KUBECTL = "kubectl"
MOST_ANNOTATION_BYTES = 256 * 1024  # of all annotations of an object
_encode = msgspec.json.Encoder(order="sorted").encode


class Applier:
    def __init__(self, fields: FieldTracker) -> None:
        self._fields = fields

    def apply(
        self, kind: Kind, live: Json | None, config: Json, manager: str, now: str, *, force: bool, subresource: str = ""
    ) -> Json:
        """Return the new object with its managedFields.

        `live` (None: there is no object yet) is not changed.
        """
        walker = self._fields.walker(kind)
        if metadata_of(config).get("managedFields"):
            raise BadRequest("metadata.managedFields must be nil")
        wanted = tracked(kind, config, subresource)
        check_keys(walker, wanted, _name(kind, config))
        mine = walker.applied(wanted)
        if live is None:
            made: Json = clone(config)
            if "status" in kind.subresources:
                made.pop("status", None)
            write_managers(made["metadata"], [Manager(manager, APPLY, made["apiVersion"], now, mine, subresource)])
            return made
        managers = self._managers(kind, live, now)
        before = next((m for m in managers if m.identity == (manager, APPLY, "", subresource)), None)
        others = [m for m in managers if m is not before]
        merged = merge(walker, tracked(kind, live, subresource), wanted)
        if before is not None:
            kept = configured = mine
            for other in others:
                kept = union(kept, other.fields)
                if other.operation == APPLY:
                    configured = union(configured, other.fields)
            prune(walker, merged, before.fields, kept, configured)
        result = self._overlay(live, merged, kind, subresource)
        changed, removed = self._fields.differences(kind, live, result, subresource)
        if not force:
            nonzero = without_new_zeros(live, result)
            asked = changed if nonzero == result else self._fields.differences(kind, live, nonzero, subresource)[0]
            if manager == KUBECTL:
                asked = difference(asked, self._applied_by_kubectl(kind, walker, live))
            refuse_disputes(others, asked)
        for other in others:
            other.fields = difference(difference(other.fields, changed), removed)
        entry = Manager(manager, APPLY, live["apiVersion"], now, mine, subresource)
        if before is not None and before.fields == mine and before.api_version == entry.api_version:
            entry.time = before.time
        write_managers(result["metadata"], [*others, entry])
        if manager == KUBECTL:
            _refresh_last_applied(result["metadata"], config)
        return result

    def _managers(self, kind: Kind, live: Json, now: str) -> list[Manager]:
        metadata = live["metadata"]
        managers = read_managers(metadata) if acceptable(metadata.get("managedFields") or []) else None
        if managers:
            return managers
        # No manager was tracked so far: existing fields belong to "before-first-apply".
        fields = self._fields.content(kind, live)
        time = metadata.get("creationTimestamp") or now
        return [Manager(BEFORE_FIRST_APPLY, UPDATE, live["apiVersion"], time, fields)] if fields else []

    def _applied_by_kubectl(self, kind: Kind, walker: Walker, live: Json) -> Fields:
        """Return the fields that client-side `kubectl apply` set and that did not change since.

        `kubectl apply --server-side` on such an object is the same user going on, not a conflict.
        """
        text = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED)
        if not isinstance(text, str):
            return {}
        try:
            last = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return {}
        if not isinstance(last, dict) or last.get("apiVersion") != live["apiVersion"]:
            return {}
        if not isinstance(last.get("metadata", {}), dict):
            return {}
        wanted = tracked(kind, last, "")
        changed: Fields = {}
        walker.compare(tracked(kind, live, ""), wanted, changed, {})
        return difference(walker.applied(wanted), changed)

    def _overlay(self, live: Json, merged: Json, kind: Kind, subresource: str) -> Json:
        """Put the tracked part back among the rest of the live object."""
        result = dict(live)
        for key in tracked(kind, live, subresource):
            if key != "metadata" and key not in merged:
                result.pop(key, None)
        for key, value in merged.items():
            if key != "metadata":
                result[key] = value
        metadata = dict(live["metadata"])
        if subresource != "status":
            fresh = merged.get("metadata") or {}
            for name in tracked(kind, live, subresource).get("metadata", {}):
                if name not in fresh:
                    metadata.pop(name, None)
            metadata.update(fresh)
        result["metadata"] = metadata
        return result


def _refresh_last_applied(metadata: Json, config: Json) -> None:
    """Update the annotation of client-side apply, as kube-apiserver does for `kubectl apply --server-side`.

    A later client-side apply then compares with the configuration applied last. The annotation is not added where it is
    absent.
    """
    annotations = metadata.get("annotations") or {}
    if not annotations.get(LAST_APPLIED):
        return
    about = config.get("metadata") or {}
    own = {key: value for key, value in (about.get("annotations") or {}).items() if key != LAST_APPLIED}
    applied = {**config, "metadata": {**about, **({"annotations": own} if "annotations" in about else {})}}
    fresh = {**annotations, LAST_APPLIED: _encode(applied).decode() + "\n"}
    if sum(len(key.encode()) + len(value.encode()) for key, value in fresh.items()) > MOST_ANNOTATION_BYTES:
        del fresh[LAST_APPLIED]
    metadata["annotations"] = fresh


def refuse_disputes(others: list[Manager], changed: Fields) -> None:
    disputes = [(other, intersection(other.fields, changed)) for other in others]
    disputes = [(other, fields) for other, fields in disputes if fields]
    if disputes:
        raise conflict_of(disputes)


def without_new_zeros(live: Any, merged: Any) -> Any:
    """Remove the zero values from `merged` that `live` does not have.

    Zeros are not stored, so such a zero changes nothing: managers that both apply it agree.
    """
    if not (isinstance(live, dict) and isinstance(merged, dict)):
        return merged
    return {name: without_new_zeros(live.get(name), value) for name, value in merged.items() if value or name in live}


def conflict_of(disputes: list[tuple[Manager, Fields]]) -> Conflict:
    found = sorted((other.described(), path_text(path)) for other, fields in disputes for path in members(fields))
    causes = [
        {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path} for who, path in found
    ]
    if len(found) == 1:
        message = f"Apply failed with 1 conflict: conflict with {found[0][0]}: {found[0][1]}"
    else:
        lines = []
        for who in sorted({who for who, _ in found}):
            lines.append(f"conflicts with {who}:")
            lines += [f"- {path}" for owner, path in found if owner == who]
        message = f"Apply failed with {len(found)} conflicts: " + "\n".join(lines)
    return Conflict(message, causes=causes)


def merge(walker: Walker, live: Any, config: Any) -> Any:
    """Merge `config` over `live`; neither is changed."""
    if walker.atomic or live is None or config is None:
        return clone(config)
    if walker.key is not None:
        if not (isinstance(live, list) and isinstance(config, list)):
            return clone(config)
        return _merge_items(walker, live, config)
    if not (isinstance(live, dict) and isinstance(config, dict)):
        return clone(config)
    out = {key: clone(value) for key, value in live.items()}
    for name, value in config.items():
        if walker.plain:
            known = walker.children().get(name)
            out[name] = merge(known[1], live.get(name), value) if known is not None else clone(value)
        else:
            out[name] = merge(walker.item(), live.get(name), value)
    return out


def _merge_items(walker: Walker, live: list[Any], config: list[Any]) -> list[Any]:
    """Merge two lists with keys in the order of the configuration.

    Items that the configuration does not mention stay before the item that they stood before.
    """
    assert walker.key is not None
    inner = walker.item()
    there = {walker.key(item): item for item in reversed(live)}
    wanted = {walker.key(item): item for item in config}
    out: list[Any] = []
    placed: set[str | None] = set()
    rest = deque((walker.key(item), item) for item in live)
    for item in config:
        key = walker.key(item)
        if key in there:
            while rest and rest[0][0] != key:
                first = rest[0][0]
                if first in wanted:
                    if first in placed:
                        rest.popleft()
                        continue
                    break  # the configuration has it later: the items after it stay behind it
                out.append(clone(rest.popleft()[1]))
            if rest and rest[0][0] == key:
                rest.popleft()
            out.append(merge(inner, there[key], item))
        else:
            out.append(clone(item))
        placed.add(key)
    out += [clone(item) for key, item in rest if key not in wanted]
    return out


def prune(walker: Walker, value: Any, last: Fields, kept: Fields, configured: Fields) -> None:
    """Remove from `value` what the last configuration owned and no manager owns now. Edits `value` in place.

    `configured` is the part of `kept` that configurations name: they may wish an empty map, an update cannot leave one.
    """
    if walker.atomic:
        return
    if walker.key is not None:
        if isinstance(value, list):
            _prune_items(walker, value, last, kept, configured)
        return
    if not isinstance(value, dict):
        return
    for element, node in last.items():
        name = element[2:]
        if not element.startswith("f:") or name not in value:
            continue
        now = kept.get(element)
        if now is None or (not walker.plain and abandoned(node, now)):
            del value[name]
            continue
        if not node:
            continue
        if walker.plain:
            known = walker.children().get(name)
            if known is not None:
                prune(known[1], value[name], node, now, configured.get(element, {}))
                if not value[name] and not known[1].plain and element not in configured:
                    del value[name]  # empty maps and lists are not stored, so they cannot stay owned
        else:
            prune(walker.item(), value[name], node, now, configured.get(element, {}))


def abandoned(last: Fields, kept: Fields) -> bool:
    """Return True if a list item or map entry has lost its last owner.

    A manager that only changed a field inside does not hold the entry, and what would be left (an item without its key)
    is no item. Fields of records are held by any part.
    """
    return owned(last) and not owned(kept)


def _prune_items(walker: Walker, value: list[Any], last: Fields, kept: Fields, configured: Fields) -> None:
    assert walker.key is not None
    inner, left = walker.item(), []
    for item in value:
        element = walker.key(item) or ""
        node = last.get(element)
        if node is not None:
            now = kept.get(element)
            if now is None or abandoned(node, now):
                continue
            prune(inner, item, node, now, configured.get(element, {}))
        left.append(item)
    value[:] = left


def check_keys(walker: Walker, value: Any, where: str, path: str = "") -> None:
    """Check that the items of a keyed list have their keys, each once. Raises BadRequest.

    Otherwise ownership would be ambiguous.
    """
    if walker.atomic or not value:
        return
    if walker.key is not None:
        if not isinstance(value, list):
            return
        inner, seen = walker.item(), set()
        for item in value:
            element = walker.key(item)
            if element is None:
                raise BadRequest(
                    f"failed to create typed patch object ({where}): {path}: element 0: associative list with keys "
                    "has an element that omits key field"
                )
            if element in seen:
                shown = path_text((element,))
                raise BadRequest(
                    f"failed to create typed patch object ({where}): {path}: duplicate entries for key {shown}"
                )
            seen.add(element)
            check_keys(inner, item, where, path + path_text((element,)))
    elif isinstance(value, dict):
        if walker.plain:
            table = walker.children()
            for name, item in value.items():
                if name in table:
                    check_keys(table[name][1], item, where, f"{path}.{name}")
        else:
            inner = walker.item()
            for name, item in value.items():
                check_keys(inner, item, where, f"{path}.{name}")


def _name(kind: Kind, config: Json) -> str:
    metadata = config["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}; {config['apiVersion']}, Kind={kind.kind}"
