"""Commands that change things."""

from __future__ import annotations

import json

import pytest
import yaml

from support.manifests import apps_set, container, pod, template

pytestmark = pytest.mark.kubectl


def two_containers(name: str, replicas: int = 1, **labels: str) -> dict[str, object]:
    pods = template(app=name, containers=[container(), container() | {"name": "side"}])
    return apps_set("Deployment", name, pods, metadata={"labels": labels}, replicas=replicas)


def workload(name: str, minimum: int) -> dict[str, object]:
    template = {"name": "workers", "schedulingPolicy": {"gang": {"minCount": minimum}}}
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"podGroupTemplates": [template]},
    }


def test_create_refuses_twice_and_checks_fields(kubectl) -> None:
    text = json.dumps(pod("a"))
    assert kubectl("create", "-f", "-", input=text) == "pod/a created\n"
    assert "AlreadyExists" in kubectl.fails("create", "-f", "-", input=text)
    wrong = pod("b") | {"colour": "red"}
    assert "colour" in kubectl.fails("create", "-f", "-", input=json.dumps(wrong))


def test_a_list_in_a_file_is_applied_item_by_item(kubectl) -> None:
    """kubectl asks for OpenAPI v2 before it sends a `kind: List`, as in `kubectl get -o yaml | kubectl apply -f -`."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod("one"), pod("two")]})
    assert kubectl("apply", "-f", "-", input=text) == "pod/one created\npod/two created\n"
    assert "configured" in kubectl("apply", "-f", "-", input=kubectl("get", "pods", "-o", "yaml"))
    wrong = json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod("three") | {"colour": "red"}]})
    assert 'unknown field "colour"' in kubectl.fails("create", "-f", "-", input=wrong)


def test_a_kind_that_is_not_served_is_called_so(kubectl) -> None:
    text = json.dumps({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "x"}})
    assert 'no matches for kind "Foo" in version "example.com/v1"' in kubectl.fails("apply", "-f", "-", input=text)


def test_create_with_a_generated_name(kubectl) -> None:
    body = pod("x")
    body["metadata"] = {"generateName": "gen-"}
    name = kubectl("create", "-f", "-", "-o", "name", input=json.dumps(body)).strip()
    assert name.startswith("pod/gen-") and len(name) == len("pod/gen-") + 5


def test_apply_creates_changes_and_then_leaves_alone(kubectl) -> None:
    assert kubectl.apply(two_containers("d")) == "deployment.apps/d created\n"
    assert kubectl.apply(two_containers("d")) == "deployment.apps/d unchanged\n"
    changed = two_containers("d", 3, tier="web")
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "alpine"  # type: ignore[index]
    assert kubectl.apply(changed) == "deployment.apps/d configured\n"
    assert kubectl.value("deployment", "d", ".spec.replicas") == "3"
    assert kubectl.value("deployment", "d", ".spec.template.spec.containers[*].image") == "alpine busybox"
    assert kubectl.apply(two_containers("d", 3)) == "deployment.apps/d configured\n"
    assert kubectl.value("deployment", "d", ".metadata.labels") == ""


def test_apply_of_our_own_kind(kubectl) -> None:
    assert kubectl.apply(workload("w", 3)) == "workload.scheduling.k8s.io/w created\n"
    assert kubectl.apply(workload("w", 3)) == "workload.scheduling.k8s.io/w unchanged\n"
    assert "minCount" in kubectl("get", "workload", "w", "-o", "yaml")


def test_server_side_apply_tells_conflicts_and_can_be_forced(kubectl) -> None:
    first = ("--server-side", "--field-manager=one")
    second = ("--server-side", "--field-manager=two")
    assert kubectl.apply(two_containers("d"), how=first) == "deployment.apps/d serverside-applied\n"
    text = yaml.safe_dump(two_containers("d", 5))
    said = kubectl.fails("apply", *second, "-f", "-", input=text)
    assert "conflict" in said and ".spec.replicas" in said
    kubectl("apply", *second, "--force-conflicts", "-f", "-", input=text)
    assert kubectl.value("deployment", "d", ".spec.replicas") == "5"
    managers = kubectl.value("deployment", "d", ".metadata.managedFields[*].manager").split()
    assert {"one", "two"} <= set(managers)


def test_diff_shows_what_apply_would_change_and_changes_nothing(kubectl) -> None:
    kubectl.apply(two_containers("d"))
    before = kubectl.value("deployment", "d", ".metadata.resourceVersion")
    said = kubectl.fails("diff", "-f", "-", input=yaml.safe_dump(two_containers("d", 7)))
    assert "+  replicas: 7" in said
    assert kubectl.value("deployment", "d", ".metadata.resourceVersion") == before
    assert kubectl("diff", "-f", "-", input=yaml.safe_dump(two_containers("d"))) == ""


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("strategic", '{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"new"}]}}}}'),
        ("json", '[{"op":"replace","path":"/spec/template/spec/containers/1/image","value":"new"}]'),
        (
            "merge",
            '{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"busybox"},{"name":"side","image":"new"}]}}}}',
        ),
    ],
)
def test_patch(kubectl, kind: str, patch: str) -> None:
    kubectl.apply(two_containers("d"))
    assert "patched" in kubectl("patch", "deployment", "d", "--type", kind, "-p", patch)
    images = kubectl.value("deployment", "d", ".spec.template.spec.containers[*].image")
    assert images == "busybox new"
    assert "(no change)" in kubectl("patch", "deployment", "d", "--type", kind, "-p", patch)


def test_edit_opens_changes_and_saves(kubectl) -> None:
    kubectl.apply(two_containers("d"))
    kubectl.environment["KUBE_EDITOR"] = "sed -i s/replicas:.1$/replicas:\\ 4/"
    assert "edited" in kubectl("edit", "deployment", "d")
    assert kubectl.value("deployment", "d", ".spec.replicas") == "4"


def test_replace_needs_the_latest_version(kubectl) -> None:
    kubectl.apply(two_containers("d"))
    old = kubectl("get", "deployment", "d", "-o", "json")
    kubectl("scale", "deployment", "d", "--replicas=2")
    assert "Conflict" in kubectl.fails("replace", "-f", "-", input=old)


def test_label_and_annotate(kubectl) -> None:
    kubectl.apply(pod("a"))
    kubectl("label", "pod", "a", "colour=red")
    assert kubectl.value("pod", "a", ".metadata.labels.colour") == "red"
    assert "overwrite" in kubectl.fails("label", "pod", "a", "colour=blue")
    kubectl("label", "pod", "a", "colour=blue", "--overwrite")
    kubectl("label", "pod", "a", "colour-")
    assert kubectl.value("pod", "a", ".metadata.labels.colour") == ""
    kubectl("annotate", "pod", "a", "note=hello there")
    assert kubectl.value("pod", "a", ".metadata.annotations.note") == "hello there"


def test_scale(kubectl) -> None:
    kubectl.apply(two_containers("d"))
    kubectl("scale", "deployment", "d", "--replicas=6")
    assert kubectl.value("deployment", "d", ".spec.replicas") == "6"
    kubectl.fails("scale", "deployment", "d", "--replicas=1", "--current-replicas=5")


def test_rollout_restart_and_set_image(kubectl) -> None:
    kubectl.apply(two_containers("d"))
    kubectl("rollout", "restart", "deployment", "d")
    assert "restartedAt" in kubectl.value("deployment", "d", ".spec.template.metadata.annotations")
    kubectl("set", "image", "deployment/d", "main=alpine:3")
    assert kubectl.value("deployment", "d", ".spec.template.spec.containers[0].image") == "alpine:3"


def owned(name: str, owner: str, uid: str) -> dict[str, object]:
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner,
        "uid": uid,
        "blockOwnerDeletion": True,
        "controller": True,
    }
    metadata = {"name": name, "ownerReferences": [reference]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


@pytest.fixture
def family(kubectl):
    """A parent and a child configmap."""
    kubectl("create", "configmap", "parent")
    kubectl(
        "create", "-f", "-", input=json.dumps(owned("child", "parent", kubectl.value("cm", "parent", ".metadata.uid")))
    )
    return kubectl


def test_delete_in_the_background_takes_dependents_along(family) -> None:
    assert "deleted" in family("delete", "configmap", "parent")
    family("wait", "--for=delete", "configmap/child", "--timeout=90s")
    assert "NotFound" in family.fails("get", "configmap", "child")


def test_delete_in_the_foreground_waits_for_dependents(family) -> None:
    family("delete", "configmap", "parent", "--cascade=foreground", "--timeout=90s")
    assert "NotFound" in family.fails("get", "configmap", "child")


def test_delete_orphan_leaves_dependents(family) -> None:
    family("delete", "configmap", "parent", "--cascade=orphan", "--timeout=90s")
    assert family.value("configmap", "child", ".metadata.ownerReferences") == ""


def test_delete_by_selector_everything_and_by_force(kubectl) -> None:
    kubectl.apply(*(pod(name) for name in "abc"))
    assert 'pod "a" deleted' in kubectl("delete", "pods", "-l", "app=a")
    kubectl("delete", "pod", "b", "--grace-period=0", "--force")
    kubectl("delete", "pods", "--all")
    assert "No resources found" in kubectl.start("get", "pods").stderr
    assert "NotFound" in kubectl.fails("delete", "pod", "a")
    assert kubectl("delete", "pod", "a", "--ignore-not-found") == ""


def test_delete_namespace_empties_it(kubectl) -> None:
    kubectl("create", "namespace", f"{kubectl.namespace}-x")
    kubectl("create", "configmap", "c", "-n", f"{kubectl.namespace}-x")
    kubectl("delete", "namespace", f"{kubectl.namespace}-x", "--timeout=90s")
    assert "NotFound" in kubectl.fails("get", "namespace", f"{kubectl.namespace}-x")


def test_wait_for_a_condition_a_value_and_creation(kubectl) -> None:
    kubectl.apply(pod("a"))
    waiting = kubectl.popen("wait", "--for=condition=Ready", "pod/a", "--timeout=90s")
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    kubectl("patch", "pod", "a", "--subresource=status", "--type=merge", "-p", json.dumps(status))
    said, _ = waiting.communicate(timeout=90)
    assert said == "pod/a condition met\n"
    kubectl("wait", "--for=jsonpath={.status.phase}=Running", "pod/a", "--timeout=90s")
    waiting = kubectl.popen("wait", "--for=create", "pod/b", "--timeout=90s")
    kubectl.apply(pod("b"))
    waiting.communicate(timeout=90)
    assert waiting.returncode == 0


@pytest.fixture
def node(kubectl) -> str:
    name = f"n-{kubectl.namespace}"
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    kubectl("create", "-f", "-", input=json.dumps(body))
    return name


def test_cordon_and_uncordon(kubectl, node: str) -> None:
    kubectl("cordon", node)
    assert kubectl.value("node", node, ".spec.unschedulable") == "true"
    assert "SchedulingDisabled" in kubectl("get", "node", node)
    kubectl("uncordon", node)
    assert kubectl.value("node", node, ".spec.unschedulable") == ""


def test_taint(kubectl, node: str) -> None:
    kubectl("taint", "node", node, "team=red:NoSchedule")
    assert kubectl.value("node", node, ".spec.taints[0].key") == "team"
    kubectl("taint", "node", node, "team-")
    assert kubectl.value("node", node, ".spec.taints") == ""


def test_drain_respects_a_disruption_budget(kubectl, node: str) -> None:
    kubectl.apply(pod("a", nodeName=node, terminationGracePeriodSeconds=0))
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}},
    }
    kubectl.apply(budget)

    def allow(disruptions: int) -> None:
        generation = int(kubectl.value("pdb", "guard", ".metadata.generation"))
        counts = {
            "currentHealthy": 1 + disruptions,
            "desiredHealthy": 1,
            "expectedPods": 1,
            "disruptionsAllowed": disruptions,
        }
        status = json.dumps({"status": counts | {"observedGeneration": generation}})
        kubectl("patch", "pdb", "guard", "--subresource=status", "--type=merge", "-p", status)

    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    kubectl("patch", "pod", "a", "--subresource=status", "--type=merge", "-p", json.dumps(running))
    allow(0)
    said = kubectl.fails("drain", node, "--force", "--timeout=3s")
    assert "disruption budget" in said
    assert kubectl.value("node", node, ".spec.unschedulable") == "true"
    assert kubectl("get", "pod", "a", "-o", "name") == "pod/a\n"
    allow(1)
    assert "drained" in kubectl("drain", node, "--force", "--timeout=90s")
    assert "NotFound" in kubectl.fails("get", "pod", "a")


def test_imperative_create(kubectl) -> None:
    kubectl("create", "deployment", "d", "--image=busybox", "--replicas=0")
    assert kubectl.value("deployment", "d", ".spec.replicas") == "0"
    kubectl("create", "job", "j", "--image=busybox", "--", "sleep", "1")
    assert kubectl.value("job", "j", ".spec.template.spec.containers[0].command") == '["sleep","1"]'
    kubectl("create", "cronjob", "c", "--image=busybox", "--schedule=0 0 * * *")
    name = f"prio-{kubectl.namespace}"
    kubectl("create", "priorityclass", name, "--value=1000", "--description=x")
    assert kubectl.value("priorityclass", name, ".value") == "1000"
    kubectl("create", "poddisruptionbudget", "p", "--selector=app=x", "--min-available=1")
    kubectl("create", "quota", "q", "--hard=pods=10")
    kubectl("create", "secret", "generic", "s", "--from-literal=a=b")
    assert kubectl.value("secret", "s", ".data.a") == "Yg=="
    kubectl("create", "serviceaccount", "robot")
    for account in ("default", "robot"):
        assert kubectl("create", "token", account).count(".") == 2
    kubectl("create", "service", "clusterip", "svc", "--tcp=80:80")
    kubectl("run", "r", "--image=busybox")
    assert kubectl.value("pod", "r", ".spec.containers[0].image") == "busybox"
    kubectl("expose", "deployment", "d", "--port=80")


def test_a_custom_resource_from_definition_to_deletion(kubectl) -> None:
    group = f"{kubectl.namespace}.example.com"
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {"watts": {"type": "integer", "minimum": 1, "default": 60}}}
        },
    }
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": [{"name": "Watts", "type": "integer", "jsonPath": ".spec.watts"}],
    }
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"lamps.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "lamps", "singular": "lamp", "kind": "Lamp"},
            "versions": [version],
        },
    }
    kubectl.apply(crd)
    kubectl("wait", "--for=condition=Established", f"crd/lamps.{group}", "--timeout=90s")
    lamp = {"apiVersion": f"{group}/v1", "kind": "Lamp", "metadata": {"name": "l"}, "spec": {}}
    assert kubectl.apply(lamp) == f"lamp.{group}/l created\n"
    assert kubectl.value(f"lamps.{group}", "l", ".spec.watts") == "60"
    assert kubectl("get", f"lamps.{group}").splitlines()[0].split() == ["NAME", "WATTS"]
    assert "watts" in kubectl("explain", f"lamps.{group}.spec")
    dark = lamp | {"metadata": {"name": "dark"}, "spec": {"watts": 0}}
    assert "spec.watts" in kubectl.fails("apply", "-f", "-", input=json.dumps(dark))
    kubectl("delete", "crd", f"lamps.{group}", "--timeout=90s")
    assert "doesn't have a resource type" in kubectl.fails("get", f"lamps.{group}")
