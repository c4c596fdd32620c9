"""Laws of server-side apply and of field sets, over generated objects of a type that has every merge rule."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.base.errors import ApiProblem, Conflict
from phalanx.local.api.apply import Applier
from phalanx.local.api.fieldset import difference, intersection, members, path_text, union, well_formed
from phalanx.local.api.managed_fields import FieldTracker
from phalanx.local.api.ownership import walker_of_type
from phalanx.model import tables
from phalanx.model.kinds import Kind, Version
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar

TEXT = Scalar("string")
ITEM = Object("t.Item")
ITEM.fields = {
    "name": Field("name", TEXT),
    "value": Field("value", TEXT),
    "inner": Field("inner", ListOf(ITEM, "map", ("name",)), pointer=True),
}
SPEC = Object(
    "t.Spec",
    {
        "plain": Field("plain", TEXT),
        "labels": Field("labels", MapOf(TEXT)),
        "items": Field("items", ListOf(ITEM, "map", ("name",))),
        "ports": Field("ports", ListOf(ITEM, "map", ("name", "value"))),
        "tags": Field("tags", ListOf(TEXT, "set")),
        "atomic": Field("atomic", ListOf(TEXT)),
        "frozen": Field("frozen", MapOf(TEXT, atomic=True)),
        "one": Field("one", ITEM, pointer=True),
    },
)
ROOT = Object(
    "t.Root",
    {
        "apiVersion": Field("apiVersion", TEXT),
        "kind": Field("kind", TEXT),
        "metadata": Field("metadata", tables.record("meta/v1.ObjectMeta")),
        "spec": Field("spec", SPEC),
    },
)
KIND = Kind("T", "t.io", "ts", (Version("v1", ROOT),), "v1")
TRACKER = FieldTracker()
APPLIER = Applier(TRACKER)

word = st.text("ab", min_size=1, max_size=2)
keyed: st.SearchStrategy[Any] = st.deferred(
    lambda: st.lists(
        st.fixed_dictionaries({"name": word}, optional={"value": word, "inner": keyed}),
        unique_by=lambda item: item["name"],
        max_size=3,
    )
)
specs = st.fixed_dictionaries(
    {},
    optional={
        "plain": word,
        "labels": st.dictionaries(word, word, max_size=3),
        "items": keyed,
        "ports": st.lists(
            st.fixed_dictionaries({"name": word, "value": word}),
            unique_by=lambda item: (item["name"], item["value"]),
            max_size=2,
        ),
        "tags": st.lists(word, unique=True, max_size=3),
        "atomic": st.lists(word, max_size=2),
        "frozen": st.dictionaries(word, word, max_size=2),
        "one": st.fixed_dictionaries({}, optional={"name": word, "value": word, "inner": keyed}),
    },
)


def thing(spec: Any) -> dict[str, Any]:
    return {"apiVersion": "t.io/v1", "kind": "T", "metadata": {"name": "x"}, "spec": copy.deepcopy(spec)}


def apply(live: Any, spec: Any, who: str, *, force: bool = True) -> dict[str, Any]:
    before = copy.deepcopy(live)
    result = APPLIER.apply(KIND, live, thing(spec), who, "now", force=force)
    assert live == before, "the live object must stay as it is"
    return copy.deepcopy(result)


def fields_of(obj: Any, who: str) -> Any:
    return next((e["fieldsV1"] for e in obj["metadata"].get("managedFields", []) if e["manager"] == who), {})


def canonical(value: Any) -> Any:
    """Order of keyed lists and sets aside: it is the last writer's to choose. Empty containers say nothing."""
    if isinstance(value, dict):
        found = {key: canonical(item) for key, item in value.items()}
        return {key: item for key, item in found.items() if item not in ({}, [])}
    if isinstance(value, list):
        return sorted((canonical(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


@given(specs, specs)
@settings(max_examples=120, deadline=None)
def test_applying_twice_is_applying_once(first: Any, second: Any) -> None:
    live = apply(None, first, "a")
    once = apply(live, second, "b")
    assert apply(once, second, "b") == once


@given(specs, specs)
@settings(max_examples=120, deadline=None)
def test_what_was_applied_is_there(first: Any, second: Any) -> None:
    live = apply(apply(None, first, "a"), second, "b")
    assert intersection(walker_of_type(ROOT).applied({"spec": second}), content(live)) == walker_of_type(ROOT).applied(
        {"spec": second}
    ) or contains(live["spec"], second)


def content(obj: Any) -> Any:
    return walker_of_type(ROOT).applied({"spec": obj["spec"]})


def contains(whole: Any, part: Any) -> bool:
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(contains(there, item) for there in whole) for item in part)
    return bool(whole == part)


@given(specs, specs, specs)
@settings(max_examples=120, deadline=None)
def test_the_last_configuration_of_a_lone_manager_is_all_that_is_left(first: Any, second: Any, third: Any) -> None:
    live = apply(apply(apply(None, first, "a"), second, "a"), third, "a")
    assert canonical(live["spec"]) == canonical(third)


@given(specs, specs)
@settings(max_examples=120, deadline=None)
def test_managers_of_different_fields_commute(first: Any, second: Any) -> None:
    half = sorted(SPEC.fields)[::2]
    mine = {key: value for key, value in first.items() if key in half}
    yours = {key: value for key, value in second.items() if key not in half}
    one = apply(apply(thing({}), mine, "a", force=False), yours, "b", force=False)
    two = apply(apply(thing({}), yours, "b", force=False), mine, "a", force=False)
    assert canonical(one["spec"]) == canonical(two["spec"])
    assert fields_of(one, "a") == fields_of(two, "a") and fields_of(one, "b") == fields_of(two, "b")


@given(specs, specs, specs)
@settings(max_examples=120, deadline=None)
def test_leaving_a_field_out_removes_it_only_if_it_has_no_other_owner(first: Any, second: Any, later: Any) -> None:
    live = apply(apply(None, first, "a"), second, "b")
    theirs = fields_of(live, "b")
    after = apply(live, later, "a")
    # Nothing that only b owned has gone.
    lost = difference(theirs, walker_of_type(ROOT).added({"spec": after["spec"]}))
    assert not list(members(intersection(lost, theirs))), list(map(path_text, members(lost)))


@given(specs, specs)
@settings(max_examples=120, deadline=None)
def test_without_force_a_conflict_changes_nothing_and_with_force_ownership_moves(first: Any, second: Any) -> None:
    live = apply(None, first, "a")
    try:
        calm = apply(live, second, "b", force=False)
    except Conflict as problem:
        assert problem.causes
        forced = apply(live, second, "b")
        for path in members(walker_of_type(ROOT).applied({"spec": second})):
            assert path in set(members(fields_of(forced, "b")))
        disputed = {cause["field"] for cause in problem.causes}
        left = {path_text(path) for path in members(fields_of(forced, "a"))}
        assert not disputed & left
    else:
        assert calm == apply(live, second, "b")


@given(specs, specs)
@settings(max_examples=120, deadline=None)
def test_owned_fields_exist(first: Any, second: Any) -> None:
    """Sets never name what the object does not have, whichever manager wrote last and how."""
    live = apply(None, first, "a")
    new = copy.deepcopy(live)
    new["spec"] = copy.deepcopy(second)
    TRACKER.updated(KIND, new, live, "u", "later", "")
    everything = walker_of_type(ROOT).added({"spec": new["spec"]})
    for entry in new["metadata"].get("managedFields", []):
        assert well_formed(entry["fieldsV1"])
        for path in members(entry["fieldsV1"]):
            assert path in set(members(everything)) or len(path) == 1, path_text(path)


@given(specs, specs)
@settings(max_examples=200, deadline=None)
def test_an_update_owns_exactly_what_it_changed(first: Any, second: Any) -> None:
    old = thing(first)
    TRACKER.created(KIND, old, "maker", "then")
    new = copy.deepcopy(old)
    new["spec"] = copy.deepcopy(second)
    changed, removed = TRACKER.differences(KIND, old, new, "")
    TRACKER.updated(KIND, new, old, "u", "later", "")
    assert set(members(fields_of(new, "u"))) == set(members(changed))
    gone = set(members(removed))
    for entry in new["metadata"].get("managedFields", []):
        assert not gone & set(members(entry["fieldsV1"]))


trees = st.recursive(
    st.just({}),
    lambda inner: st.dictionaries(st.sampled_from([".", "f:a", "f:b", "f:c"]), inner, max_size=3).map(
        lambda tree: {key: ({} if key == "." else node) for key, node in tree.items()}
    ),
    max_leaves=8,
).map(lambda tree: {key: node for key, node in tree.items() if key != "."})


@given(trees, trees, trees)
@settings(max_examples=120, deadline=None)
def test_algebra_of_field_sets(a: Any, b: Any, c: Any) -> None:
    def paths(tree: Any) -> set[tuple[str, ...]]:
        return set(members(tree))

    kept = copy.deepcopy((a, b, c))
    assert paths(union(a, b)) == paths(a) | paths(b)
    assert paths(difference(a, b)) == paths(a) - paths(b)
    assert paths(intersection(a, b)) == paths(a) & paths(b)
    assert paths(difference(union(a, c), b)) == (paths(a) | paths(c)) - paths(b)
    assert (a, b, c) == kept, "trees are values"


junk = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | word,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*SPEC.fields, "name", "value", "inner"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(junk, junk)
@settings(max_examples=150, deadline=None)
def test_any_configuration_on_any_object_gives_an_object_or_a_problem(live: Any, config: Any) -> None:
    try:
        result = APPLIER.apply(KIND, thing(live), thing(config), "a", "now", force=True)
        assert isinstance(result, dict)
    except ApiProblem as problem:
        assert problem.http_code in (400, 409, 422)
