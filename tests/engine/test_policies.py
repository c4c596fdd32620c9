"""Which policy is in effect for which group, and what its status says."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phalanx.engine import decisions as d
from phalanx.model.groups import COMPOSITE, POD_GROUP, WORKLOAD, GroupKey
from phalanx.model.groups.policies import Policies
from phalanx.model.groups.policy import Policy
from phalanx.testing.builders import composite, node, pod, pod_group, workload, workload_policy
from phalanx.testing.cluster import Cluster

REPLACE = {"policy": "Replace"}
SHRINK = {"policy": "Shrink"}
SHORT = "scheduling.phalanx.dev/rescheduling-policy"


def policy_of(cluster: Cluster, name: str, kind: str = POD_GROUP) -> Policy:
    group = cluster.engine.cluster.forest.group(GroupKey(kind, "default", name))
    assert group is not None
    return group.policy


def accepted(cluster: Cluster, name: str) -> tuple[str, str, str]:
    cluster.step()
    return cluster.condition(name, "WorkloadPolicy")


def test_a_policy_reaches_the_group_that_it_names() -> None:
    cluster = Cluster().see(pod_group("g").gang(2), pod_group("other").gang(2))
    cluster.see(workload_policy("p").target("PodGroup", "g").set(rescheduling=REPLACE).generation(4))
    assert accepted(cluster, "p") == ("True", "Accepted", "in effect for PodGroup g")
    assert policy_of(cluster, "g").rescheduling == "Replace"
    assert policy_of(cluster, "other").rescheduling == "Keep"
    status = cluster.objects["WorkloadPolicy"]["p"].status
    assert (status.matched_groups, status.observed_generation) == (1, 4)


def test_a_policy_for_a_workload_reaches_all_its_groups_whenever_they_come() -> None:
    cluster = Cluster().see(workload_policy("p").target("JobSet", "train", "jobset.x-k8s.io").set(rescheduling=REPLACE))
    assert accepted(cluster, "p")[:2] == ("False", "TargetNotFound")
    cluster.see(
        workload("w").controller("JobSet", "train", "jobset.x-k8s.io").template("t"),
        composite("tree").from_workload("w", "t"),
        pod_group("leaf").parent("tree"),
        pod_group("elsewhere"),
    )
    assert accepted(cluster, "p")[0] == "True"
    assert cluster.objects["WorkloadPolicy"]["p"].status.matched_groups == 2
    assert policy_of(cluster, "leaf").rescheduling == "Replace"
    assert policy_of(cluster, "tree", COMPOSITE).rescheduling == "Replace"
    assert policy_of(cluster, "elsewhere").rescheduling == "Keep"
    cluster.gone("PodGroup", "leaf")
    cluster.step()
    assert cluster.objects["WorkloadPolicy"]["p"].status.matched_groups == 1


def test_a_policy_for_an_owner_reaches_its_groups_and_what_it_is_part_of_too() -> None:
    cluster = Cluster().see(
        pod_group("a").owner("Job", "j", api_version="batch/v1"),
        pod_group("b").annotate("scheduling.phalanx.dev/part-of", "TrainJob.trainer.kubeflow.org/t"),
        workload_policy("p").target("Job", "j", "batch").set(rescheduling=REPLACE),
        workload_policy("q").target("TrainJob", "t", "trainer.kubeflow.org").set(rescheduling=SHRINK),
        workload_policy("r").target("Job", "j", "example.com").set(rescheduling=SHRINK),
    )
    cluster.step()
    assert (policy_of(cluster, "a").rescheduling, policy_of(cluster, "b").rescheduling) == ("Replace", "Shrink")
    assert accepted(cluster, "r")[1] == "TargetNotFound"


def test_implicit_groups_of_a_workload_have_its_policy() -> None:
    cluster = Cluster().see(
        workload("w").template("workers", {"gang": {"minCount": 2}}),
        pod("p").workload("w", "workers"),
        workload_policy("p").target("Workload", "w").set(rescheduling=REPLACE),
    )
    cluster.step()
    assert policy_of(cluster, "w/workers/", WORKLOAD).rescheduling == "Replace"


def test_the_object_wins_over_the_annotation_and_the_annotation_over_the_default() -> None:
    config = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
workloadPolicyDefaults: {rescheduling: {policy: Shrink, graceSeconds: 7}}
"""
    cluster = Cluster(config=config).see(pod_group("plain"), pod_group("g").annotate(SHORT, "Replace"))
    assert (policy_of(cluster, "plain").rescheduling, policy_of(cluster, "g").rescheduling) == ("Shrink", "Replace")
    cluster.see(workload_policy("p").target("PodGroup", "g").set(rescheduling={"policy": "TerminateAll"}))
    assert (policy_of(cluster, "g").rescheduling, policy_of(cluster, "g").grace_seconds) == ("TerminateAll", 7)
    cluster.gone("WorkloadPolicy", "p")
    assert policy_of(cluster, "g").rescheduling == "Replace"


