"""LimitRanges fill in and refuse; ResourceQuotas count, refuse and say in their status what is used."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from support.local_cluster import LocalCluster

Json = dict[str, Any]


class Space:
    """One namespace."""

    def __init__(self, cluster: LocalCluster, name: str) -> None:
        self.cluster, self.name, self.base = cluster, name, f"/api/v1/namespaces/{name}"

    def quota(self, hard: Json, name: str = "q", **spec: Any) -> None:
        self.cluster.create(f"{self.base}/resourcequotas", {"metadata": {"name": name}, "spec": {"hard": hard, **spec}})

    def limits(self, **item: Any) -> Any:
        body = {"metadata": {"name": "limits"}, "spec": {"limits": [{"type": "Container", **item}]}}
        return self.cluster.ask("POST", f"{self.base}/limitranges", body)

    def pod(self, name: str, requests: Json | None = None, limits: Json | None = None, **spec: Any) -> Any:
        resources: Json = {}
        if requests:
            resources["requests"] = requests
        if limits:
            resources["limits"] = limits
        container = {"name": "c", "image": "i", "resources": resources}
        body = {"metadata": {"name": name}, "spec": {"containers": [container], **spec}}
        return self.cluster.ask("POST", f"{self.base}/pods", body)

    def used(self, expected: Json, name: str = "q") -> None:
        path = f"{self.base}/resourcequotas/{name}"
        self.cluster.wait(path, lambda quota: (quota.get("status") or {}).get("used") == expected)


@pytest.fixture
def space(server: LocalCluster, namespace: str) -> Space:
    return Space(server, namespace)


# -- quotas ------------------------------------------------------------------------------------------------------------


def test_pods_are_counted_refused_and_given_back(space: Space) -> None:
    space.quota({"pods": "2", "requests.cpu": "1", "limits.memory": "1Gi"})
    space.used({"pods": "0", "requests.cpu": "0", "limits.memory": "0"})
    asked = {"requests": {"cpu": "300m"}, "limits": {"memory": "512Mi"}}
    assert space.pod("a", **asked).code == 201
    space.used({"pods": "1", "requests.cpu": "300m", "limits.memory": "512Mi"})
    refused = space.pod("big", {"cpu": "800m"}, {"memory": "1Mi"})
    assert refused.code == 403 and refused.json["message"] == (
        'pods "big" is forbidden: exceeded quota: q, requested: requests.cpu=800m, used: requests.cpu=300m, '
        "limited: requests.cpu=1"
    )
    assert space.pod("b", **asked).code == 201
    refused = space.pod("c", **asked)
    assert "exceeded quota: q, requested: limits.memory=" in refused.json["message"]
    assert "pods=1" in refused.json["message"] and "used: " in refused.json["message"]
    space.cluster.delete(f"{space.base}/pods/a")
    space.used({"pods": "1", "requests.cpu": "300m", "limits.memory": "512Mi"})
    assert space.pod("c", **asked).code == 201


def test_what_is_limited_must_be_said(space: Space) -> None:
    space.quota({"requests.cpu": "1", "limits.cpu": "2"})
    refused = space.pod("silent")
    assert refused.json["message"] == (
        'pods "silent" is forbidden: failed quota: q: must specify limits.cpu for: c; requests.cpu for: c'
    )


def test_what_a_pod_asks_for_as_a_whole_counts_in_place_of_its_containers(space: Space) -> None:
    space.quota({"requests.cpu": "3", "limits.memory": "2Gi"})
    space.used({"requests.cpu": "0", "limits.memory": "0"})
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
    spec = {
        "containers": [container, {"name": "d", "image": "i"}],
        "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2", "memory": "1Gi"}},
    }
    pods = f"{space.base}/pods"
    made = space.cluster.ask("POST", pods, {"metadata": {"name": "a"}, "spec": spec})
    assert made.code == 201, made.body
    space.used({"requests.cpu": "2", "limits.memory": "1Gi"})
    refused = space.cluster.ask("POST", pods, {"metadata": {"name": "b"}, "spec": spec})
    assert refused.code == 403
    assert "requested: requests.cpu=2, used: requests.cpu=2, limited: requests.cpu=3" in refused.json["message"]


def test_a_pod_that_ended_takes_nothing_but_its_place_in_the_count(space: Space) -> None:
    space.quota({"pods": "1", "count/pods": "2"})
    assert space.pod("a").code == 201
    assert space.pod("b").code == 403
    space.cluster.patch(f"{space.base}/pods/a/status", {"status": {"phase": "Succeeded"}})
    space.used({"pods": "0", "count/pods": "1"})
    assert space.pod("b").code == 201
    assert space.pod("c").code == 403


def test_pod_groups_and_any_other_kind_can_be_counted(space: Space) -> None:
    space.quota({"count/podgroups.scheduling.k8s.io": "1", "configmaps": "1"})
    groups = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{space.name}/podgroups"

    def group(name: str) -> Any:
        body = {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}
        return space.cluster.ask("POST", groups, body)

    assert group("a").code == 201
    refused = group("b")
    assert refused.json["message"] == (
        'podgroups.scheduling.k8s.io "b" is forbidden: exceeded quota: q, requested: '
        "count/podgroups.scheduling.k8s.io=1, used: count/podgroups.scheduling.k8s.io=1, "
        "limited: count/podgroups.scheduling.k8s.io=1"
    )


def test_what_was_there_before_the_quota_counts(space: Space) -> None:
    for name in "abc":
        assert space.pod(name).code == 201
    space.quota({"pods": "3"})
    space.used({"pods": "3"})
    assert space.pod("d").code == 403
    space.cluster.patch(f"{space.base}/resourcequotas/q", {"spec": {"hard": {"pods": "4"}}})
    assert space.pod("d").code == 201
    space.cluster.delete(f"{space.base}/resourcequotas/q")
    assert space.pod("e").code == 201


def test_the_last_place_is_given_once(space: Space) -> None:
    space.quota({"pods": "3"})
    codes: list[int] = []
    threads = [threading.Thread(target=lambda n=n: codes.append(space.pod(f"p{n}").code)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(codes) == [201] * 3 + [403] * 9
    space.used({"pods": "3"})


def test_a_write_that_failed_is_not_counted(space: Space) -> None:
    space.quota({"pods": "2"})
    assert space.pod("a").code == 201
    assert space.pod("a").code == 409
    space.used({"pods": "1"})


def test_scopes_choose_pods(space: Space) -> None:
    space.quota({"pods": "0"}, "brief", scopes=["Terminating"])
    space.quota({"pods": "0"}, "idle", scopes=["BestEffort"])
    assert space.pod("a", {"cpu": "1"}).code == 201
    assert "exceeded quota: brief" in space.pod("b", {"cpu": "1"}, activeDeadlineSeconds=60).json["message"]
    assert "exceeded quota: idle" in space.pod("c").json["message"]


def test_a_quota_may_be_about_pods_that_look_into_other_namespaces(space: Space) -> None:
    rule = {"scopeName": "CrossNamespacePodAffinity", "operator": "Exists"}
    space.quota({"pods": "0"}, scopeSelector={"matchExpressions": [rule]})
    term = {"labelSelector": {"matchLabels": {"a": "b"}}, "topologyKey": "kubernetes.io/hostname"}
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    assert space.pod("near", affinity={"podAffinity": {required: [term]}}).code == 201
    far = {"podAntiAffinity": {required: [{**term, "namespaces": ["other"]}]}}
    assert "exceeded quota: q" in space.pod("far", affinity=far).json["message"]


def test_a_quota_may_be_about_claims_of_a_volume_attributes_class(space: Space) -> None:
    rule = {"scopeName": "VolumeAttributesClass", "operator": "In", "values": ["gold"]}
    space.quota({"persistentvolumeclaims": "1"}, scopeSelector={"matchExpressions": [rule]})

    def claim(name: str, attributes: str) -> int:
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        body = {"metadata": {"name": name}, "spec": {**spec, "volumeAttributesClassName": attributes}}
        return space.cluster.ask("POST", f"{space.base}/persistentvolumeclaims", body).code

    assert [claim("a", "gold"), claim("b", "gold"), claim("c", "silver")] == [201, 403, 201]
    space.used({"persistentvolumeclaims": "1"})


def test_devices_that_claims_ask_for_are_counted_by_class(space: Space) -> None:
    gold = "gold.deviceclass.resource.k8s.io/devices"
    space.quota({gold: "3", "count/resourceclaims.resource.k8s.io": "5"})

    def claim(name: str, **request: Any) -> int:
        body = {"metadata": {"name": name}, "spec": {"devices": {"requests": [{"name": "r", **request}]}}}
        return space.cluster.ask("POST", f"/apis/resource.k8s.io/v1/namespaces/{space.name}/resourceclaims", body).code

    exactly = {"deviceClassName": "gold", "count": 2}
    assert [claim("a", exactly=exactly), claim("b", exactly=exactly)] == [201, 403]
    either = [{"name": "x", **exactly}, {"name": "y", "deviceClassName": "silver"}]
    assert claim("c", firstAvailable=either) == 403
    assert claim("d", exactly={"deviceClassName": "silver", "allocationMode": "All"}) == 201
    space.used({gold: "2", "count/resourceclaims.resource.k8s.io": "2"})


def test_services_and_claims(space: Space) -> None:
    space.quota({"services.nodeports": "1", "requests.storage": "1Gi"})
    spec = {"type": "NodePort", "ports": [{"name": "a", "port": 1}, {"name": "b", "port": 2}]}
    services = f"{space.base}/services"
    assert space.cluster.ask("POST", services, {"metadata": {"name": "two"}, "spec": spec}).code == 403
    one = {"type": "ClusterIP", "ports": spec["ports"]}
    space.cluster.create(services, {"metadata": {"name": "two"}, "spec": one})
    change = {"content_type": "application/merge-patch+json"}
    assert space.cluster.ask("PATCH", f"{services}/two", {"spec": {"type": "NodePort"}}, **change).code == 403
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}}
    refused = space.cluster.ask(
        "POST", f"{space.base}/persistentvolumeclaims", {"metadata": {"name": "c"}, "spec": claim}
    )
    assert refused.code == 403 and "requested: requests.storage=2" in refused.json["message"]


# -- limit ranges ------------------------------------------------------------------------------------------------------


def test_containers_get_what_they_do_not_say(space: Space) -> None:
    space.limits(default={"cpu": "500m", "memory": "1Gi"}, defaultRequest={"cpu": "100m"})
    pod = space.pod("a").json
    assert pod["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "500m", "memory": "1Gi"},
        "requests": {"cpu": "100m", "memory": "1Gi"},
    }
    announced = pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"]
    assert announced.startswith("LimitRanger plugin set: cpu, memory limit for container c")
    assert pod["status"]["qosClass"] == "Burstable"
    pod = space.pod("b", {"cpu": "200m"}, {"cpu": "300m"}).json
    assert pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] == "200m"
    assert pod["spec"]["containers"][0]["resources"]["limits"]["cpu"] == "300m"


def test_too_little_and_too_much_are_refused(space: Space) -> None:
    space.limits(min={"cpu": "100m"}, max={"cpu": "1"}, maxLimitRequestRatio={"cpu": "4"})
    assert space.pod("fine", {"cpu": "500m"}, {"cpu": "1"}).code == 201
    assert space.pod("small", {"cpu": "50m"}, {"cpu": "150m"}).json["message"] == (
        'pods "small" is forbidden: minimum cpu usage per Container is 100m, but request is 50m'
    )
    assert (
        "maximum cpu usage per Container is 1, but limit is 2"
        in space.pod("big", {"cpu": "1"}, {"cpu": "2"}).json["message"]
    )
    assert (
        "max limit to request ratio per Container is 4"
        in space.pod("wide", {"cpu": "100m"}, {"cpu": "1"}).json["message"]
    )


def test_a_limit_range_that_contradicts_itself_is_refused(space: Space) -> None:
    refused = space.limits(min={"cpu": "2"}, max={"cpu": "1"})
    assert refused.code == 422 and "min value 2 is greater than max value 1" in refused.json["message"]
    assert space.limits(type="Node").code == 422


def test_whole_pods_and_claims_have_limits_too(space: Space) -> None:
    items = [
        {"type": "Pod", "max": {"memory": "1Gi"}},
        {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}},
    ]
    space.cluster.create(f"{space.base}/limitranges", {"metadata": {"name": "l"}, "spec": {"limits": items}})
    container = {"image": "i", "resources": {"limits": {"memory": "600Mi"}}}
    spec = {"containers": [{**container, "name": "a"}, {**container, "name": "b"}]}
    refused = space.cluster.ask("POST", f"{space.base}/pods", {"metadata": {"name": "p"}, "spec": spec})
    assert "maximum memory usage per Pod is 1Gi, but limit is" in refused.json["message"]
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}}
    refused = space.cluster.ask(
        "POST", f"{space.base}/persistentvolumeclaims", {"metadata": {"name": "c"}, "spec": claim}
    )
    assert "minimum storage usage per PersistentVolumeClaim is 1Gi, but request is" in refused.json["message"]


def test_objects_that_go_with_their_definition_are_given_back(space: Space) -> None:
    group = f"{space.name}.example.com"
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
    names = {"plural": "things", "kind": "Thing"}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    space.cluster.create(definitions, {"metadata": {"name": f"things.{group}"}, "spec": spec})
    space.quota({f"count/things.{group}": "1"})
    things = f"/apis/{group}/v1/namespaces/{space.name}/things"
    thing = {"apiVersion": f"{group}/v1", "kind": "Thing", "metadata": {"name": "a"}}
    space.cluster.create(things, thing)
    space.used({f"count/things.{group}": "1"})
    assert space.cluster.ask("POST", things, {**thing, "metadata": {"name": "b"}}).code == 403
    space.cluster.delete(f"{definitions}/things.{group}")
    space.used({f"count/things.{group}": "0"})
