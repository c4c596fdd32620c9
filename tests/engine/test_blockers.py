"""The commonest mistakes are named: a label that no node has, a request larger than any node, taints, cordons."""

from __future__ import annotations

import pytest

from phalanx.cli.scheduler_client import Colours
from phalanx.cli.whatif import render as render_whatif
from phalanx.cli.why import render
from phalanx.engine import decisions as d
from phalanx.engine.explain.pending import PendingReasons
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.model.groups.keys import HOSTNAME
from phalanx.serve.queries.queue_view import QueueView
from phalanx.testing.builders import composite, node, pod, pod_group, pv, pvc
from support.asked_engine import Asked, ask
from support.device_world import asks, claim, consumer
from support.verdicts import not_helpful


def cluster() -> Asked:
    return Asked().see(*(node(f"n{i}").cpu("64").gpu(8).label("gpu", "a100") for i in range(4)))


@pytest.mark.parametrize(
    ("waiting", "headline"),
    [
        (pod("p").select("gpu", "h100"), "No node has label gpu=h100 (nodeSelector; nodes have gpu=a100)"),
        (pod("p").select("disk", "ssd"), "No node has label disk=ssd (nodeSelector; no node has a label disk)"),
        (
            pod("p").gpu(16),
            "A pod asks for 16 nvidia.com/gpu; the largest node has 8: this can never fit on the nodes there are",
        ),
        (pod("p").gpu(1, "amd.com/gpu"), "No node offers amd.com/gpu"),
        (
            pod("p").node_affinity(("gpu", "In", ["h100", "h200"])),
            "No node matches the required node affinity: gpu In h100, h200 (nodes have gpu=a100)",
        ),
    ],
)
def test_what_rules_out_every_node_is_the_headline(waiting: object, headline: str) -> None:
    run = cluster().see(waiting)
    run.step()
    item = run.why("Pod", "p")
    assert item.headline == headline
    assert render(item, Colours(on=False)).splitlines()[1] == f"  {headline}"


def test_every_blocker_is_named_not_only_the_first() -> None:
    run = cluster().see(pod("p").select("gpu", "a100").gpu(16).cpu("100"))
    run.step()
    texts = run.why("Pod", "p").blockers
    assert [text.split(";")[0] for text in texts] == ["a pod asks for 100 cpu", "a pod asks for 16 nvidia.com/gpu"]


def test_a_request_that_no_node_can_hold_is_named_beside_a_label_that_no_node_has() -> None:
    run = cluster().see(pod("p").select("gpu", "h100").gpu(16))
    run.step()
    assert run.why("Pod", "p").blockers == [
        "no node has label gpu=h100 (nodeSelector; nodes have gpu=a100)",
        "a pod asks for 16 nvidia.com/gpu; the largest node has 8: this can never fit on the nodes there are",
    ]


def test_taints_and_cordons_of_all_matching_nodes() -> None:
    run = Asked().see(node("n1").cpu("4").taint("team", "a", "NoSchedule"), pod("p").cpu("1"))
    run.step()
    assert run.why("Pod", "p").blockers == ["the only node has taint team=a:NoSchedule, which it does not tolerate"]
    run = Asked().see(node("n1").cpu("4").unschedulable(), node("n2").cpu("4").unschedulable(), pod("p").cpu("1"))
    run.step()
    assert run.why("Pod", "p").blockers == ["all 2 nodes are cordoned; `kubectl uncordon n1` opens one"]


def test_a_gang_larger_than_the_cluster_can_never_fit() -> None:
    run = cluster().see(pod_group("g").gang(5))
    run.see(*(pod(f"g-{i}").gpu(8).group("g") for i in range(5)))
    run.step()
    item = run.why("PodGroup", "g")
    assert item.headline == (
        "5 pods ask for 40 nvidia.com/gpu; the 4 nodes have 32: this can never fit on the nodes there are"
    )


