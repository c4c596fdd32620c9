"""What the service account of a pod adds to it: the volume that programs look for, pull secrets, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.base.errors import Forbidden
from support.api_world import PODS, World
from support.manifests import pod

ACCOUNTS = "/api/v1/namespaces/ns/serviceaccounts"
PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


def account(world: World, name: str, **fields: Any) -> None:
    world.create(ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}, **fields})


def mounts(container: Any) -> list[Any]:
    return [mount for mount in container.get("volumeMounts") or () if mount["mountPath"] == PATH]


def test_every_container_finds_the_token_where_programs_look_for_it(world: World) -> None:
    one = {"name": "one", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    spec = world.create(
        PODS,
        pod(
            "p",
            containers=[one, {"name": "two", "image": "i"}],
            initContainers=[{"name": "first", "image": "i"}],
            volumes=[{"name": "data", "emptyDir": {}}],
        ),
    )["spec"]
    assert spec["volumes"][0]["name"] == "data"
    volume = spec["volumes"][1]
    name = volume["name"]
    assert name.startswith("kube-api-access-") and len(name) == len("kube-api-access-") + 5
    assert volume["projected"] == {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {
                "downwardAPI": {
                    "items": [
                        {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
                    ]
                }
            },
        ],
        "defaultMode": 420,
    }
    mount = {"name": name, "readOnly": True, "mountPath": PATH}
    for container in spec["containers"] + spec["initContainers"]:
        assert container["volumeMounts"][-1] == mount
    assert spec["containers"][0]["volumeMounts"][0] == {"name": "data", "mountPath": "/data"}


def test_equal_pods_stay_equal(world: World) -> None:
    """A program that groups pods by what they are must not see a thousand kinds of them."""
    first, second = (world.create(PODS, pod(name))["spec"] for name in ("p", "q"))
    assert first == second and first["serviceAccountName"] == first["serviceAccount"] == "default"


@pytest.mark.parametrize(("of_account", "of_pod", "mounted"), [
    (None, None, True), (False, None, False), (False, True, True), (True, False, False), (None, False, False),
])  # fmt: skip
def test_the_pod_has_the_last_word_on_mounting(
    world: World, of_account: bool | None, of_pod: bool | None, mounted: bool
) -> None:
    account(world, "robot", **({} if of_account is None else {"automountServiceAccountToken": of_account}))
    requested = {} if of_pod is None else {"automountServiceAccountToken": of_pod}
    spec = world.create(PODS, pod("p", serviceAccountName="robot", **requested))["spec"]
    assert bool(spec.get("volumes")) is mounted
    assert bool(mounts(spec["containers"][0])) is mounted


def test_what_a_pod_mounts_there_itself_is_left_alone(world: World) -> None:
    own = {"name": "mine", "mountPath": PATH}
    volumes = [{"name": "mine", "emptyDir": {}}]
    containers = [{"name": "main", "image": "i", "volumeMounts": [own]}]
    spec = world.create(PODS, pod("p", containers=containers, volumes=volumes))["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["mine"]
    assert spec["containers"][0]["volumeMounts"] == [own]
    # A pod that was copied from another cluster brings the volume along.
    volumes = [{"name": "kube-api-access-abcde", "emptyDir": {}}]
    spec = world.create(PODS, pod("q", volumes=volumes))["spec"]
    assert len(spec["volumes"]) == 1
    assert mounts(spec["containers"][0])[0]["name"] == "kube-api-access-abcde"


def test_pull_secrets_come_from_the_account(world: World) -> None:
    account(world, "robot", imagePullSecrets=[{"name": "registry"}])
    spec = world.create(PODS, pod("p", serviceAccountName="robot"))["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    spec = world.create(PODS, pod("q", serviceAccountName="robot", imagePullSecrets=[{"name": "own"}]))["spec"]
    assert spec["imagePullSecrets"] == [{"name": "own"}]
    world.patch(f"{ACCOUNTS}/robot", {"imagePullSecrets": [{"name": "newer"}]})
    spec = world.create(PODS, pod("r", serviceAccountName="robot"))["spec"]
    assert spec["imagePullSecrets"] == [{"name": "newer"}]


def test_a_pod_of_an_account_that_does_not_exist_is_refused(world: World) -> None:
    with pytest.raises(Forbidden) as caught:
        world.create(PODS, pod("p", serviceAccountName="robot"))
    assert caught.value.message == (
        'pods "p" is forbidden: error looking up service account ns/robot: serviceaccount "robot" not found'
    )
    account(world, "robot")
    assert world.create(PODS, pod("p", serviceAccountName="robot"))["spec"]["serviceAccount"] == "robot"
    world.delete(f"{ACCOUNTS}/robot")
    with pytest.raises(Forbidden):
        world.create(PODS, pod("q", serviceAccountName="robot"))


def test_mirror_pods_have_no_account(world: World) -> None:
    mirror = pod("p")
    mirror["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "hash"}
    mirror["spec"]["nodeName"] = "n"
    spec = world.create(PODS, mirror)["spec"]
    assert "serviceAccountName" not in spec and "volumes" not in spec
    mirror["metadata"]["name"] = "q"
    mirror["spec"]["serviceAccountName"] = "default"
    with pytest.raises(Forbidden, match="a mirror pod may not reference service accounts"):
        world.create(PODS, mirror)