def test_the_nearer_policy_wins() -> None:
    cluster = Cluster().see(
        composite("tree"),
        pod_group("a").parent("tree"),
        pod_group("b").parent("tree"),
        workload_policy("for-tree").target("CompositePodGroup", "tree").set(rescheduling=SHRINK).created(1),
        workload_policy("for-b").target("PodGroup", "b").set(rescheduling=REPLACE).created(2),
    )
    assert (policy_of(cluster, "a").rescheduling, policy_of(cluster, "b").rescheduling) == ("Shrink", "Replace")


def test_of_two_policies_for_one_target_the_older_wins_and_the_younger_says_so() -> None:
    cluster = Cluster().see(pod_group("g"))
    cluster.see(workload_policy("a").target("PodGroup", "g").set(rescheduling=SHRINK).created(20))
    cluster.step()
    cluster.see(workload_policy("b").target("PodGroup", "g").set(rescheduling=REPLACE).created(10))
    assert policy_of(cluster, "g").rescheduling == "Replace"
    status, reason, message = accepted(cluster, "a")
    assert (status, reason) == ("False", "Conflicted")
    assert "WorkloadPolicy b is older" in message
    assert accepted(cluster, "b")[0] == "True"
    cluster.gone("WorkloadPolicy", "b")
    assert policy_of(cluster, "g").rescheduling == "Shrink"
    assert accepted(cluster, "a")[0] == "True"


def test_a_wrong_value_is_reported_with_its_field_and_the_group_is_scheduled_as_if_it_were_absent() -> None:
    cluster = Cluster().see(node("n").cpu("4"), pod_group("g").gang(2), pod("a").group("g"), pod("b").group("g"))
    cluster.see(
        workload_policy("p").target("PodGroup", "g").set(counts={"min": 9, "max": 3}, timeouts={"readySeconds": 5})
    )
    status, reason, message = accepted(cluster, "p")
    assert (status, reason) == ("False", "InvalidValue")
    assert "spec.counts.min" in message
    assert set(cluster.bound) == {"a", "b"}
    assert (policy_of(cluster, "g").min_count, policy_of(cluster, "g").ready_seconds) == (None, 5)
    assert cluster.evicted == []


def test_a_wrong_annotation_is_reported_on_the_group() -> None:
    cluster = Cluster().see(pod_group("g").annotate(SHORT, "Again"))
    cluster.step()
    (event,) = [e for e in cluster.of(d.RecordEvent, "g") if e.reason == "AnnotationIgnored"]
    assert "'Again' is not one of Keep" in event.message
    cluster.step(60)
    assert len(cluster.of(d.RecordEvent, "g")) == 1
    assert policy_of(cluster, "g").rescheduling == "Keep"