def test_a_gang_that_waits_for_room_says_how_much_there_is() -> None:
    run = cluster().see(pod("other").gpu(8).node("n0"))
    run.see(pod_group("g").gang(4), *(pod(f"g-{i}").gpu(8).group("g") for i in range(4)))
    run.step()
    item = run.why("PodGroup", "g")
    assert item.headline == "Needs 4 pods at once; there is room for 3 (short of GPU)"
    assert item.blockers == []
    assert "pod group is unschedulable" not in render(item, Colours(on=False))
    assert "pod group is unschedulable" in render(item, Colours(on=False), wide=True)


def test_a_gang_without_its_members_says_how_many_are_missing() -> None:
    run = cluster().see(pod_group("g").gang(3), pod("g-0").cpu("1").group("g"))
    run.step()
    assert run.why("PodGroup", "g").headline == "Waits until pods are created: g has 1 of 3"


def headline_of(run: Asked, name: str) -> str:
    run.step()
    return run.why("Pod", name).headline


def test_the_rules_about_other_pods_are_named() -> None:
    run = Asked().see(*(node(f"n{i}").cpu("4").label("zone", f"z{i}") for i in range(2)))
    run.see(*(pod(f"anti-{i}").label("app", "db").anti_affinity("zone", {"app": "db"}) for i in range(3)))
    assert headline_of(run, "anti-2") == (
        "Fits none of 2 nodes: 2 have a pod with app=db in the same zone (podAntiAffinity)"
    )
    run.see(pod("near").affinity("zone", {"app": "cache"}))
    assert (
        headline_of(run, "near") == "Fits none of 2 nodes: 2 have no pod with app=cache in the same zone (podAffinity)"
    )


def test_a_topology_key_that_no_node_has_as_a_label_is_named() -> None:
    run = cluster().see(pod("a").affinity("row", {"app": "cache"}), pod("s").spread("row", {"app": "s"}))
    assert headline_of(run, "a") == "No node has label row (topologyKey of its podAffinity)"
    assert headline_of(run, "s") == "No node has label row (topologyKey of its topologySpreadConstraints)"


def test_labels_taints_and_ports_are_named_where_several_rules_meet() -> None:
    run = Asked().see(
        node("a").cpu("4").label("disk", "ssd"),
        node("b").cpu("4"),
        node("c").cpu("4").label("disk", "ssd").taint("team", "x"),
        pod("web-0").port(8080).node("a"),
        pod("web-1").select("disk", "ssd").port(8080),
    )
    assert headline_of(run, "web-1") == (
        "Fits none of 3 nodes: 1 has host port 8080 in use, 1 lacks label disk=ssd, 1 has taint team=x:NoSchedule"
    )
    (change,) = [each for each in run.why("Pod", "web-1").relaxations if each.reason == "HostPorts"]
    assert change.text == "1 node (a) would do with another host port"
    assert change.how.startswith("ports of a pod cannot be changed: delete pod/web-1 and apply it again")


def test_a_gang_that_few_nodes_admit_names_the_rule() -> None:
    run = Asked().see(*(node(f"n{i}").cpu("8").taint("team", "x") for i in range(2)), node("open").cpu("8"))
    run.see(pod_group("g").gang(2), *(pod(f"g-{i}").port(80).group("g") for i in range(2)))
    run.see(pod_group("h").gang(1), pod("h-0").affinity("zone", {"app": "cache"}).group("h")).step()
    assert run.why("PodGroup", "g").headline == (
        "Needs 2 pods at once; there is room for 1 (one node takes only so many of them: host port or podAntiAffinity)"
    )
    run = Asked().see(*(node(f"n{i}").cpu("8").label("zone", "z").taint(f"t{i}", "x") for i in range(2)))
    run.see(node("open").cpu("8").label("zone", "z"), pod_group("h").gang(1))
    run.see(pod("h-0").affinity("zone", {"app": "cache"}).group("h")).step()
    assert run.why("PodGroup", "h").headline.endswith("(nodes have taint t0=x:NoSchedule or t1=x:NoSchedule)")


