"""JSON patch and JSON merge patch: the examples of their RFCs, laws, and nonsense that must be refused politely."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.base.errors import ApiProblem, RequestEntityTooLarge
from phalanx.local.api.patch_json import MAX_OPERATIONS, json_patch, merge_patch

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab/~0", max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab/~01-", max_size=2), inner, max_size=3),
    max_leaves=12,
)


def op(verb: str, path: str, **rest: Any) -> dict[str, Any]:
    return {"op": verb, "path": path, **{key.rstrip("_"): value for key, value in rest.items()}}


# Appendix A of RFC 6902: (document, patch, result); None where the patch must not apply.
RFC_6902 = [
    ({"foo": "bar"}, [op("add", "/baz", value="qux")], {"baz": "qux", "foo": "bar"}),
    ({"foo": ["bar", "baz"]}, [op("add", "/foo/1", value="qux")], {"foo": ["bar", "qux", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, [op("remove", "/baz")], {"foo": "bar"}),
    ({"foo": ["bar", "qux", "baz"]}, [op("remove", "/foo/1")], {"foo": ["bar", "baz"]}),
    ({"baz": "qux", "foo": "bar"}, [op("replace", "/baz", value="boo")], {"baz": "boo", "foo": "bar"}),
    (
        {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
        [op("move", "/qux/thud", from_="/foo/waldo")],
        {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
    ),
    (
        {"foo": ["all", "grass", "cows", "eat"]},
        [op("move", "/foo/3", from_="/foo/1")],
        {"foo": ["all", "cows", "eat", "grass"]},
    ),
    (
        {"baz": "qux", "foo": ["a", 2, "c"]},
        [op("test", "/baz", value="qux"), op("test", "/foo/1", value=2)],
        {"baz": "qux", "foo": ["a", 2, "c"]},
    ),
    ({"baz": "qux"}, [op("test", "/baz", value="bar")], None),
    (
        {"foo": "bar"},
        [op("add", "/child", value={"grandchild": {}})],
        {"foo": "bar", "child": {"grandchild": {}}},
    ),
    ({"foo": "bar"}, [op("add", "/baz", value="qux", xyz=123)], {"foo": "bar", "baz": "qux"}),
    ({"foo": "bar"}, [op("add", "/baz/bat", value="qux")], None),
    ({"/": 9, "~1": 10}, [op("test", "/~01", value=10)], {"/": 9, "~1": 10}),
    ({"/": 9, "~1": 10}, [op("test", "/~01", value="10")], None),
    ({"foo": ["bar"]}, [op("add", "/foo/-", value=["abc", "def"])], {"foo": ["bar", ["abc", "def"]]}),
]


@pytest.mark.parametrize(("document", "patch", "result"), RFC_6902)
def test_examples_of_rfc_6902(document: Any, patch: Any, result: Any) -> None:
    if result is None:
        with pytest.raises(ApiProblem) as caught:
            json_patch(document, patch)
        assert caught.value.http_code == 422
    else:
        assert json_patch(document, patch) == result


@pytest.mark.parametrize(
    ("document", "patch", "code"),
    [
        ({"a": [1]}, [op("add", "/a/2", value=1)], 422),  # beyond the end
        ({"a": [1]}, [op("add", "/a/01", value=1)], 422),  # leading zero
        ({"a": [1]}, [op("remove", "/a/-")], 422),
        ({"a": 1}, [op("replace", "/b", value=1)], 422),
        ({"a": 1}, [op("remove", "/b")], 422),
        ({"a": {"b": 1}}, [op("move", "/a/b/c", from_="/a")], 422),  # into itself
        ({"a": 1}, [op("add", "a", value=1)], 422),  # no leading slash
        ({"a": 1}, [op("add", "/~2", value=1)], 422),
        ({"a": 1}, [op("add", "/b")], 422),  # no value
        ({"a": True}, [op("test", "/a", value=1)], 422),  # true is not 1
        ({}, [op("frobnicate", "/a")], 400),
        ({}, [{"op": "add", "value": 1}], 400),
        ({}, ["add"], 400),
        ({}, {"op": "add"}, 400),
    ],
)
def test_what_does_not_apply_is_refused(document: Any, patch: Any, code: int) -> None:
    with pytest.raises(ApiProblem) as caught:
        json_patch(document, patch)
    assert caught.value.http_code == code


def test_a_patch_has_a_limited_number_of_operations() -> None:
    with pytest.raises(RequestEntityTooLarge, match="10000"):
        json_patch({}, [op("add", "/a", value=1)] * (MAX_OPERATIONS + 1))


def test_copies_cannot_blow_up_the_server() -> None:
    doubling = [op("copy", "/a/x", from_="/a"), op("copy", "/a/y", from_="/a")] * 40
    with pytest.raises(RequestEntityTooLarge):
        json_patch({"a": {}}, doubling)


operations = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]) | scalars,
        "path": st.sampled_from(["", "/", "/a", "/a/0", "/a/-", "/b/a", "~"]) | scalars,
        "from": st.sampled_from(["", "/a", "/b/0"]),
        "value": values,
    },
)


@given(values, st.lists(operations | values, max_size=4) | values)
@settings(max_examples=120, deadline=None)
def test_any_patch_on_any_document_gives_a_document_or_a_problem(document: Any, patch: Any) -> None:
    kept = copy.deepcopy(patch)
    try:
        json_patch(document, patch)
    except ApiProblem as problem:
        assert problem.http_code in (400, 413, 422)
    assert patch == kept, "the patch itself must not change"


# Appendix A of RFC 7386.
RFC_7386 = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"a": "foo"}, "bar", "bar"),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("document", "patch", "result"), RFC_7386)
def test_examples_of_rfc_7386(document: Any, patch: Any, result: Any) -> None:
    assert merge_patch(document, patch) == result


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


def merge_diff(source: Any, target: Any) -> Any:
    """A patch that turns `source` into `target`; exact as long as `target` holds no null inside its objects."""
    if not (isinstance(source, dict) and isinstance(target, dict)):
        return copy.deepcopy(target)
    patch: dict[str, Any] = {key: None for key in source if key not in target}
    for key, value in target.items():
        if key not in source:
            patch[key] = copy.deepcopy(value)
        elif source[key] != value or type(source[key]) is not type(value):
            patch[key] = merge_diff(source[key], value)
    return patch


@given(values.map(without_nulls), values.map(without_nulls))
def test_a_merge_difference_leads_to_the_target(source: Any, target: Any) -> None:
    assert merge_patch(copy.deepcopy(source), merge_diff(source, target)) == target


@given(values, values)
def test_a_merge_patch_twice_is_a_merge_patch_once(document: Any, patch: Any) -> None:
    once = merge_patch(copy.deepcopy(document), patch)
    assert merge_patch(copy.deepcopy(once), patch) == once
