"""Commands that look: get, describe, explain, api-resources, auth, events."""

from __future__ import annotations

import json

import pytest
import yaml

from support.manifests import pod

pytestmark = pytest.mark.kubectl


def test_get_prints_the_columns_people_know(kubectl) -> None:
    kubectl.apply(pod("a"))
    head, row = kubectl("get", "pods").splitlines()
    assert head.split() == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]
    assert row.split()[:4] == ["a", "0/1", "Pending", "0"]
    wide = kubectl("get", "po", "-o", "wide").splitlines()[0]
    assert "NODE" in wide and "NOMINATED NODE" in wide and "READINESS GATES" in wide


def test_get_in_every_output_format(kubectl) -> None:
    kubectl.apply(pod("a"))
    assert yaml.safe_load(kubectl("get", "pod", "a", "-o", "yaml"))["metadata"]["name"] == "a"
    assert json.loads(kubectl("get", "pods", "-o", "json"))["items"][0]["spec"]["containers"][0]["name"] == "main"
    assert kubectl("get", "pods", "-o", "name") == "pod/a\n"
    assert kubectl.value("pod", "a", ".spec.containers[0].image") == "busybox"
    assert kubectl("get", "pods", "-o", "custom-columns=N:.metadata.name").split() == ["N", "a"]
    assert kubectl("get", "pods", "--no-headers", "--sort-by=.metadata.name").split()[0] == "a"
    assert kubectl("get", "pods", "--show-labels").splitlines()[1].split()[-1] == "app=a"


def test_get_by_selector_and_in_chunks(kubectl) -> None:
    kubectl.apply(*(pod(name) for name in "abc"))
    assert kubectl("get", "pods", "-l", "app in (a,b)", "-o", "name").split() == ["pod/a", "pod/b"]
    assert kubectl("get", "pods", "--field-selector", "metadata.name=c", "-o", "name") == "pod/c\n"
    assert len(kubectl("get", "pods", "--chunk-size=1", "-o", "name").split()) == 3
    assert "field label not supported" in kubectl.fails("get", "pods", "--field-selector", "spec.colour=red")


def test_get_all_and_several_kinds_at_once(kubectl) -> None:
    kubectl.apply(pod("a"))
    kubectl("create", "secret", "generic", "c", "--from-literal=k=v")
    assert "pod/a" in kubectl("get", "all")
    assert kubectl("get", "pods,secrets", "-o", "name").split() == ["pod/a", "secret/c"]
    assert "No resources found" in kubectl.start("get", "deployments").stderr


def test_get_watch_shows_changes_as_they_come(kubectl) -> None:
    kubectl.apply(pod("a"))
    process = kubectl.popen("get", "pods", "-w", "--no-headers", "--show-labels")
    try:
        assert process.stdout is not None
        assert process.stdout.readline().split()[0] == "a"
        kubectl("label", "pod", "a", "seen=yes")
        assert process.stdout.readline().split()[-1] == "app=a,seen=yes"
        kubectl("delete", "pod", "a", "--wait=false")
        assert process.stdout.readline().split()[0] == "a"
    finally:
        process.kill()
        process.communicate()


def test_describe_shows_the_object_and_its_events(kubectl) -> None:
    kubectl.apply(pod("a", nodeName="elsewhere"))
    uid = kubectl.value("pod", "a", ".metadata.uid")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "a.1"},
        "involvedObject": {
            "kind": "Pod",
            "name": "a",
            "namespace": kubectl.namespace,
            "uid": uid,
            "apiVersion": "v1",
        },
        "type": "Warning",
        "reason": "Burnt",
        "message": "too hot",
        "source": {"component": "oven"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
    }
    kubectl("create", "-f", "-", input=json.dumps(event))
    text = kubectl("describe", "pod", "a")
    assert "Node:" in text and "elsewhere" in text and "too hot" in text
    assert "too hot" in kubectl("events", "--for", "pod/a")
    assert "Burnt" in kubectl("events", "--types=Warning")
    assert "Burnt" in kubectl("get", "events")
    assert "Burnt" in kubectl("get", "events.v1.events.k8s.io")


def test_describe_node_lists_its_pods(kubectl) -> None:
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"node-{kubectl.namespace}"},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}, "capacity": {"cpu": "4"}},
    }
    kubectl("create", "-f", "-", input=json.dumps(node))
    kubectl.apply(pod("a", "1", nodeName=f"node-{kubectl.namespace}"))
    text = kubectl("describe", "node", f"node-{kubectl.namespace}")
    assert "Non-terminated Pods:" in text and kubectl.namespace in text and "1 (25%)" in text


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("workload.spec.podGroupTemplates", "schedulingPolicy"),
        ("podgroup.spec", "schedulingPolicy"),
        ("pod.spec.containers.resources", "requests"),
        ("deployment.spec.strategy", "rollingUpdate"),
        ("jobset.spec", "replicatedJobs"),
    ],
)
def test_explain(kubectl, path: str, word: str) -> None:
    text = kubectl("explain", path)
    assert "DESCRIPTION:" in text and word in text


def test_explain_other_versions_and_recursively(kubectl) -> None:
    old = kubectl("explain", "workload.spec", "--api-version=scheduling.k8s.io/v1alpha1", "--recursive")
    assert "podGroups" in old and "minCount" in old
    assert "CompositePodGroup" in kubectl("explain", "compositepodgroup")


def test_api_resources_and_versions(kubectl) -> None:
    resources = kubectl("api-resources", "--sort-by=name")
    for name in ("workloads", "podgroups", "compositepodgroups", "jobsets", "leaderworkersets", "pods"):
        assert f"\n{name} " in "\n" + resources
    assert "scheduling.k8s.io/v1alpha1" in kubectl("api-versions").split()
    namespaced = kubectl("api-resources", "--namespaced=false", "-o", "name").split()
    assert "nodes" in namespaced and "pods" not in namespaced


def test_auth(kubectl) -> None:
    assert kubectl("auth", "can-i", "create", "pods").strip() == "yes"
    assert "*" in kubectl("auth", "can-i", "--list")
    assert "phalanx:admin" in kubectl("auth", "whoami")


def test_raw_and_version(kubectl) -> None:
    assert kubectl("get", "--raw", "/readyz") == "ok"
    assert "v1.37.0+phalanx" in kubectl("version")
    assert kubectl("cluster-info").startswith("Kubernetes control plane")


def test_logs_say_that_the_pod_is_simulated(kubectl) -> None:
    kubectl.apply(pod("a"))
    assert "simulated" in kubectl("logs", "a")
