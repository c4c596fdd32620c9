"""Strategic merge patch: JSON merge that knows which lists are sets or keyed, and obeys `$` directives.

Reads merge keys from `schema.Type` only. Where the schema says nothing, lists are replaced and objects merged.
Problems are BadRequest (the patch makes no sense) or Invalid (a list item lacks its merge key).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from phalanx.local.api.problems import bad_request, rejected_patch
from phalanx.model.kinds import clone
from phalanx.model.schema import ListOf, MapOf, Object, Type

DIRECTIVE = "$patch"
RETAIN_KEYS = "$retainKeys"
SET_ORDER = "$setElementOrder/"
DELETE_PRIMITIVES = "$deleteFromPrimitiveList/"
CONTAINERS = (dict, list)


def strategic_patch(target: dict[str, Any], patch: Any, schema: Type | None) -> dict[str, Any]:
    """Apply a strategic merge patch to `target`.

    `target` is consumed: its containers may become part of the result.
    """
    if not isinstance(patch, dict):
        raise bad_request("a strategic merge patch is an object")
    return _merge_object(target, patch, schema)


def _field_type(schema: Type | None, name: str) -> Type | None:
    if isinstance(schema, Object):
        field = schema.fields.get(name)
        return field.type if field else None
    if isinstance(schema, MapOf):
        return schema.value
    return None


def _merge_object(target: dict[str, Any], patch: dict[str, Any], schema: Type | None) -> dict[str, Any]:
    directive = patch.get(DIRECTIVE)
    if directive == "delete":
        return {}
    if directive == "replace":
        return _fresh_object(patch, schema)
    if directive not in (None, "merge"):
        raise bad_request(f"unknown patch type found in patch: {directive!r}")
    if RETAIN_KEYS in patch:
        _retain_keys(target, patch)
    for name in _only_directed(patch):
        if isinstance(target.get(name), list):
            target[name] = _merge_list(target[name], [], patch, name, _field_type(schema, name))
    for name, value in patch.items():
        if name.startswith("$"):
            _check_directive(name)
            continue
        if value is None:
            target.pop(name, None)
            continue
        kind = _field_type(schema, name)
        old = target.get(name)
        if isinstance(value, dict):
            target[name] = _merge_object(old, value, kind) if isinstance(old, dict) else _fresh_object(value, kind)
        elif isinstance(value, list):
            target[name] = _merge_list(old if isinstance(old, list) else [], value, patch, name, kind)
        else:
            target[name] = value
    return target


def _only_directed(patch: dict[str, Any]) -> list[str]:
    """Return the lists that the patch has directives for and does not mention itself."""
    directives = [key for key in patch if key.startswith("$")]
    if not directives:
        return directives
    lists = {key[len(SET_ORDER) :] for key in directives if key.startswith(SET_ORDER)}
    lists |= {key[len(DELETE_PRIMITIVES) :] for key in directives if key.startswith(DELETE_PRIMITIVES)}
    return sorted(lists - patch.keys())


def _check_directive(name: str) -> None:
    if name not in (DIRECTIVE, RETAIN_KEYS) and not name.startswith((SET_ORDER, DELETE_PRIMITIVES)):
        raise bad_request(f"unknown directive {name!r} in strategic merge patch")


def _fresh_object(patch: dict[str, Any], schema: Type | None) -> dict[str, Any]:
    """Apply a patch to nothing: return what remains without nulls and directives."""
    for name, value in patch.items():
        if value is None or name.startswith("$") or isinstance(value, CONTAINERS):
            break
    else:
        return dict(patch)  # the usual case of items of lists, such as conditions
    if patch.get(DIRECTIVE) == "delete":
        return {}
    return _merge_object({}, {key: value for key, value in patch.items() if key != DIRECTIVE}, schema)


def _retain_keys(target: dict[str, Any], patch: dict[str, Any]) -> None:
    keep = patch[RETAIN_KEYS]
    if not isinstance(keep, list) or not all(isinstance(key, str) for key in keep):
        raise bad_request("invalid patch format of retainKeys: a list of field names is needed")
    for name, value in patch.items():
        if value is not None and not name.startswith("$") and name not in keep:
            raise bad_request(f"invalid patch format of retainKeys: {name!r} is set but not in the list of kept keys")
    for name in [name for name in target if name not in keep]:
        del target[name]


def _merge_list(old: list[Any], patch: list[Any], parent: dict[str, Any], name: str, schema: Type | None) -> list[Any]:
    order = parent.get(SET_ORDER + name)
    to_delete = parent.get(DELETE_PRIMITIVES + name)
    if order is not None and not isinstance(order, list):
        raise bad_request(f"{SET_ORDER}{name} must be a list")
    if to_delete is not None and not isinstance(to_delete, list):
        raise bad_request(f"{DELETE_PRIMITIVES}{name} must be a list")
    if not isinstance(schema, ListOf) or not schema.patch_merge:
        if order is None and to_delete is None:
            return [_fresh(item, schema.item if isinstance(schema, ListOf) else None) for item in patch]
        if name not in parent:  # directives on a list that is only ever replaced change nothing
            return old
        return [_fresh(item, schema.item if isinstance(schema, ListOf) else None) for item in patch]
    if not schema.patch_key:
        return _merge_scalars(old, patch, order, to_delete or [])
    return _merge_keyed(old, patch, order, schema)


def _fresh(item: Any, schema: Type | None) -> Any:
    return _fresh_object(item, schema) if isinstance(item, dict) else clone(item)


def _merge_scalars(old: list[Any], patch: list[Any], order: list[Any] | None, to_delete: list[Any]) -> list[Any]:
    for value in [*patch, *(order or []), *to_delete]:
        if isinstance(value, CONTAINERS):
            raise bad_request("invalid patch format of primitive list: only scalars are allowed")
    # Sets throughout: lists of a 3 MiB body may be long, and the server serves others meanwhile.
    gone = {_distinguished(value) for value in to_delete}
    merged = [value for value in old if not _plain(value) or _distinguished(value) not in gone]
    there = {_distinguished(value) for value in merged if _plain(value)}
    for value in patch:
        if _distinguished(value) not in there:
            there.add(_distinguished(value))
            merged.append(value)
    if order is None:
        # Items of the patch come in its order, before items that the patch does not order.
        return _reorder(merged, lambda value: value, patch, old) if patch else merged
    _check_order(patch, order)
    return _reorder(merged, lambda value: value, order, old)


def _merge_keyed(old: list[Any], patch: list[Any], order: list[Any] | None, schema: ListOf) -> list[Any]:
    key = schema.patch_key

    def lookup(item: Any) -> Any:
        return item.get(key) if isinstance(item, dict) else None

    preferences = _read_keyed(patch, key)
    merged = [] if preferences.replace else list(old)
    if preferences.dead:
        merged = [there for there in merged if not (_plain(lookup(there)) and there[key] in preferences.dead)]
    place = {there[key]: i for i, there in enumerate(merged) if _plain(lookup(there))}
    named = [_key_of(item, key) for item in preferences.changes]
    for name, item in zip(named, preferences.changes, strict=True):
        if name in place:
            merged[place[name]] = _merge_object(merged[place[name]], item, schema.item)
        else:
            place[name] = len(merged)
            merged.append(_fresh_object(item, schema.item))
    keys = named
    if order is not None:
        keys = [_key_of(entry, key) if isinstance(entry, dict) else entry for entry in order]
        if any(not _plain(value) for value in keys):
            raise bad_request("invalid patch format of setElementOrder list")
        _check_order(named, keys)
    return _reorder(merged, lookup, keys, [lookup(item) for item in old]) if keys else merged


class _Requested(NamedTuple):
    """What a patch says about a list of objects that have a merge key."""

    changes: list[dict[str, Any]]
    dead: set[Any]  # keys of deleted items
    replace: bool  # the old list is replaced


def _read_keyed(patch: list[Any], key: str) -> _Requested:
    changes: list[dict[str, Any]] = []
    dead: set[Any] = set()
    replace = False
    for item in patch:
        if not isinstance(item, dict):
            raise rejected_patch(f"{_shown(item)} is not an object with merge key: {key}")
        directive = item.get(DIRECTIVE)
        if directive == "replace":
            replace = True
            if len(item) > 1:
                changes.append({name: value for name, value in item.items() if name != DIRECTIVE})
        elif directive == "delete":
            dead.add(_key_of(item, key))
        elif directive in (None, "merge"):
            changes.append(item)
        else:
            raise bad_request(f"unknown patch type found in patch: {directive!r}")
    return _Requested(changes, dead, replace)


def _key_of(item: Any, key: str) -> Any:
    value = item.get(key) if isinstance(item, dict) else None
    if value is None or isinstance(value, CONTAINERS):
        raise rejected_patch(f"map: {_shown(item)} does not contain declared merge key: {key}")
    return value


def _distinguished(value: Any) -> tuple[bool, Any]:
    """Return a key that differs for true and 1, which are equal in Python and not in JSON."""
    return (isinstance(value, bool), value)


def _plain(value: Any) -> bool:
    return value is not None and not isinstance(value, CONTAINERS)


def _check_order(given: list[Any], order: list[Any]) -> None:
    places = {_distinguished(value): i for i, value in reversed(list(enumerate(order)))}
    position = -1
    for value in given:
        found = places.get(_distinguished(value))
        if found is None:
            raise bad_request(f"The value {_shown(value)} of the patch list is not in its $setElementOrder list")
        if found < position:
            raise bad_request("The order in patch list doesn't match $setElementOrder list")
        position = found


def _reorder(items: list[Any], key_of: Any, order: list[Any], before: list[Any]) -> list[Any]:
    """Sort the items named in `order` into that order.

    The other items keep their place relative to what stood before.
    """
    rank = {value: i for i, value in reversed(list(enumerate(order))) if _plain(value)}
    was = {value: i for i, value in reversed(list(enumerate(before))) if _plain(value)}
    keys = [key_of(item) for item in items]
    named = sorted(
        ((rank[k], i) for i, k in enumerate(keys) if _plain(k) and k in rank),
    )
    others = [i for i, k in enumerate(keys) if not (_plain(k) and k in rank)]
    result: list[Any] = []
    next_other = 0
    for _, i in named:
        while next_other < len(others):
            other = others[next_other]
            mine, theirs = was.get(_hashable(keys[other])), was.get(_hashable(keys[i]))
            if mine is None or theirs is None or mine > theirs:
                break
            result.append(items[other])
            next_other += 1
        result.append(items[i])
    return result + [items[i] for i in others[next_other:]]


def _hashable(value: Any) -> Any:
    return value if _plain(value) else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + "…"