def test_claims_and_volumes_are_named() -> None:
    run = cluster().see(
        pvc("classless").storage_class(""),
        pvc("fast").storage_class("nvme"),
        pvc("far").bound("pv"),
        pv("pv").node_affinity(("host", "In", ["gone"])),
        *(pod(f"p-{name}").pvc(name) for name in ("ghost", "classless", "fast", "far")),
    )
    assert headline_of(run, "p-ghost") == "PersistentVolumeClaim ghost does not exist in namespace default"
    assert headline_of(run, "p-classless") == (
        "PersistentVolumeClaim classless is not bound and has no storage class: "
        "it waits for a PersistentVolume without one that fits it"
    )
    assert headline_of(run, "p-fast") == "PersistentVolumeClaim fast is not bound: there is no StorageClass nvme"
    assert headline_of(run, "p-far") == (
        "Fits none of 4 nodes: 4 cannot use PersistentVolume pv of claim far (only host In gone)"
    )


def test_what_holds_a_pod_is_a_plain_sentence() -> None:
    run = cluster().see(pod("gated").gate("example.com/quota").gate("example.com/licence"), pod("ghost").group("none"))
    assert headline_of(run, "gated") == (
        "Waits until its scheduling gates example.com/quota and example.com/licence are removed"
    )
    assert headline_of(run, "ghost") == "PodGroup none does not exist in namespace default"
    run.see(pod_group("g").gang(2), pod("g-0").group("g"), pod("g-1").group("g").gate("hold")).step()
    assert run.why("PodGroup", "g").headline == "1 of its 2 pods has scheduling gate hold"


def test_the_list_of_pending_units_has_the_same_sentences() -> None:
    """`top`, the live table and the dashboard show what `why` says."""
    run = cluster().see(pod("ghost").pvc("ghost"), pod("gated").gate("hold"), pod("h").select("gpu", "h100"))
    run.see(pod("s").spread("row", {"app": "s"}), pod("web-0").port(80).node("n0"))
    run.see(pod("web-1").port(80).node_affinity(("kubernetes.io/hostname", "In", ["n0"])))
    run.step()
    for unit in run.engine.queue.units.values():
        name = unit.key.rpartition("/")[2]
        assert PendingReasons(run.engine).of(unit).headline == run.why("Pod", name).headline, name


def test_a_rule_is_changed_in_the_template_where_that_replaces_the_pods() -> None:
    waiting = pod("web-abc-1").label("pod-template-hash", "abc").owner("ReplicaSet", "web-abc").select("disk", "ssd")
    run = cluster().see(waiting, pod("train-0").owner("Job", "train").select("disk", "ssd"))
    run.step()
    (change,) = run.why("Pod", "web-abc-1").relaxations
    assert change.how == "change nodeSelector and affinity in the pod template of deployment/web"
    (change,) = run.why("Pod", "train-0").relaxations
    assert change.how == (
        "nodeSelector and affinity of a pod cannot be changed: delete job/train and apply it again with others"
    )


def test_a_template_whose_set_waits_for_its_pods_needs_them_deleted() -> None:
    run = cluster().see(pod("db-0").owner("StatefulSet", "db").select("disk", "ssd"))
    run.step()
    (change,) = run.why("Pod", "db-0").relaxations
    assert change.how == (
        "change nodeSelector and affinity in the pod template of statefulset/db, and delete its pods that wait"
    )


@pytest.mark.parametrize(
    ("label", "maker", "how"),
    [
        (
            "jobset.sigs.k8s.io/jobset-name",
            "Job",
            "nodeSelector and affinity of a pod cannot be changed: delete jobset/train and apply it again with others",
        ),
        (
            "leaderworkerset.sigs.k8s.io/name",
            "StatefulSet",
            "change nodeSelector and affinity in the pod template of leaderworkerset/train",
        ),
    ],
)
def test_a_remedy_names_the_object_that_its_author_wrote(label: str, maker: str, how: str) -> None:
    run = cluster().see(pod("p").label(label, "train").owner(maker, "train-w-0").select("disk", "ssd"))
    run.step()
    (change,) = run.why("Pod", "p").relaxations
    assert change.how == how


