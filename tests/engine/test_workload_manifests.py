"""What `phalanx whatif` makes of every kind of workload: the groups and pods that the cluster would get."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from phalanx.base.errors import BadRequest
from phalanx.engine.groups.rank_order import ranks_of
from phalanx.engine.state.records import PodRecord
from phalanx.model.gates import Gates
from phalanx.model.groups.policy import Policy
from phalanx.serve.queries.manifests import Manifests

EXAMPLES = Path(__file__).parents[2] / "examples"


def asked(name):
    manifests = Manifests(Gates(), [])
    manifests.read([doc for doc in yaml.safe_load_all((EXAMPLES / name).read_text()) if doc], "default")
    return manifests


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_every_example_is_a_question_with_pods(name):
    manifests = asked(name)
    assert manifests.question.pods
    assert not [note for note in manifests.notes if "not known" in note]


@pytest.mark.parametrize(
    ("name", "pods", "minimum"),
    [
        ("statefulset-gang.yaml", 3, 3),
        ("cronjob-gang.yaml", 3, 3),
        ("mpijob.yaml", 5, 5),
        ("job-gang.yaml", 4, 4),
    ],
)
def test_pods_of_a_gang_are_asked_for_as_a_gang(name, pods, minimum):
    question = asked(name).question
    (group,) = question.pod_groups
    assert group.spec.scheduling_policy.gang.min_count == minimum
    assert [pod.spec.scheduling_group.pod_group_name for pod in question.pods] == [group.metadata.name] * pods


def test_a_train_job_is_counted_by_its_runtime():
    question = asked("trainjob.yaml").question
    groups = {group.metadata.name: group.spec.scheduling_policy.gang.min_count for group in question.pod_groups}
    members = [pod.spec.scheduling_group.pod_group_name for pod in question.pods]
    assert {name: members.count(name) for name in groups} == groups


def test_a_deployment_is_asked_for_in_its_rack():
    question = asked("deployment-basic.yaml").question
    (group,) = question.pod_groups
    assert group.spec.scheduling_constraints.topology[0].key == "topology.phalanx.dev/rack"
    assert all(pod.spec.scheduling_group.pod_group_name == group.metadata.name for pod in question.pods)


def test_beside_the_scheduler_of_a_real_cluster_grouped_pods_are_asked_about_as_ours():
    """They are sent to us by the webhook when they are made: a manifest says nothing of a scheduler."""

    def names(document, schedulers=("phalanx",)):
        manifests = Manifests(Gates(), [], schedulers)
        manifests.read([document], "default")
        return {pod.spec.scheduler_name for pod in manifests.question.pods}, manifests.notes

    gang = yaml.safe_load((EXAMPLES / "statefulset-gang.yaml").read_text())
    found, notes = names(gang)
    assert found == {"phalanx"} and any("grouped pods are asked about as pods of phalanx" in note for note in notes)
    assert names(gang, ("default-scheduler",)) == ({"default-scheduler"}, [])
    gang["metadata"]["annotations"]["scheduling.phalanx.dev/scheduler-name"] = "other"
    assert names(gang)[0] == {"other"}
    gang["spec"]["template"]["spec"]["schedulerName"] = "own"
    assert names(gang)[0] == {"own"}
    del gang["metadata"]["annotations"], gang["spec"]["template"]["spec"]["schedulerName"]
    assert names(gang)[0] == {"default-scheduler"}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "ReplicaSet"])
def test_an_enormous_number_of_pods_is_refused_before_any_of_them_is_made(kind: str) -> None:
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 2**31 - 1, "selector": {"matchLabels": labels}, "template": template, "serviceName": "x"}
    manifests = Manifests(Gates(), [])
    with pytest.raises(BadRequest, match="more than 20000 pods in one query"):
        manifests.read([{"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": "x"}, "spec": spec}], "default")
    assert not manifests.question.pods


@pytest.mark.parametrize(
    "name",
    [
        "statefulset-gang.yaml",
        "job-indexed.yaml",
        "jobset-gang.yaml",
        "lws-rolling-update.yaml",
        "mpijob.yaml",
        "pytorchjob.yaml",
        "trainjob.yaml",
    ],
)
def test_pods_have_the_ranks_that_their_controller_would_give_them(name: str) -> None:
    pods = [PodRecord(pod, None, 0, 0.0) for pod in asked(name).question.pods]
    by_group: dict[str, list[PodRecord]] = {}
    for record in pods:
        spec = record.pod.spec
        by_group.setdefault(str(spec.scheduling_group or spec.workload_ref), []).append(record)
    assert by_group
    for members in by_group.values():
        ranks = ranks_of(members, Policy())
        assert not ranks.problems
        assert sorted(ranks.of.values()) == sorted(set(ranks.of.values()))
        assert len(ranks.of) == len(members)


def test_groups_of_a_cluster_where_they_are_custom_resources_are_read_like_native_ones() -> None:
    api = "scheduling.phalanx.dev/v1beta1"
    spec = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    group = {"apiVersion": api, "kind": "PodGroup", "metadata": {"name": "g"}, "spec": spec}
    manifests = Manifests(Gates(), [])
    manifests.read([group], "default")
    (found,) = manifests.question.pod_groups
    assert found.spec.scheduling_policy.gang.min_count == 2 and manifests.notes == []
