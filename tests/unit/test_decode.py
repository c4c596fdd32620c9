"""Request bodies: good ones in any format, bad ones with a clear answer."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.base.errors import BadRequest, UnsupportedMediaType
from phalanx.model import tables
from phalanx.model.decode import MAX_DEPTH, conform, parse

POD = tables.record("core/v1.Pod")
JSON = "application/json"
YAML = "application/yaml"


def pod(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": spec}


def test_json_yaml_and_json_called_yaml_read_the_same() -> None:
    wanted = {"kind": "Pod", "spec": {"priority": 3, "nodeSelector": {"a": "b"}}}
    text = b"kind: Pod\nspec:\n  priority: 3\n  nodeSelector: {a: b}\n"
    assert parse(json.dumps(wanted).encode(), "application/json; charset=utf-8")[0] == wanted
    assert parse(text, YAML)[0] == wanted
    assert parse(json.dumps(wanted).encode(), "application/apply-patch+yaml")[0] == wanted


def test_yaml_keeps_dates_and_times_of_day_as_text_and_makes_keys_text() -> None:
    found, _ = parse(b"a: 2024-01-01\nb: 12:30\nc: 0x10\nd: 1e3\ne: 010\n8080: x\ntrue: y\nf: ~\n", YAML)
    assert found == {"a": "2024-01-01", "b": "12:30", "c": 16, "d": 1000.0, "e": 8, "8080": "x", "true": "y", "f": None}


def test_yaml_aliases_become_copies() -> None:
    found, _ = parse(b"a: &x {k: [1]}\nb: *x\n", YAML)
    found["a"]["k"].append(2)
    assert found["b"] == {"k": [1]}


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"", JSON, "is empty"),
        (b" ", YAML, "is empty"),
        (b"{", JSON, "error parsing JSON"),
        (b'{"a": NaN}', JSON, "error parsing JSON"),
        (b'{"a": 1e999}', JSON, "error parsing JSON"),
        (b'{"a": "\xff"}', JSON, "error parsing JSON"),
        (b'{"a": "\\ud800"}', JSON, "error parsing JSON"),
        (b"[1]", JSON, "must be an object, found an array"),
        (b"null", JSON, "must be an object, found null"),
        (b"a: [", YAML, "line 2"),
        (b"a: .nan", YAML, ".nan"),
        (b"a: -.inf", YAML, ".inf"),
        (b"a: 1\n---\nb: 2\n", YAML, "one document"),
        (b"a: !!python/object:os.system x", YAML, "error parsing YAML"),
        (b"a: !!set {b}", YAML, "!!set is not allowed"),
        (b"[a]: 1", YAML, "error parsing YAML"),
        (b"a: &x [*x]", YAML, "error parsing YAML"),
        (b"{" + b'"a":{' * 300 + b"}" * 301, JSON, "nested deeper"),
        (b'{"a":' + b"[" * 100_000, JSON, "nested deeper"),
        (b"a: " + b"[" * 100_000, YAML, "nested deeper"),
        (b"not protobuf", "application/vnd.kubernetes.protobuf", "does not start with"),
    ],
)
def test_broken_bodies_are_refused_with_a_reason(body: bytes, kind: str, words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse(body, kind, POD)
    assert words in refused.value.message


def test_an_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    with pytest.raises(BadRequest, match="aliases"):
        parse("\n".join(lines).encode(), YAML)


def test_depth_up_to_the_limit_is_read() -> None:
    body = b'{"a":' * (MAX_DEPTH - 1) + b"{}" + b"}" * (MAX_DEPTH - 1)
    assert parse(body, JSON)[0]


def test_unknown_media_types_are_named() -> None:
    with pytest.raises(UnsupportedMediaType, match="accepted media types include: application/json"):
        parse(b"{}", "text/html")


@pytest.mark.parametrize("kind", [JSON, YAML])
def test_repeated_fields_are_found_when_asked(kind: str) -> None:
    body = b'{"spec": {"a": 1, "a": 2, "list": [{"x": 1}, {"y": 1, "y": 1}]}, "kind": "Pod"}'
    found, repeated = parse(body, kind, duplicates=True)
    assert found["spec"]["a"] == 2
    assert repeated == ['duplicate field "spec.a"', 'duplicate field "spec.list[1].y"']
    assert parse(body, kind)[1] == []


def test_repeated_fields_in_yaml_blocks() -> None:
    assert parse(b"a:\n  b: 1\n  b: 2\n", YAML, duplicates=True)[1] == ['line 3: key "b" already set in map']


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([JSON, YAML, "application/vnd.kubernetes.protobuf"]))
def test_any_bytes_are_read_or_refused(body: bytes, kind: str) -> None:
    for prefix in (b"", b"k8s\0", b"{", b"a: "):
        try:
            found, _ = parse(prefix + body, kind, POD, duplicates=True)
        except BadRequest:
            continue
        assert isinstance(found, dict)


# conform


def test_a_good_object_passes_unchanged() -> None:
    obj = pod(containers=[{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}], priority=0)
    before = json.dumps(obj)
    assert conform(obj, POD) == []
    assert json.dumps(obj) == before


def test_nulls_zero_values_and_empty_records_go_as_go_clients_leave_them_out() -> None:
    obj = pod(
        hostNetwork=False, nodeName="", priority=0, volumes=[], nodeSelector={}, affinity={}, hostUsers=False,
        containers=[{"name": "c", "resources": {}, "env": None}],
    )  # fmt: skip
    obj["metadata"] |= {"creationTimestamp": None, "labels": {"a": "", "b": None}}
    obj["status"] = {}
    assert conform(obj, POD) == []
    assert obj == {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"a": "", "b": ""}},
        "spec": {"priority": 0, "affinity": {}, "hostUsers": False, "containers": [{"name": "c"}]},
    }  # fmt: skip


def test_an_applied_zero_is_kept_when_asked() -> None:
    obj = pod(hostNetwork=False, nodeName=None, volumes=[], containers=[{"name": "c", "resources": {}}])
    assert conform(obj, POD, zeros=True) == []
    assert obj["spec"] == {"hostNetwork": False, "volumes": [], "containers": [{"name": "c", "resources": {}}]}


def test_union_members_without_fields_stay() -> None:
    group = {"spec": {"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}}}
    assert conform(group, tables.record("scheduling/v1beta1.PodGroup")) == []
    assert group == {"spec": {"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}}}


def test_custom_kinds_keep_the_zeros_their_users_wrote() -> None:
    written = {"spec": {"replicatedJobs": [{"name": "a", "replicas": 0}], "failurePolicy": {"maxRestarts": 0}}}
    assert conform(written, tables.record("jobset/v1alpha2.JobSet")) == []
    assert written["spec"]["replicatedJobs"] == [{"name": "a", "replicas": 0}]
    assert written["spec"]["failurePolicy"] == {"maxRestarts": 0}


def test_quantities_and_times_get_their_canonical_notation() -> None:
    obj = pod(containers=[{"name": "c", "resources": {"limits": {"cpu": 0.5, "memory": "1024Mi", "gpu": 2, "x": 0}}}])
    obj["metadata"]["creationTimestamp"] = "2024-05-06T09:08:09.5+02:00"
    assert conform(obj, POD) == []
    limits = obj["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "500m", "memory": "1Gi", "gpu": "2", "x": "0"}
    assert obj["metadata"]["creationTimestamp"] == "2024-05-06T07:08:09Z"
    lease = {"spec": {"renewTime": "2024-05-06T07:08:09Z"}}
    assert conform(lease, tables.record("coordination/v1.Lease")) == []
    assert lease["spec"]["renewTime"] == "2024-05-06T07:08:09.000000Z"


def test_unknown_fields_are_named_and_pruned() -> None:
    obj = pod(containers=[{"name": "c"}, {"name": "d", "comand": []}], foo={"bar": 1})
    assert conform(obj, POD) == ['unknown field "spec.containers[1].comand"', 'unknown field "spec.foo"']
    assert obj["spec"] == {"containers": [{"name": "c"}, {"name": "d"}]}


def test_unknown_fields_can_be_left_in_place() -> None:
    obj = pod(foo=1)
    assert conform(obj, POD, prune=False) == ['unknown field "spec.foo"']
    assert obj["spec"] == {"foo": 1}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"priority": "x"}, "json: cannot unmarshal string into field spec.priority of type int32"),
        ({"priority": 2**31}, "json: cannot unmarshal number 2147483648 into field spec.priority of type int32"),
        ({"priority": 1.5}, "json: cannot unmarshal number 1.5 into field spec.priority of type int32"),
        ({"priority": True}, "json: cannot unmarshal bool into field spec.priority of type int32"),
        ({"hostNetwork": 0}, "json: cannot unmarshal number 0 into field spec.hostNetwork of type bool"),
        ({"nodeName": 0}, "json: cannot unmarshal number 0 into field spec.nodeName of type string"),
        ({"containers": {}}, "json: cannot unmarshal object into field spec.containers of type []Container"),
        ({"containers": ["a"]}, "json: cannot unmarshal string into field spec.containers[0] of type Container"),
        ({"nodeSelector": {"a": 1}}, "json: cannot unmarshal number 1 into field spec.nodeSelector.a of type string"),
        ({"nodeSelector": [1]}, "json: cannot unmarshal array into field spec.nodeSelector of type map[string]string"),
        ({"overhead": {"cpu": "x"}}, "spec.overhead.cpu: quantities must match"),
        ({"overhead": {"cpu": []}}, "cannot unmarshal array into field spec.overhead.cpu of type Quantity"),
    ],
)
def test_wrong_types_are_refused_with_the_full_path(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest) as refused:
        conform(pod(**spec), POD)
    assert refused.value.message.startswith('Pod in version "v1" cannot be handled as a Pod: ')
    assert words in refused.value.message


@pytest.mark.parametrize("text", ["", "yesterday", "2024-13-01T00:00:00Z", "2024-01-01", "2024-01-01T25:00:00Z"])
def test_times_must_be_times(text: str) -> None:
    with pytest.raises(BadRequest, match=r"metadata.creationTimestamp.* is not a valid RFC 3339 time"):
        conform({"metadata": {"creationTimestamp": text}}, POD)


def test_secret_data_must_be_base64() -> None:
    secret = tables.record("core/v1.Secret")
    assert conform({"data": {"a": "YWJj", "b": ""}}, secret) == []
    with pytest.raises(BadRequest, match=r"data\.a: .* is not a valid base64 text"):
        conform({"data": {"a": "%%%"}}, secret)


def test_ports_take_numbers_and_names() -> None:
    service = tables.record("core/v1.Service")
    obj = {"spec": {"ports": [{"port": 80, "targetPort": "http"}, {"port": 81, "targetPort": 0}]}}
    assert conform(obj, service) == []
    with pytest.raises(BadRequest, match="of type IntOrString"):
        conform({"spec": {"ports": [{"port": 80, "targetPort": 1.5}]}}, service)


_NAMES = st.sampled_from(
    ["metadata", "spec", "status", "name", "labels", "containers", "volumes", "resources", "requests", "cpu", "x",
     "creationTimestamp", "priority", "affinity", "ports", "hostNetwork", "env", "managedFields", "emptyDir"]
)  # fmt: skip
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(_NAMES, _VALUES, max_size=5))
def test_conforming_twice_changes_nothing_and_never_fails_otherwise(obj: dict[str, Any]) -> None:
    try:
        conform(obj, POD)
    except BadRequest:
        return
    once = json.dumps(obj)
    assert conform(obj, POD) == []
    assert json.dumps(obj) == once
    assert not any(math.isinf(value) for value in obj.values() if isinstance(value, float))


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(_NAMES, _VALUES, max_size=5))
def test_the_quick_and_the_careful_way_agree(obj: dict[str, Any]) -> None:
    careful = json.loads(json.dumps(obj)) | {"unknown": 1}  # anything odd takes the careful way
    try:
        conform(careful, POD)
    except BadRequest:
        with pytest.raises(BadRequest):
            conform(obj, POD)
        return
    conform(obj, POD)
    assert obj == careful