def test_the_pods_of_a_group_written_by_hand_are_what_is_applied_again() -> None:
    """Deleting the group alone would wait for its pods, and they would keep their node selector."""
    run = cluster().see(pod_group("g").gang(2), *(pod(f"g-{i}").group("g").select("disk", "ssd") for i in range(2)))
    run.step()
    (change,) = [each for each in run.why("PodGroup", "g").relaxations if each.reason == "NodeSelector"]
    assert change.how == (
        "nodeSelector and affinity of a pod cannot be changed: "
        "delete the pods of podgroup/g and apply them again with others"
    )


def test_the_queue_names_the_amount_that_no_node_has_free() -> None:
    """Free nodes have room for the smaller pods, so that their amount is not what the group waits for."""
    run = cluster().see(composite("tree").gang(2), *(pod_group(f"g{i}").parent("tree").gang(1) for i in range(2)))
    run.see(pod("small").gpu(8).group("g0"), pod("large").gpu(16).group("g1"))
    run.see(pod_group("mixed").gang(2), pod("a").gpu(8).group("mixed"), pod("b").gpu(16).group("mixed"))
    run.step()
    for kind, name in (("CompositePodGroup", "tree"), ("PodGroup", "mixed")):
        queue = run.why(kind, name).queue
        assert queue is not None and queue.waits_for == ["a node has 16 nvidia.com/gpu free"], name


def events(run: Asked, name: str) -> list[str]:
    return [each.message for each in run.of(d.RecordEvent, name) if each.reason == "FailedScheduling"]


def test_events_of_pods_begin_with_the_sentence_and_conditions_keep_the_message() -> None:
    run = cluster().see(*(pod(f"p{i}").select("gpu", "h100") for i in range(2)), pod("big").gpu(16), pod("c").pvc("x"))
    run.step()
    message = not_helpful("0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector.")
    assert run.messages("p0") == run.messages("p1") == [message]
    assert (
        events(run, "p0")
        == events(run, "p1")
        == [f"No node has label gpu=h100 (nodeSelector; nodes have gpu=a100). {message}"]
    )
    (large,), (claims,) = events(run, "big"), events(run, "c")
    assert large.startswith("A pod asks for 16 nvidia.com/gpu; the largest node has 8: this can never fit ")
    assert large.endswith(f". {run.messages('big')[0]}")
    assert claims.startswith("PersistentVolumeClaim x does not exist in namespace default. 0/4 nodes are available")


def test_events_of_groups_name_labels_and_requests_that_are_too_large() -> None:
    run = cluster().see(pod_group("g").gang(2), *(pod(f"g-{i}").select("gpu", "h100").group("g") for i in range(2)))
    run.see(pod_group("big").gang(2), *(pod(f"b-{i}").gpu(16).group("big") for i in range(2))).step()
    sentence = "No node has label gpu=h100 (nodeSelector; nodes have gpu=a100)"
    assert events(run, "g") == [sentence]
    assert events(run, "g-0") == [
        f"{sentence}. 0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector."
    ]
    assert events(run, "big") == [
        "A pod asks for 16 nvidia.com/gpu; the largest node has 8: this can never fit on the nodes there are"
    ]


