"""Strategic merge patch: directives one by one, laws over generated lists, and nonsense."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.base.errors import ApiProblem
from phalanx.local.api.patch_strategic import strategic_patch
from phalanx.model import tables
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar

TEXT, NUMBER = Scalar("string"), Scalar("int32")
ITEM = Object("test.Item")
ITEM.fields = {
    "name": Field("name", TEXT),
    "value": Field("value", NUMBER),
    "tags": Field("tags", ListOf(TEXT, patch_merge=True)),
    "inner": Field("inner", ListOf(ITEM, patch_merge=True, patch_key="name")),
}
ROOT = Object(
    "test.Root",
    {
        "items": Field("items", ListOf(ITEM, patch_merge=True, patch_key="name")),
        "plain": Field("plain", ListOf(ITEM)),
        "tags": Field("tags", ListOf(TEXT, patch_merge=True)),
        "labels": Field("labels", MapOf(TEXT)),
        "union": Field("union", ITEM, retain_keys=True),
    },
)


def items(**values: int) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        pytest.param({"items": items(a=1, b=2)}, {"items": items(b=3)}, {"items": items(a=1, b=3)}, id="merge-by-key"),
        pytest.param({"items": items(a=1)}, {"items": items(b=2)}, {"items": items(b=2, a=1)}, id="new-items-first"),
        pytest.param(
            {"items": items(a=1, b=2, c=3)},
            {"items": items(d=4, b=5)},
            {"items": items(d=4, a=1, b=5, c=3)},
            id="new-items-and-merged-ones",
        ),
        pytest.param({"tags": ["a"]}, {"tags": ["b"]}, {"tags": ["b", "a"]}, id="new-values-first"),
        pytest.param({"plain": items(a=1)}, {"plain": items(b=2)}, {"plain": items(b=2)}, id="atomic-list"),
        pytest.param({"tags": ["a", "b"]}, {"tags": ["b", "c"]}, {"tags": ["a", "b", "c"]}, id="set"),
        pytest.param({"labels": {"a": "1", "b": "2"}}, {"labels": {"a": None}}, {"labels": {"b": "2"}}, id="null"),
        pytest.param(
            {"items": items(a=1, b=2)},
            {"items": [{"$patch": "delete", "name": "a"}]},
            {"items": items(b=2)},
            id="delete-item",
        ),
        pytest.param(
            {"items": items(a=1, b=2)},
            {"items": [{"$patch": "replace"}, *items(c=3)]},
            {"items": items(c=3)},
            id="replace-list",
        ),
        pytest.param(
            {"labels": {"a": "1"}},
            {"labels": {"$patch": "replace", "b": "2"}},
            {"labels": {"b": "2"}},
            id="replace-map",
        ),
        pytest.param({"labels": {"a": "1"}}, {"labels": {"$patch": "delete"}}, {"labels": {}}, id="delete-map"),
        pytest.param(
            {"union": {"name": "a", "value": 1}},
            {"union": {"$retainKeys": ["name"], "name": "b"}},
            {"union": {"name": "b"}},
            id="retain-keys",
        ),
        pytest.param(
            {"tags": ["a", "b", "c"]},
            {"$deleteFromPrimitiveList/tags": ["b"]},
            {"tags": ["a", "c"]},
            id="delete-from-primitive-list",
        ),
        pytest.param(
            {"items": items(a=1, b=2)},
            {"$setElementOrder/items": [{"name": "b"}, {"name": "a"}]},
            {"items": items(b=2, a=1)},
            id="order-only",
        ),
        pytest.param(
            {"items": items(a=1, x=9, b=2)},
            {"$setElementOrder/items": [{"name": "b"}, {"name": "c"}, {"name": "a"}], "items": items(c=3)},
            {"items": [*items(x=9), *items(b=2), *items(c=3), *items(a=1)]},
            id="order-with-server-only-item",
        ),
        pytest.param(
            {"tags": ["a", "b"]},
            {"$setElementOrder/tags": ["b", "c", "a"], "tags": ["c"]},
            {"tags": ["b", "c", "a"]},
            id="order-of-a-set",
        ),
        pytest.param(
            {"items": [{"name": "a", "inner": items(p=1, q=2)}]},
            {"items": [{"name": "a", "inner": [{"name": "q", "value": None}, {"$patch": "delete", "name": "p"}]}]},
            {"items": [{"name": "a", "inner": [{"name": "q"}]}]},
            id="nested",
        ),
        pytest.param({}, {"items": [{"$patch": "delete", "name": "a"}]}, {"items": []}, id="delete-from-nothing"),
        pytest.param({}, {"unknown": [1, {"a": None}]}, {"unknown": [1, {}]}, id="field-not-in-schema"),
    ],
)
def test_directives(target: Any, patch: Any, result: Any) -> None:
    assert strategic_patch(target, patch, ROOT) == result


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"items": [{"value": 1}]}, 422),  # no merge key
        ({"items": ["a"]}, 422),
        ({"items": [{"$patch": "delete"}]}, 422),
        ({"labels": {"$patch": "explode"}}, 400),
        ({"union": {"$retainKeys": ["name"], "value": 1}}, 400),
        ({"union": {"$retainKeys": "name"}}, 400),
        ({"$setElementOrder/items": [{"name": "a"}], "items": items(b=1)}, 400),
        ({"$setElementOrder/items": [{"name": "a"}, {"name": "b"}], "items": items(b=1, a=1)}, 400),
        ({"$setElementOrder/items": "a"}, 200),  # nothing there to order, and nothing asked
        ({"tags": [{}]}, 400),
        ({"$unknown/items": []}, 400),
        ([], 400),
    ],
)
def test_patches_that_make_no_sense(patch: Any, code: int) -> None:
    try:
        strategic_patch({"labels": {"a": "b"}}, patch, ROOT)
    except ApiProblem as problem:
        assert problem.http_code == code
    else:
        assert code == 200


def test_node_taints_are_replaced_and_pod_containers_merged() -> None:
    """What kubectl taint and kubectl set image rely on."""
    node = {"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}}
    patch = {"spec": {"taints": [{"key": "b", "effect": "NoSchedule"}]}}
    assert strategic_patch(node, patch, tables.record("core/v1.Node"))["spec"]["taints"][0]["key"] == "b"
    pod = {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}}
    patch = {"spec": {"containers": [{"name": "b", "image": "2"}]}}
    patched = strategic_patch(pod, patch, tables.record("core/v1.Pod"))
    assert patched["spec"]["containers"] == [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]


def test_long_lists_do_not_stop_the_server() -> None:
    many = [str(i) for i in range(50_000)]
    started = time.perf_counter()
    patch = {"tags": many[::2], "$setElementOrder/tags": many, "$deleteFromPrimitiveList/tags": many[1::2]}
    assert strategic_patch({"tags": list(reversed(many))}, patch, ROOT)["tags"] == many[::2]
    keyed_patch = {
        "items": [{"name": name, "value": 1} for name in many] + [{"$patch": "delete", "name": f"x{i}"} for i in many],
        "$setElementOrder/items": [{"name": name} for name in many],
    }
    assert len(strategic_patch({"items": [{"name": f"x{i}"} for i in many]}, keyed_patch, ROOT)["items"]) == 50_000
    assert time.perf_counter() - started < 20, "quadratic work would take minutes"


# -- laws ---------------------------------------------------------------------------------------------------------

names = st.text("abc", min_size=1, max_size=2)
keyed: st.SearchStrategy[list[dict[str, Any]]] = st.deferred(
    lambda: st.lists(
        st.fixed_dictionaries(
            {"name": names},
            optional={"value": st.integers(0, 3), "tags": st.lists(names, unique=True, max_size=3), "inner": keyed},
        ),
        unique_by=lambda item: item["name"],
        max_size=3,
    )
)
roots = st.fixed_dictionaries(
    {},
    optional={
        "items": keyed,
        "plain": keyed,
        "tags": st.lists(names, unique=True, max_size=4),
        "labels": st.dictionaries(names, names, max_size=3),
    },
)


def difference(old: dict[str, Any], new: dict[str, Any], schema: Object) -> dict[str, Any]:
    """What kubectl computes: the patch that turns `old` into `new`, with the order of every list spelled out."""
    patch: dict[str, Any] = {name: None for name in old if name not in new}
    for name, value in new.items():
        if name in old and old[name] == value:
            continue
        kind = schema.fields[name].type if name in schema.fields else None
        before = old.get(name)
        if isinstance(kind, ListOf) and kind.patch_merge and isinstance(before, list):
            patch["$setElementOrder/" + name] = (
                [{kind.patch_key: item[kind.patch_key]} for item in value] if kind.patch_key else list(value)
            )
            if not kind.patch_key:
                patch["$deleteFromPrimitiveList/" + name] = [item for item in before if item not in value]
                patch[name] = [item for item in value if item not in before]
                continue
            there = {item["name"]: item for item in before}
            assert isinstance(kind.item, Object)
            patch[name] = [
                {**difference(there.get(item["name"], {}), item, kind.item), "name": item["name"]} for item in value
            ]
            kept = {item["name"] for item in value}
            patch[name] += [{"$patch": "delete", "name": name_} for name_ in there if name_ not in kept]
        elif isinstance(value, dict) and isinstance(before, dict):
            patch[name] = {**{key: None for key in before if key not in value}, **value}
        else:
            patch[name] = copy.deepcopy(value)
    return patch


@given(roots, roots)
@settings(max_examples=120, deadline=None)
def test_a_difference_leads_to_the_target_and_is_idempotent(source: dict[str, Any], target: dict[str, Any]) -> None:
    patch = difference(source, target, ROOT)
    kept = copy.deepcopy(patch)
    once = strategic_patch(copy.deepcopy(source), patch, ROOT)
    assert once == target
    assert strategic_patch(copy.deepcopy(once), patch, ROOT) == target
    assert patch == kept, "the patch itself must not change"


@given(keyed, keyed, st.randoms(use_true_random=False))
def test_an_element_order_holds_and_server_only_items_keep_theirs(old: Any, new: Any, rng: Any) -> None:
    order = [item["name"] for item in new]
    rng.shuffle(order)
    patch = {"$setElementOrder/items": [{"name": name} for name in order]}
    result = [item["name"] for item in strategic_patch({"items": old}, patch, ROOT).get("items", [])]
    before = [item["name"] for item in old]
    assert sorted(result) == sorted(before)
    assert [name for name in result if name in order] == [name for name in order if name in before]
    assert [name for name in result if name not in order] == [name for name in before if name not in order]


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["a", "name", "delete", "replace", "merge"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *("name", "value", "inner", "items", "plain", "tags", "labels", "union", "$patch", "$retainKeys"),
                    *("$setElementOrder/items", "$setElementOrder/tags", "$deleteFromPrimitiveList/tags", "$x"),
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(junk.filter(lambda value: isinstance(value, dict)), junk)
@settings(max_examples=200, deadline=None)
def test_any_patch_on_any_object_gives_an_object_or_a_problem(target: Any, patch: Any) -> None:
    try:
        assert isinstance(strategic_patch(target, patch, ROOT), dict)
    except ApiProblem as problem:
        assert problem.http_code in (400, 422)
