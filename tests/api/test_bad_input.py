"""Bad input over the wire: a Status that says what is wrong, and the next client is served as if nothing had been."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.local_cluster import LocalCluster

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fine"}}
JSON, YAML = "application/json", "application/yaml"
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def with_(**changes: Any) -> bytes:
    return json.dumps(CONFIG_MAP | changes).encode()


@pytest.mark.parametrize(
    ("body", "content", "code", "words"),
    [
        (b"", JSON, 400, ""),
        (b"{", JSON, 400, ""),
        (b"null", JSON, 400, ""),
        (b"[]", JSON, 400, ""),
        (b"\xff\xfe\x00", JSON, 400, ""),
        (with_()[:-1] + b",}", JSON, 400, ""),
        (b"[" * 200_000, JSON, 400, ""),
        (b'{"data":' * 50_000 + b"1" + b"}" * 50_000, JSON, 400, "nest"),
        (b"a: [", YAML, 400, ""),
        (b"- a\n- b\n", YAML, 400, ""),
        (BOMB.encode(), YAML, 400, ""),
        (b"&a [*a]", YAML, 400, ""),
        (with_(apiVersion="v9"), JSON, 400, "v9"),
        (with_(kind="Pod"), JSON, 400, "Pod"),
        (with_(data="text"), JSON, 400, "data"),
        (with_(data={"a": 1}), JSON, 400, "data"),
        (with_(metadata=[]), JSON, 400, "metadata"),
        (with_(metadata={"name": "Not A Name"}), JSON, 422, "Not A Name"),
        (with_(metadata={"name": "x" * 300}), JSON, 422, "253"),
        (with_(metadata={"name": "../../nodes"}), JSON, 422, "metadata.name"),
        (with_(metadata={"name": "fine", "labels": {"-": "x"}}), JSON, 422, "labels"),
        (with_(unheard="of"), JSON, 400, 'unknown field "unheard"'),
        (with_(), "application/x-unheard-of", 415, ""),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes | str) else str(value),
)
def test_a_bad_body_gets_a_status(
    server: LocalCluster, namespace: str, body: bytes, content: str, code: int, words: str
) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    reply = server.ask("POST", path, body, content_type=content, fieldValidation="Strict")
    assert reply.code == code, reply.body[:500]
    status = reply.json
    assert status["kind"] == "Status" and status["status"] == "Failure" and status["code"] == code
    assert words.lower() in status["message"].lower() and len(status["message"]) < 2000
    assert server.ask("GET", f"{path}/fine").code == 404
    server.create(path, {"metadata": {"name": "next"}})


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/api/v9/pods", 404),
        ("/apis/apps/v1beta9/deployments", 404),
        ("/apis/unheard.of/v1/things", 404),
        ("/apis/scheduling.k8s.io/v1alpha9/workloads", 404),
    ],
)
def test_an_unknown_version_is_not_found(server: LocalCluster, path: str, code: int) -> None:
    reply = server.ask("GET", path)
    assert reply.code == code and reply.json["reason"] == "NotFound"


def test_a_stale_revision_is_a_conflict_and_changes_nothing(server: LocalCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    old = server.create(path, CONFIG_MAP | {"data": {"a": "1"}})
    server.patch(f"{path}/fine", {"data": {"a": "2"}})
    reply = server.ask("PUT", f"{path}/fine", old | {"data": {"a": "3"}})
    assert reply.code == 409 and reply.json["reason"] == "Conflict"
    assert server.get(f"{path}/fine")["data"] == {"a": "2"}