def test_every_answer_about_a_waiting_unit_begins_with_the_same_sentence() -> None:
    """What holds it comes before what rules nodes out, in `why`, the lists of `top` and the dashboard, and events."""
    run = cluster().see(pod("other").gpu(8).node("n0"), pod("both").select("gpu", "h100").gpu(16))
    run.see(pod("affine").node_affinity(("gpu", "In", ["h100"])), pod("large").gpu(16))
    for name, count, gpu in (("fits-not", 4, 8), ("never", 5, 8), ("too-large", 2, 16)):
        run.see(pod_group(name).gang(count), *(pod(f"{name}-{i}").gpu(gpu).group(name) for i in range(count)))
    run.see(pod_group("labels").gang(2))
    run.see(*(pod(f"labels-{i}").select("gpu", "h100").gpu(16).group("labels") for i in range(2)))
    run.see(pod_group("few").gang(3), pod("few-0").select("gpu", "h100").group("few"))
    run.see(pod("gated").gate("hold").select("gpu", "h100"), pod("ghost").group("none").gpu(16))
    run.step()
    units = [unit for unit in run.engine.queue.units.values() if unit.records]
    assert len(units) == 10
    for unit in units:
        name = "ghost" if "ghost" in str(unit.records) else unit.key.rpartition("/")[2]
        item = run.why("Pod" if unit.group is None or name == "ghost" else "PodGroup", name)
        assert PendingReasons(run.engine).of(unit).headline == item.headline != "", unit.key
        if unit.queue_name is not QueueName.GATED:
            texts = [f"{text[:1].upper()}{text[1:]}" for text in item.blockers] or [item.headline]
            assert events(run, name)[0].startswith(". ".join(texts)), unit.key
    assert run.why("PodGroup", "few").headline == "Waits until pods are created: few has 1 of 3"
    assert run.why("PodGroup", "few").blockers == ["no node has label gpu=h100 (nodeSelector; nodes have gpu=a100)"]
    assert "5 pods ask for 40 nvidia.com/gpu" in events(run, "never")[0]


def test_pods_of_a_group_that_does_not_exist_are_listed_by_its_name_and_namespace() -> None:
    run = cluster().see(pod("ghost").group("none"))
    run.step()
    (unit,) = QueueView(run.engine, lambda: 0.0).units()["roots"]
    assert (unit["key"], unit["namespace"], unit["name"]) == ("podgroup/default/none", "default", "none")
    assert QueueView(run.engine, lambda: 0.0).waiting()["by"] == [["default", 0, 1, 1]]


def test_a_label_with_many_values_is_counted() -> None:
    run = Asked().see(*(node(f"n{i}").cpu("4").label("host", f"n{i}") for i in range(30)))
    run.see(pod("p").select("host", "gone"))
    assert headline_of(run, "p") == "No node has label host=gone (nodeSelector; nodes have 30 other values of it)"


def test_pods_that_were_not_created_are_not_counted_as_placed() -> None:
    run = cluster().see(pod_group("g").gang(8), pod("g-0").gpu(1).group("g"))
    run.step()
    (unit,) = QueueView(run.engine, lambda: 0.0).units()["roots"]
    assert (unit["placed"], unit["pods"], unit["of"]) == (0, 1, 8)


def test_what_if_names_everything_that_is_in_the_way() -> None:
    run = cluster()
    answer = ask(run, pod("p").select("gpu", "h100").gpu(16))
    assert [text.split(" (")[0].split(";")[0] for text in answer.items[0].blockers] == [
        "no node has label gpu=h100",
        "a pod asks for 16 nvidia.com/gpu",
    ]
    assert "  also: A pod asks for 16" in render_whatif(answer.items[0], Colours(on=False))


def test_a_device_class_or_claim_that_is_missing_is_named() -> None:
    run = cluster().see(claim("c", asks()), consumer("p", "c"))
    missing = "DeviceClass gpu does not exist (request r of its ResourceClaim)"
    assert headline_of(run, "p") == missing and events(run, "p")[0].startswith(f"{missing}. 0/4 nodes")
    made = pod("t")
    made.spec["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": "one"}]
    run.see(made)
    assert headline_of(run, "t") == "Waits until claim g is created from ResourceClaimTemplate one"


def test_the_queue_names_the_object_that_is_waited_for_and_not_room_that_is_there() -> None:
    run = cluster().see(pod("p").cpu("1").pvc("ghost"))
    run.step()
    queue = run.why("Pod", "p").queue
    assert queue is not None and queue.waits_for[0] == "a volume, claim or storage class changes"