def test_groups_placed_with_each_other_in_a_circle_are_reported() -> None:
    cluster = Cluster().see(
        composite("tree"),
        pod_group("a").parent("tree"),
        pod_group("b").parent("tree"),
        workload_policy("pa").target("PodGroup", "a").set(ranks={"coPlaceWith": "b"}),
        workload_policy("pb").target("PodGroup", "b").set(ranks={"coPlaceWith": "a"}),
        workload_policy("pc").target("CompositePodGroup", "tree").set(ranks={"coPlaceWith": "nobody"}),
    )
    assert accepted(cluster, "pa")[1] == "InvalidValue"
    assert (
        "spec.ranks.coPlaceWith: is a cycle: PodGroup b with PodGroup a with PodGroup b" in accepted(cluster, "pb")[2]
    )


def test_a_group_that_is_to_be_placed_with_itself_is_reported() -> None:
    cluster = Cluster().see(
        composite("tree"),
        pod_group("a").parent("tree"),
        workload_policy("pa").target("PodGroup", "a").set(ranks={"coPlaceWith": "a"}),
    )
    status, reason, message = accepted(cluster, "pa")
    assert (status, reason) == ("False", "InvalidValue")
    assert message.startswith("spec.ranks.coPlaceWith: is a cycle: PodGroup a with itself")


def test_the_minimum_of_a_policy_counts_in_place_of_the_one_of_the_group() -> None:
    cluster = Cluster().see(node("n").cpu("4"), pod_group("g").gang(3), pod("a").group("g"), pod("b").group("g"))
    cluster.step()
    assert cluster.bound == {}
    cluster.see(workload_policy("p").target("PodGroup", "g").set(counts={"min": 2}))
    cluster.step()
    assert set(cluster.bound) == {"a", "b"}


def test_a_policy_looks_only_at_groups_that_it_may_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster().see(*(pod_group(f"g{number}") for number in range(200)))
    cluster.step()
    looked_at: list[str] = []
    apply = Policies.apply

    def counted(self: Policies, group: Any, *rest: Any) -> Any:
        looked_at.append(group.key.name)
        return apply(self, group, *rest)

    monkeypatch.setattr(Policies, "apply", counted)
    for number in range(200):
        cluster.see(workload_policy(f"p{number}").target("PodGroup", "g0").set(rescheduling=SHRINK).created(number))
    cluster.step()
    assert looked_at == ["g0"], "younger policies for the same object have no effect"
    written = [
        each.name for each in cluster.log if isinstance(each, d.SetGroupCondition) and each.kind == "WorkloadPolicy"
    ]
    assert len(written) == 200, "each status is written once"
    cluster.gone("WorkloadPolicy", "p0")
    cluster.step()
    assert looked_at == ["g0", "g0"] and accepted(cluster, "p1")[0] == "True"


@pytest.mark.parametrize("seed", range(30))
def test_policies_that_come_and_go_leave_what_those_that_stay_say(seed: int) -> None:
    chosen = random.Random(seed)
    groups = [
        composite("tree"),
        pod_group("a").parent("tree"),
        pod_group("b").parent("tree").owner("Job", "j", "u", "batch/v1"),
        pod_group("c").owner("Job", "j", "v", "example.com/v1"),
        workload("w").template("t"),
        pod_group("e").from_workload("w", "t"),
    ]
    targets = [
        ("CompositePodGroup", "tree", ""),
        ("PodGroup", "a", ""),
        ("PodGroup", "c", "scheduling.k8s.io"),
        ("Job", "j", "batch"),
        ("Job", "j", ""),
        ("Job", "j", "example.com"),
        ("Workload", "w", ""),
    ]
    cluster, kept = Cluster().see(*groups), {}
    for step in range(30):
        name = f"p{chosen.randrange(6)}"
        if name in kept and chosen.random() < 0.4:
            del kept[name]
            cluster.gone("WorkloadPolicy", name)
        else:
            rules = {"policy": chosen.choice(["Replace", "Shrink", "TerminateAll"]), "graceSeconds": step}
            made = workload_policy(name).target(*chosen.choice(targets)).set(rescheduling=rules)
            kept[name] = made.created(chosen.randrange(3))
            cluster.see(kept[name])
    fresh = Cluster().see(*groups, *kept.values())
    for name in ("a", "b", "c", "e"):
        assert policy_of(cluster, name) == policy_of(fresh, name), name
