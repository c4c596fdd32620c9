"""Server-side apply and field ownership as users of several managers see them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.base.errors import BadRequest, Conflict, Invalid, UnsupportedMediaType
from support.api_world import CONFIGS, DEPLOYMENTS, JSON_PATCH, PODS, STRATEGIC, World, config, deployment
from support.manifests import pod


def owners(obj: dict[str, Any]) -> dict[tuple[str, str], Any]:
    return {
        (entry["manager"], entry["operation"]): entry["fieldsV1"] for entry in obj["metadata"].get("managedFields", [])
    }


def conf(**data: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": data}


def test_apply_creates_what_is_missing(world: World) -> None:
    answer = world.ask("patch", f"{CONFIGS}/c", conf(a="1"), "application/apply-patch+yaml", fieldManager="me")
    assert answer.code == 201
    made = world.get(f"{CONFIGS}/c")
    assert made["data"] == {"a": "1"}
    (entry,) = made["metadata"]["managedFields"]
    assert entry == {
        "manager": "me",
        "operation": "Apply",
        "apiVersion": "v1",
        "time": entry["time"],
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:data": {"f:a": {}}},
    }
    assert (
        world.ask("patch", f"{CONFIGS}/c", conf(a="2"), "application/apply-patch+yaml", fieldManager="me").code == 200
    )


def test_apply_reads_yaml(world: World) -> None:
    world.apply(f"{CONFIGS}/c", b"apiVersion: v1\nkind: ConfigMap\ndata:\n  a: one\n")
    assert world.get(f"{CONFIGS}/c")["data"] == {"a": "one"}


def test_applying_the_same_again_changes_nothing(world: World) -> None:
    first = world.apply(f"{DEPLOYMENTS}/web", deployment())
    world.clock.advance(10)
    assert world.apply(f"{DEPLOYMENTS}/web", deployment()) == first


def test_a_field_left_out_is_removed_unless_it_has_another_owner(world: World) -> None:
    world.apply(f"{CONFIGS}/c", conf(a="1", b="2"), "me")
    world.apply(f"{CONFIGS}/c", conf(b="2"), "you")
    world.apply(f"{CONFIGS}/c", conf(), "me")
    assert world.get(f"{CONFIGS}/c")["data"] == {"b": "2"}
    world.apply(f"{CONFIGS}/c", conf(), "you")
    assert not world.get(f"{CONFIGS}/c").get("data")


def test_a_conflict_names_manager_and_field(world: World) -> None:
    world.apply(f"{DEPLOYMENTS}/web", deployment(replicas=2), "me")
    with pytest.raises(Conflict) as caught:
        world.apply(f"{DEPLOYMENTS}/web", deployment(replicas=3), "you")
    assert caught.value.message == 'Apply failed with 1 conflict: conflict with "me": .spec.replicas'
    assert caught.value.causes == (
        {"reason": "FieldManagerConflict", "message": 'conflict with "me"', "field": ".spec.replicas"},
    )
    assert world.get(f"{DEPLOYMENTS}/web")["spec"]["replicas"] == 2


def test_several_conflicts_are_listed_by_manager(world: World) -> None:
    world.create(CONFIGS, config("c", a="1", b="2"), agent="kubectl/v1.32")
    with pytest.raises(Conflict) as caught:
        world.apply(f"{CONFIGS}/c", conf(a="x", b="y"), "me")
    assert caught.value.message == (
        'Apply failed with 2 conflicts: conflicts with "kubectl" using v1:\n- .data.a\n- .data.b'
    )


def test_force_takes_ownership(world: World) -> None:
    world.apply(f"{DEPLOYMENTS}/web", deployment(replicas=2), "me")
    taken = world.apply(f"{DEPLOYMENTS}/web", deployment(replicas=3), "you", force="true")
    assert taken["spec"]["replicas"] == 3
    assert "f:replicas" not in owners(taken)["me", "Apply"]["f:spec"]
    assert "f:replicas" in owners(taken)["you", "Apply"]["f:spec"]


def test_agreeing_managers_share_a_field(world: World) -> None:
    world.apply(f"{DEPLOYMENTS}/web", deployment(replicas=2), "me")
    shared = world.apply(f"{DEPLOYMENTS}/web", deployment(replicas=2), "you")
    for who in ("me", "you"):
        assert "f:replicas" in owners(shared)[who, "Apply"]["f:spec"]
    # The one who lets go first leaves it to the other.
    world.apply(f"{DEPLOYMENTS}/web", deployment(replicas=None), "me")
    assert world.get(f"{DEPLOYMENTS}/web")["spec"]["replicas"] == 2


def test_an_update_takes_the_fields_it_changes(world: World) -> None:
    world.apply(f"{DEPLOYMENTS}/web", deployment(replicas=2), "me")
    scaled = world.patch(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 5}}, fieldManager="autoscaler")
    assert owners(scaled)["autoscaler", "Update"] == {"f:spec": {"f:replicas": {}}}
    assert "f:replicas" not in owners(scaled)["me", "Apply"]["f:spec"]
    # Leaving it out now keeps the autoscaler's value.
    assert world.apply(f"{DEPLOYMENTS}/web", deployment(replicas=None), "me")["spec"]["replicas"] == 5


def test_list_items_are_owned_by_key(world: World) -> None:
    base = deployment()
    world.apply(f"{DEPLOYMENTS}/web", base, "me")
    other = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "spec": {"template": {"spec": {"containers": [{"name": "sidecar", "image": "envoy"}]}}},
    }
    both = world.apply(f"{DEPLOYMENTS}/web", other, "mesh")
    names = [container["name"] for container in both["spec"]["template"]["spec"]["containers"]]
    assert sorted(names) == ["sidecar", "web"]
    assert owners(both)["mesh", "Apply"]["f:spec"]["f:template"]["f:spec"]["f:containers"] == {
        'k:{"name":"sidecar"}': {".": {}, "f:image": {}, "f:name": {}}
    }
    # My configuration again: the sidecar is not mine to remove.
    again = world.apply(f"{DEPLOYMENTS}/web", base, "me")
    assert len(again["spec"]["template"]["spec"]["containers"]) == 2
    gone = world.apply(f"{DEPLOYMENTS}/web", {"apiVersion": "apps/v1", "kind": "Deployment", "spec": {}}, "mesh")
    assert [c["name"] for c in gone["spec"]["template"]["spec"]["containers"]] == ["web"]


def test_an_item_goes_with_its_owner_although_another_manager_changed_a_field_in_it(world: World) -> None:
    world.create(DEPLOYMENTS, deployment())
    sidecar = {"spec": {"template": {"spec": {"containers": [{"name": "sidecar", "image": "envoy:1"}]}}}}
    head = {"apiVersion": "apps/v1", "kind": "Deployment"}
    world.apply(f"{DEPLOYMENTS}/web", {**head, **sidecar}, "mesh")
    newer = {"spec": {"template": {"spec": {"containers": [{"name": "sidecar", "image": "envoy:2"}]}}}}
    world.patch(f"{DEPLOYMENTS}/web", newer, STRATEGIC, fieldManager="upgrader")
    # The upgrader owns the image, not the container: without this rule a container without a name was left.
    gone = world.apply(f"{DEPLOYMENTS}/web", head, "mesh")
    assert [c["name"] for c in gone["spec"]["template"]["spec"]["containers"]] == ["web"]
    assert ("upgrader", "Update") not in owners(gone)


def test_an_item_stays_for_its_other_owners(world: World) -> None:
    world.create(DEPLOYMENTS, deployment())
    head = {"apiVersion": "apps/v1", "kind": "Deployment"}
    sidecar = {"name": "sidecar", "image": "envoy:1"}
    for who, extra in (("mesh", {"args": ["a"]}), ("team", {})):
        body = {**head, "spec": {"template": {"spec": {"containers": [{**sidecar, **extra}]}}}}
        world.apply(f"{DEPLOYMENTS}/web", body, who)
    left = world.apply(f"{DEPLOYMENTS}/web", head, "mesh")["spec"]["template"]["spec"]["containers"]
    (found,) = (c for c in left if c["name"] == "sidecar")
    assert found["image"] == "envoy:1" and "args" not in found


def test_a_map_that_lost_its_last_entry_has_no_owner(world: World) -> None:
    head = {"apiVersion": "v1", "kind": "ConfigMap"}
    world.create(CONFIGS, {**config("c", k="v"), "metadata": {"name": "c", "annotations": {"a": "1"}}}, agent="maker/1")
    world.apply(f"{CONFIGS}/c", {**head, "metadata": {"annotations": {"a": "2"}}}, "me", force="true")
    bare = world.apply(f"{CONFIGS}/c", head, "me")
    assert "annotations" not in bare["metadata"]
    assert owners(bare) == {("maker", "Update"): {"f:data": {".": {}, "f:k": {}}}}


def test_finalizers_are_a_set(world: World) -> None:
    for who in ("me", "you"):
        body = {**conf(), "metadata": {"finalizers": [f"example.com/{who}"]}}
        world.apply(f"{CONFIGS}/c", body, who)
    assert world.get(f"{CONFIGS}/c")["metadata"]["finalizers"] == ["example.com/you", "example.com/me"] or world.get(
        f"{CONFIGS}/c"
    )["metadata"]["finalizers"] == ["example.com/me", "example.com/you"]
    world.apply(f"{CONFIGS}/c", conf(), "me")
    assert world.get(f"{CONFIGS}/c")["metadata"]["finalizers"] == ["example.com/you"]


def test_atomic_lists_have_one_owner(world: World) -> None:
    node = "/api/v1/nodes/n"
    taint = {"key": "a", "effect": "NoSchedule"}
    world.apply(node, {"apiVersion": "v1", "kind": "Node", "spec": {"taints": [taint]}}, "me")
    with pytest.raises(Conflict, match=r"\.spec\.taints"):
        world.apply(node, {"apiVersion": "v1", "kind": "Node", "spec": {"taints": [{**taint, "key": "b"}]}}, "you")


def test_defaulted_fields_have_no_owner_after_apply(world: World) -> None:
    made = world.apply(f"{PODS}/p", pod("p"), "me")
    assert made["spec"]["restartPolicy"] == "Always"
    assert set(owners(made)["me", "Apply"]["f:spec"]) == {"f:containers"}


def test_creators_own_what_they_sent_and_its_defaults_but_not_the_system_part(world: World) -> None:
    made = world.create(PODS, pod("p"), agent="kubectl/v1.32 (linux)")
    (entry,) = made["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"], entry["apiVersion"]) == ("kubectl", "Update", "v1")
    fields = entry["fieldsV1"]
    assert fields["f:metadata"] == {"f:labels": {".": {}, "f:app": {}}}
    assert fields["f:spec"]["f:restartPolicy"] == {}
    assert fields["f:spec"]["f:containers"]['k:{"name":"main"}']["f:image"] == {}
    assert "." not in fields["f:spec"] and "." not in fields["f:spec"]["f:containers"]
    for added_by_admission in ("f:priority", "f:tolerations", "f:serviceAccountName"):
        assert added_by_admission not in fields["f:spec"]
    assert "f:status" not in fields


def test_status_has_its_own_entries(world: World) -> None:
    world.create(PODS, pod("p"))
    body = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    patched = world.patch(f"{PODS}/p/status", body, STRATEGIC, fieldManager="kubelet")
    entry = next(e for e in patched["metadata"]["managedFields"] if e["manager"] == "kubelet")
    assert entry["subresource"] == "status"
    assert entry["fieldsV1"]["f:status"]["f:conditions"]['k:{"type":"Ready"}'] == {
        ".": {},
        "f:status": {},
        "f:type": {},
    }


def test_status_can_be_applied(world: World) -> None:
    path = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups"
    group = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    world.create(path, group)
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    body = {**group, "spec": {"schedulingPolicy": {"gang": {"minCount": 9}}}, "status": {"conditions": [condition]}}
    applied = world.apply(f"{path}/g/status", body, "me")
    assert applied["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    assert [c["type"] for c in applied["status"]["conditions"]] == ["Ready"]
    mine = next(e for e in applied["metadata"]["managedFields"] if e["manager"] == "me")
    assert list(mine["fieldsV1"]) == ["f:status"] and mine["subresource"] == "status"
    again = world.apply(f"{path}/g/status", {**body, "status": {}}, "me")
    assert not again.get("status", {}).get("conditions")


def test_owners_can_be_forgotten_and_apply_starts_again(world: World) -> None:
    world.create(CONFIGS, config("c", a="1"))
    stripped = world.patch(f"{CONFIGS}/c", {"metadata": {"managedFields": [{}]}})
    assert "managedFields" not in stripped["metadata"]
    changed = world.patch(f"{CONFIGS}/c", {"data": {"b": "2"}})
    assert "managedFields" not in changed["metadata"]
    with pytest.raises(Conflict, match="before-first-apply"):
        world.apply(f"{CONFIGS}/c", conf(a="x"), "me")


def test_managed_fields_survive_an_update_without_them(world: World) -> None:
    made = world.create(CONFIGS, config("c", a="1"), agent="a/1")
    body = config("c", a="2")
    updated = world.update(f"{CONFIGS}/c", body, agent="b/1")
    assert owners(updated)["b", "Update"] == {"f:data": {"f:a": {}}}
    assert owners(updated)["a", "Update"] == {"f:data": {}}
    assert made["metadata"]["uid"] == updated["metadata"]["uid"]


def test_kubectl_moves_its_client_side_entries_with_a_json_patch(world: World) -> None:
    """What kubectl apply --server-side does to an object that kubectl apply made."""
    made = world.create(CONFIGS, config("c", a="1"), fieldManager="kubectl-client-side-apply")
    entries = made["metadata"]["managedFields"]
    moved = [{**entries[0], "manager": "kubectl", "operation": "Apply"}]
    patch = [
        {"op": "replace", "path": "/metadata/managedFields", "value": moved},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": made["metadata"]["resourceVersion"]},
    ]
    world.patch(f"{CONFIGS}/c", patch, JSON_PATCH, fieldManager="kubectl-client-side-apply")
    applied = world.apply(f"{CONFIGS}/c", conf(b="2"), "kubectl")
    assert applied["data"] == {"b": "2"}
    assert list(owners(applied)) == [("kubectl", "Apply")]


def test_kubectl_may_go_on_server_side_where_it_left_off_client_side(world: World) -> None:
    def annotated(replicas: int, image: str) -> dict[str, Any]:
        body = deployment(replicas=replicas)
        body["spec"]["template"]["spec"]["containers"][0]["image"] = image
        text = msgspec.json.encode(body).decode()
        body["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": text}
        return body

    world.create(DEPLOYMENTS, annotated(2, "nginx"), fieldManager="kubectl-client-side-apply")
    new = annotated(3, "nginx:2")
    del new["metadata"]["annotations"]
    with pytest.raises(Conflict):
        world.apply(f"{DEPLOYMENTS}/web", new, "somebody")
    applied = world.apply(f"{DEPLOYMENTS}/web", new, "kubectl")
    assert applied["spec"]["replicas"] == 3
    # What another manager changed since is still a conflict.
    world.patch(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 9}}, fieldManager="autoscaler")
    with pytest.raises(Conflict, match="autoscaler"):
        world.apply(f"{DEPLOYMENTS}/web", new, "kubectl")


def test_kubectl_server_side_refreshes_what_client_side_apply_compares_with(world: World) -> None:
    """A user who goes back to client-side apply must not have fields removed by an annotation of long ago."""
    last = "kubectl.kubernetes.io/last-applied-configuration"
    body = config("c", a="1")
    body["metadata"]["annotations"] = {last: msgspec.json.encode(config("c", a="1")).decode()}
    world.create(CONFIGS, body, fieldManager="kubectl-client-side-apply")
    other = world.apply(f"{CONFIGS}/c", conf(b="2"), "another")
    assert msgspec.json.decode(other["metadata"]["annotations"][last])["data"] == {"a": "1"}  # not kubectl
    applied = world.apply(f"{CONFIGS}/c", conf(a="1", c="3"), "kubectl")
    text = applied["metadata"]["annotations"][last]
    assert text.endswith("\n") and msgspec.json.decode(text)["data"] == {"a": "1", "c": "3"}
    assert last not in (msgspec.json.decode(text)["metadata"].get("annotations") or {})
    world.create(CONFIGS, config("d", a="1"))
    assert "annotations" not in world.apply(f"{CONFIGS}/d", conf(a="1"), "kubectl")["metadata"]


def test_only_so_many_updaters_are_remembered(world: World) -> None:
    world.create(CONFIGS, config("c", first="1"))
    for i in range(15):
        world.clock.advance(5)
        world.patch(f"{CONFIGS}/c", {"data": {f"k{i}": "v"}}, fieldManager=f"m{i}")
    entries = world.get(f"{CONFIGS}/c")["metadata"]["managedFields"]
    assert len(entries) <= 11
    assert "ancient-changes" in {entry["manager"] for entry in entries}
    covered = {key for entry in entries for key in entry["fieldsV1"]["f:data"] if key != "."}
    assert covered == {"f:first"} | {f"f:k{i}" for i in range(15)}


@pytest.mark.parametrize(
    ("body", "query", "problem", "text"),
    [
        (conf(), {}, Invalid, "fieldManager: Required value: is required for apply patch"),
        ({"kind": "ConfigMap"}, {"fieldManager": "me"}, BadRequest, "apiVersion and kind must be set"),
        (
            {**conf(), "metadata": {"managedFields": [{"manager": "x"}]}},
            {"fieldManager": "me"},
            BadRequest,
            "metadata.managedFields must be nil",
        ),
        ({**conf(), "metadata": {"name": "other"}}, {"fieldManager": "me"}, BadRequest, "does not match the name"),
    ],
)
def test_bad_apply_requests(world: World, body: Any, query: dict[str, str], problem: Any, text: str) -> None:
    with pytest.raises(problem) as caught:
        world.ask("patch", f"{CONFIGS}/c", body, "application/apply-patch+yaml", **query)
    assert text in caught.value.message


def test_keys_of_a_keyed_list_must_be_unique(world: World) -> None:
    body = deployment()
    body["spec"]["template"]["spec"]["containers"] *= 2
    with pytest.raises(BadRequest, match=r'duplicate entries for key \[name="web"\]'):
        world.apply(f"{DEPLOYMENTS}/web", body)


def test_apply_can_be_pinned_to_a_revision(world: World) -> None:
    made = world.apply(f"{CONFIGS}/c", conf(a="1"))
    world.patch(f"{CONFIGS}/c", {"data": {"z": "z"}}, fieldManager="other")
    stale = {**conf(a="2"), "metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}}
    with pytest.raises(Conflict, match="the object has been modified"):
        world.apply(f"{CONFIGS}/c", stale)


def test_an_unknown_patch_language_is_refused_with_the_known_ones(world: World) -> None:
    world.create(CONFIGS, config("c"))
    with pytest.raises(UnsupportedMediaType, match="application/strategic-merge-patch"):
        world.patch(f"{CONFIGS}/c", {}, "application/x-yaml-patch")


def test_applied_fields_that_are_not_declared_are_refused_however_they_are_validated(world: World) -> None:
    for validation in ("Strict", "Warn", "Ignore"):
        with pytest.raises(BadRequest) as caught:
            world.ask(
                "patch",
                f"{CONFIGS}/c",
                conf(a="1") | {"unheard": 1},
                "application/apply-patch+yaml",
                fieldManager="me",
                fieldValidation=validation,
            )
        where = "ns/c; v1, Kind=ConfigMap"
        announced = f"failed to create typed patch object ({where}): .unheard: field not declared in schema"
        assert caught.value.message == announced
    with pytest.raises(BadRequest, match=r"errors:\n  \.spec\.a: field not declared in schema\n  \.b: field"):
        wrong = deployment()
        wrong["spec"]["a"] = wrong["b"] = 1
        world.apply(f"{DEPLOYMENTS}/web", wrong)


def test_repeated_keys_of_an_applied_configuration_are_reported_with_their_line(world: World) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\ndata:\n  a: one\n  a: two\n"
    with pytest.raises(BadRequest) as caught:
        world.ask(
            "patch",
            f"{CONFIGS}/c",
            body,
            "application/apply-patch+yaml",
            fieldManager="me",
            fieldValidation="Strict",
        )
    assert caught.value.message == (
        "error strict decoding patch: error converting YAML to JSON: yaml: unmarshal errors:\n"
        '  line 5: key "a" already set in map'
    )


def sorted_everywhere(fields: dict[str, Any]) -> bool:
    return list(fields) == sorted(fields) and all(sorted_everywhere(node) for node in fields.values())


def test_keys_of_field_sets_are_sorted_for_every_writer_and_verb(world: World) -> None:
    web = deployment()
    web["metadata"]["labels"] = {"z": "1", "a": "2"}
    web["spec"]["template"]["spec"]["containers"].append(
        {"name": "a", "image": "i", "env": [{"name": "Z"}, {"name": "A"}]}
    )
    world.apply(f"{DEPLOYMENTS}/web", web, "me")
    world.create(PODS, pod("p") | {"spec": {"nodeName": "n", "containers": [{"name": "b", "image": "i"}]}})
    for _ in range(2):
        world.patch(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 3, "paused": True}, "metadata": {"labels": {"m": "1"}}})
        world.patch(
            f"{DEPLOYMENTS}/web", {"spec": {"minReadySeconds": 3}, "metadata": {"annotations": {"m": "1", "b": "2"}}}
        )
    world.apply(f"{DEPLOYMENTS}/web", web | {"spec": {**web["spec"], "minReadySeconds": 3}}, "you", force="true")
    sets = [*owners(world.get(f"{DEPLOYMENTS}/web")).values(), *owners(world.get(f"{PODS}/p")).values()]
    assert len(sets) == 4
    assert all(sorted_everywhere(fields) for fields in sets), sets