def test_a_members_own_message_is_shown_in_full_only_when_asked_for() -> None:
    run = cluster().see(pod_group("g").gang(2), *(pod(f"g-{i}").select("gpu", "h100").group("g") for i in range(2)))
    run.step()
    item = run.why("PodGroup", "g")
    assert "nodes are available" not in render(item, Colours(on=False))
    assert "0/4 nodes are available" in render(item, Colours(on=False), wide=True)


def test_fewer_domains_than_pods_that_keep_apart_can_never_fit() -> None:
    run = Asked().see(*(node(f"n{i}").cpu("8").label("rack", f"r{i % 2}") for i in range(4)))
    run.see(pod_group("g").gang(3))
    run.see(*(pod(f"g-{i}").label("app", "db").anti_affinity("rack", {"app": "db"}).group("g") for i in range(3)))
    run.step()
    item = run.why("PodGroup", "g")
    assert item.headline == (
        "3 pods are needed and podAntiAffinity allows one of them in a rack; there are 2 racks: "
        "this can never fit on the nodes there are"
    )
    assert [change.text for change in item.relaxations] == ["minCount 2 instead of 3 fits now"]


def test_pods_that_keep_apart_by_host_name_are_on_nodes() -> None:
    run = cluster().see(pod_group("g").gang(5))
    keep_apart = (pod(f"g-{i}").label("app", "db").anti_affinity(HOSTNAME, {"app": "db"}) for i in range(5))
    run.see(*(each.group("g") for each in keep_apart))
    run.step()
    assert run.why("PodGroup", "g").headline == (
        "5 pods are needed and podAntiAffinity allows one of them on a node; there are 4 nodes: "
        "this can never fit on the nodes there are"
    )


def test_a_gang_on_one_node_says_node_and_not_hostname() -> None:
    run = Asked().see(*(node(f"n{i}").cpu("64").gpu(8).label(HOSTNAME, f"n{i}") for i in range(4)))
    run.see(pod_group("g").gang(3).topology(HOSTNAME), *(pod(f"g-{i}").gpu(3).group("g") for i in range(3)))
    run.step()
    item = run.why("PodGroup", "g")
    assert item.headline == "Needs 3 pods at once on one node; the best one, n0, has room for 2 (short of GPU)"
    assert "hostname" not in " ".join([item.headline, *(change.text for change in item.relaxations)])


def test_fewer_nodes_than_pods_with_a_host_port_can_never_fit() -> None:
    run = cluster().see(pod_group("g").gang(5), *(pod(f"g-{i}").port(8080).group("g") for i in range(5)))
    run.step()
    assert run.why("PodGroup", "g").headline == (
        "5 pods are needed and host port 8080 allows one of them on a node; there are 4 nodes: "
        "this can never fit on the nodes there are"
    )


def test_nodes_without_the_label_of_an_anti_affinity_do_not_limit_it() -> None:
    run = cluster().see(node("free").cpu("8").label("rack", "r0"), pod_group("g").gang(3))
    run.see(*(pod(f"g-{i}").label("app", "db").anti_affinity("rack", {"app": "db"}).group("g") for i in range(3)))
    run.step()
    assert not run.why("PodGroup", "g").blockers


def test_a_gang_whose_rules_leave_no_placement_names_them() -> None:
    run = Asked().see(*(node(f"n{i}").cpu("8").label("zone", f"z{i}") for i in range(3)))
    run.see(pod("db").label("app", "db").node("n0"), pod_group("g").gang(3))
    rule = {"app": "db"}
    run.see(*(pod(f"g-{i}").label("app", "g").spread("zone", {"app": "g"}).anti_affinity("zone", rule).group("g")
              for i in range(3)))  # fmt: skip
    run.step()
    item = run.why("PodGroup", "g")
    sentence = (
        "Needs 3 pods at once; nodes have free resources, but no placement follows all rules: no pod with app=db in "
        "the same zone (podAntiAffinity); app=g spread by zone with maxSkew 1 (topologySpreadConstraints)"
    )
    assert item.headline == sentence
    assert PendingReasons(run.engine).of(run.engine.queue.units[item.root]).headline == sentence
    events = [each.message for each in run.of(d.RecordEvent, "g") if each.reason == "FailedScheduling"]
    assert events == [sentence]


