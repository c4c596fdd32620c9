"""Selectors pick the objects that Kubernetes would pick."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.model import selectors
from phalanx.model.objects.meta import LabelSelector, LabelSelectorRequirement
from phalanx.model.objects.pod import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from phalanx.model.selectors import BadSelector


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True), ("a==b", {"a": "c"}, False), ("a=", {"a": ""}, True),
        ("a=,b", {"a": "", "b": "x"}, True),
        ("a!=b", {}, True), ("a!=b", {"a": "b"}, False),
        ("a", {"a": ""}, True), ("!a", {"a": ""}, False), ("! a", {}, True),
        ("a in (x, y)", {"a": "y"}, True), ("a in (x,y)", {}, False),
        ("a notin (x)", {}, True), ("a notin (x)", {"a": "x"}, False),
        ("a in ()", {"a": ""}, True), ("g notin ()", {"g": ""}, False), ("g notin ()", {"g": "v"}, True),
        ("k>1", {"k": "2"}, True), ("k>1", {"k": "1"}, False), ("k<1", {"k": "0"}, True),
        ("k<1", {"k": "x"}, False), ("k>1", {}, False),
        ("a=b,c!=d,e in (x,y),!f,g notin (),k>1", {"a": "b", "e": "x", "g": "v", "k": "7"}, True),
        ("in in (in)", {"in": "in"}, True), ("example.com/a=b", {"example.com/a": "b"}, True),
    ],
)  # fmt: skip
def test_label_query(text: str, labels: dict[str, str], matches: bool) -> None:
    assert selectors.parse_labels(text).matches(labels) is matches


@pytest.mark.parametrize(
    "text",
    [
        "a b",
        "a=b=c",
        ",a",
        "a,",
        "a in x",
        "a in (x",
        "a in (x y)",
        "=b",
        "!",
        "a>b",
        "a=b c",
        "-a=b",
        "a=-",
        "a/b/c",
        "a(b)",
        "a in",
    ],
)
def test_malformed_label_queries_say_so(text: str) -> None:
    with pytest.raises(BadSelector) as problem:
        selectors.parse_labels(text)
    assert str(problem.value)


key = st.sampled_from(["a", "b", "example.com/c"])
value = st.sampled_from(["", "x", "y", "1", "22"])
requirement = st.one_of(
    st.builds(lambda k, v: f"{k}={v}", key, value),
    st.builds(lambda k, v: f"{k}!={v}", key, value),
    st.builds(lambda k, vs: f"{k} in ({','.join(vs)})", key, st.lists(value, min_size=1, max_size=3)),
    st.builds(lambda k, vs: f"{k} notin ({','.join(vs)})", key, st.lists(value, min_size=1, max_size=3)),
    st.builds(lambda k, n: f"{k}>{n}", key, st.integers(0, 30)),
    key,
    key.map(lambda k: f"!{k}"),
)


@given(st.lists(requirement, max_size=4), st.dictionaries(key, value))
def test_a_printed_selector_selects_the_same(parts: list[str], labels: dict[str, str]) -> None:
    compiled = selectors.parse_labels(",".join(parts))
    assert selectors.parse_labels(str(compiled)).matches(labels) == compiled.matches(labels)
    assert compiled.matches(labels) == all(selectors.parse_labels(part).matches(labels) for part in parts)


def test_label_selector_objects_in_both_forms() -> None:
    as_json = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d"]}]}
    typed = LabelSelector(
        match_labels={"a": "b"},
        match_expressions=[LabelSelectorRequirement(key="c", operator="NotIn", values=["d"])],
    )
    for selector in (selectors.from_selector(as_json), selectors.from_selector(typed)):
        assert selector.matches({"a": "b"})
        assert not selector.matches({"a": "b", "c": "d"})
    assert not selectors.from_selector(None).matches({"a": "b"})
    assert selectors.from_selector({}).matches({})
    with pytest.raises(BadSelector, match="not a valid label selector operator"):
        selectors.from_selector({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]})


def test_node_terms_are_alternatives_of_conjunctions() -> None:
    terms = {
        "nodeSelectorTerms": [
            {
                "matchExpressions": [
                    {"key": "gpus", "operator": "Gt", "values": ["4"]},
                    {"key": "zone", "operator": "Exists"},
                ]
            },
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]},
            {},
        ]
    }
    matcher = selectors.node_selector(terms)
    assert matcher.matches({"gpus": "8", "zone": "a"}, "n2")
    assert not matcher.matches({"gpus": "8"}, "n2")
    assert matcher.matches({}, "n1")
    typed = NodeSelector([NodeSelectorTerm(match_expressions=[NodeSelectorRequirement("gpus", "Lt", ["4"])])])
    assert selectors.node_selector(typed).matches({"gpus": "3"})
    assert not selectors.node_selector({"nodeSelectorTerms": [{}]}).matches({}, "n1")


def test_field_selectors() -> None:
    fields = {"spec.nodeName": "n1", "status.phase": "Running", "metadata.name": "a,b=c"}
    value_of = fields.__getitem__
    assert selectors.parse_fields("spec.nodeName=n1,status.phase!=Pending").matches(value_of)
    assert not selectors.parse_fields("spec.nodeName==n2").matches(value_of)
    assert selectors.parse_fields(r"metadata.name=a\,b\=c").matches(value_of)
    assert selectors.parse_fields(r"metadata.name=a\,b\=c").exact("metadata.name") == "a,b=c"
    assert selectors.parse_fields("").matches(value_of)
    assert selectors.parse_fields("spec.nodeName!=n1").exact("spec.nodeName") is None
    for text in ("spec.nodeName", "a=b=c", r"a=\x"):
        with pytest.raises(BadSelector):
            selectors.parse_fields(text)


@given(st.text())
def test_any_value_can_be_escaped(value: str) -> None:
    escaped = value.replace("\\", "\\\\").replace(",", "\\,").replace("=", "\\=")
    assert selectors.parse_fields("f=" + escaped).exact("f") == value