def test_pods_beyond_a_minimum_that_runs_say_what_they_lack() -> None:
    run = cluster().see(pod_group("g").gang(2), *(pod(f"g-{i}").gpu(8).group("g") for i in range(6)))
    run.step()
    item = run.why("PodGroup", "g")
    sentence = "Its minimum runs; 2 more pods wait: there is room for none (short of GPU)"
    assert item.scheduled and item.headline == sentence
    assert sentence in render(item, Colours(on=False)).splitlines()[2]
    assert PendingReasons(run.engine).of(run.engine.queue.units[item.root]).headline == sentence


def test_a_gang_beyond_the_minimum_of_its_tree_is_named() -> None:
    run = cluster().see(composite("tree"), pod_group("a").parent("tree"), pod_group("b").gang(3).parent("tree"))
    run.see(*(pod(f"a-{i}").gpu(8).group("a") for i in range(3)))
    run.step()
    run.see(*(pod(f"b-{i}").gpu(8).group("b") for i in range(3)))
    run.step()
    sentence = "PodGroup b needs 3 pods at once; there is room for 1 (short of GPU)"
    for kind, name in (("PodGroup", "b"), ("CompositePodGroup", "tree")):
        assert run.why(kind, name).headline == sentence


def test_members_for_another_scheduler_are_named() -> None:
    run = cluster().see(
        pod_group("g").gang(2), *(pod(f"g-{i}").cpu("1").group("g").scheduler("volcano") for i in (0, 1))
    )
    run.step()
    assert run.why("PodGroup", "g").headline == (
        "2 pods of g are for the scheduler volcano (spec.schedulerName); it has 0 of the 2 that it needs here"
    )


def test_a_node_that_does_not_respond_is_not_ready_and_no_toleration_helps() -> None:
    taint = "node.kubernetes.io/unreachable"
    run = Asked().see(node("n1").cpu("4").label("disk", "ssd").taint(taint, "", "NoSchedule"), node("n2").cpu("4"))
    run.see(pod("p").cpu("1").select("disk", "ssd"))
    run.step()
    item = run.why("Pod", "p")
    assert item.headline == f"The only matching node is not ready (taint {taint}:NoSchedule)"
    assert [change.reason for change in item.relaxations] == ["NodeSelector"]


def test_a_tree_that_lacks_child_groups_says_how_many() -> None:
    run = cluster().see(composite("root").gang(3), pod_group("a").gang(1).parent("root"), pod("a-0").group("a"))
    run.step()
    sentence = "Waits until child groups are created: root has 1 of 3"
    item = run.why("CompositePodGroup", "root")
    assert item.headline == sentence
    assert PendingReasons(run.engine).of(run.engine.queue.units[item.root]).headline == sentence


def test_parents_in_a_cycle_are_named() -> None:
    run = cluster().see(composite("a").gang(1).parent("b"), composite("b").gang(1).parent("a"))
    run.see(pod_group("g").gang(1).parent("a"), pod("g-0").group("g"))
    run.step()
    assert run.why("CompositePodGroup", "a").headline.startswith("Cyclic parents: a -> b -> a")


def test_what_if_names_what_holds_a_unit_and_ends_at_parents_in_a_cycle() -> None:
    def headline(*builders: object) -> str:
        (unit,) = ask(cluster(), *builders).items
        assert not unit.fits
        return unit.headline

    assert headline(pod_group("g").gang(3), pod("g-0").group("g")) == "Waits until pods are created: g has 1 of 3"
    gated = (pod(f"g-{i}").gate("example.com/wait").group("g") for i in range(2))
    assert headline(pod_group("g").gang(2), *gated) == "2 of its 2 pods have scheduling gate example.com/wait"
    tree = (composite("a").gang(1).parent("b"), composite("b").gang(1).parent("a"))
    text = headline(*tree, pod_group("g").gang(1).parent("a"), pod("g-0").group("g"))
    assert text.startswith("Cyclic parents: a -> b -> a")
