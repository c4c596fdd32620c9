"""What a JobSet may ask for: levels of scheduling, gangConfig, and what may change while it runs."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.model import builtin
from phalanx.model.gates import Gates
from phalanx.model.rules.jobset_policies import existing_claim_errors

Json = dict[str, Any]
KIND = next(kind for kind in builtin.registry(Gates()).all() if kind.kind == "JobSet")
GANG = {"gang": {}}


def part(name: str, replicas: int = 2, size: int = 2, priority: str = "", **rest: Any) -> Json:
    pod: Json = {"containers": [{"name": "c", "image": "i"}]}
    if priority:
        pod["priorityClassName"] = priority
    spec = {"parallelism": size, "completions": size, "template": {"spec": pod}}
    return {"name": name, "replicas": replicas, "template": {"spec": spec}, **rest}


def jobset(*parts: Json, **spec: Any) -> Json:
    made = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "default"},
        "spec": {"replicatedJobs": list(parts or (part("a"), part("b"))), **spec},
    }
    assert KIND.default is not None
    KIND.default(made)
    return made


def problems(made: Json) -> str:
    assert KIND.validate_create is not None
    return "; ".join(map(str, KIND.validate_create(made)))


def entries(*targets: list[str], **rest: Any) -> Json:
    return {"replicatedJobs": [{"targetReplicatedJobs": names, **rest} for names in targets]}


@pytest.mark.parametrize(
    "scheduling",
    [
        {},
        {"schedulingPolicy": GANG},
        {"schedulingPolicy": {"gang": {"minCount": 8}}, "disruptionMode": {"all": {}}},
        {"schedulingPolicy": {"basic": {}}, "schedulingConstraints": {"topology": [{"key": "rack"}]}},
        entries(["a"], ["b"]),
        entries(["a", "b"], schedulingPolicy={"gang": {"minCount": 8}}),
        entries(["a"], ["b"], job={"schedulingPolicy": {"gang": {"minCount": 2}}}),
    ],
)
def test_levels_that_are_accepted(scheduling: Json) -> None:
    assert problems(jobset(scheduling=scheduling)) == ""


@pytest.mark.parametrize(
    ("scheduling", "words"),
    [
        ({"schedulingPolicy": GANG, **entries(["a"], ["b"])}, "together with fields of the whole JobSet"),
        (entries(["a"]), "every replicatedJob must be a target, missing: b"),
        (entries(["a"], ["a", "b"]), "Duplicate value"),
        (entries(["a"], ["b", "c"]), "must be the name of a replicatedJob"),
        (entries([], ["a", "b"]), "Required value"),
        ({"schedulingPolicy": {"gang": {"minCount": 9}}}, "must not be greater than its pods (8)"),
        (entries(["a"], ["b"], schedulingPolicy={"gang": {"minCount": 5}}), "must not be greater than its pods (4)"),
        (entries(["a"], ["b"], job={"schedulingPolicy": {"gang": {"minCount": 3}}}), "greater than its pods (2)"),
        ({"schedulingPolicy": {"gang": {"minCount": -1}}}, "greater than or equal to 0"),
        (entries(["a"], ["b"], job={}, disruptionMode={"all": {}}), "together with fields of the whole entry"),
        (entries(["a", "b"], job={}), "exactly one target"),
        ({"schedulingPolicy": {"basic": {}}, "disruptionMode": {"all": {}}}, "not supported with the Basic"),
        ({"schedulingPolicy": {}}, "must specify one of"),
    ],
)
def test_levels_that_are_refused(scheduling: Json, words: str) -> None:
    assert words in problems(jobset(scheduling=scheduling))


def test_one_group_has_one_priority() -> None:
    parts = (part("a"), part("b", priority="high"))
    assert "same priorityClassName" in problems(jobset(*parts, scheduling={"schedulingPolicy": GANG}))
    assert "same priorityClassName" in problems(jobset(*parts, scheduling=entries(["a", "b"])))


def test_parts_that_start_in_turn_have_no_count_of_the_whole() -> None:
    after = part("b", dependsOn=[{"name": "a", "status": "Ready"}])
    asked = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    assert "start one after another" in problems(jobset(part("a"), after, scheduling=asked))
    assert problems(jobset(part("a"), after, scheduling={"schedulingPolicy": GANG})) == ""


@pytest.mark.parametrize(
    ("spec", "mode", "words"),
    [
        ({"gangConfig": {"gangMode": "Gang"}}, "Gang", "may not be set when spec.gangConfig is set"),
        ({"gangConfig": {"gangMode": "Off"}}, "Gang", ""),
        ({"gangConfig": {"gangMode": "Gang"}}, "Off", ""),
        ({"gangConfig": {"gangMode": "ReplicatedGang"}}, "", "Unsupported value"),
        ({}, "ReplicatedGang", ""),
        ({}, "Everything", "Unsupported value"),
        ({"scheduling": {"schedulingPolicy": GANG}}, "Gang", "together with gangConfig"),
    ],
)
def test_gang_config_is_for_one_level(spec: Json, mode: str, words: str) -> None:
    own = {"gangConfig": {"gangMode": mode}} if mode else {}
    found = problems(jobset(part("a", **own), **copy.deepcopy(spec)))
    assert words in found and bool(words) == bool(found)


def changed(**edits: Any) -> str:
    """What an update of a running (or suspended) set is answered."""
    suspended = edits.pop("suspended", False)
    old = jobset(suspend=suspended, scheduling={"schedulingPolicy": GANG})
    new = copy.deepcopy(old)
    for path, value in edits.items():
        holder = new["spec"]
        *way, last = [int(step) if step.isdecimal() else step for step in path.split("__")]
        for step in way:
            holder = holder[step]
        holder[last] = value
    assert KIND.validate_update is not None
    return "; ".join(map(str, KIND.validate_update(new, old)))


JOB = "replicatedJobs__0__template__spec"


def test_what_may_change() -> None:
    size = {f"{JOB}__parallelism": 3, f"{JOB}__completions": 3}
    assert changed(**size) == ""
    assert "must be equal" in changed(**{f"{JOB}__parallelism": 3})  # a size is both
    assert "parallelism must be >= 1" in changed(**{f"{JOB}__parallelism": 0, f"{JOB}__completions": 0})
    assert "immutable" in changed(replicatedJobs__0__replicas=5)
    selector = {f"{JOB}__template__spec__nodeSelector": {"pool": "x"}}
    assert changed(**selector, suspended=True) == ""
    assert "immutable" in changed(**selector)
    assert "only while the JobSet is suspended" in changed(scheduling={"schedulingPolicy": {"basic": {}}})
    assert changed(scheduling={"schedulingPolicy": {"basic": {}}}, suspended=True) == ""
    assert "immutable" in changed(gangConfig={"gangMode": "Gang"})


def test_shrinking_below_the_count_is_refused() -> None:
    old = jobset(scheduling={"schedulingPolicy": {"gang": {"minCount": 8}}})
    new = copy.deepcopy(old)
    new["spec"]["replicatedJobs"][0]["template"]["spec"] |= {"parallelism": 1, "completions": 1}
    assert KIND.validate_update is not None
    assert "must not be greater than its pods (6)" in "; ".join(map(str, KIND.validate_update(new, old)))


def test_the_size_of_a_finished_set_cannot_change() -> None:
    old = jobset() | {"status": {"conditions": [{"type": "Completed", "status": "True"}]}}
    new = copy.deepcopy(old)
    new["spec"]["replicatedJobs"][0]["template"]["spec"] |= {"parallelism": 4, "completions": 4}
    assert KIND.validate_update is not None
    assert "completed or failed" in "; ".join(map(str, KIND.validate_update(new, old)))


def test_a_template_without_counts_is_a_job_of_one_pod() -> None:
    bare = part("a")
    del bare["template"]["spec"]["parallelism"], bare["template"]["spec"]["completions"]
    assert problems(jobset(bare)) == ""


def mounting(*names: str, **pod: Any) -> Json:
    made = part("a", replicas=1)
    spec = made["template"]["spec"]["template"]["spec"]
    spec["containers"][0]["volumeMounts"] = [{"name": name, "mountPath": f"/{name}"} for name in names]
    spec |= pod
    return made


def claims(*names: str, **meta: str) -> list[Json]:
    return [{"templates": [{"metadata": {"name": name, **meta}} for name in names]}]


INDEXED = {"replicatedJob": "a", "jobIndex": 0, "podIndex": 0}
IN_PLACE = {"restartStrategy": "InPlaceRestart"}


def with_job(**fields: Any) -> Json:
    made = part("a")
    made["template"]["spec"] |= fields
    return made


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (jobset(coordinator={**INDEXED, "replicatedJob": "x"}), "must be the name of a replicatedJob"),
        (jobset(coordinator={}), "spec.coordinator.replicatedJob: Required value"),
        (jobset(coordinator={**INDEXED, "jobIndex": 2}), "must be the index of a Job"),
        (jobset(coordinator={**INDEXED, "jobIndex": -1}), "must be the index of a Job"),
        (jobset(coordinator={**INDEXED, "podIndex": 2}), "must be a completion index"),
        (jobset(with_job(completionMode="NonIndexed"), coordinator=INDEXED), "must be an Indexed Job"),
        (jobset(coordinator=INDEXED, network={"subdomain": "s" * 60}), "no valid label value"),
        (jobset(managedBy="me"), "domain-prefixed path"),
        (jobset(managedBy="Acme.io/me"), "subdomain"),
        (jobset(managedBy="acme.io/a b"), "must match"),
        (jobset(managedBy="acme.io/" + "x" * 60), "may not be more than 63 bytes"),
        (jobset(network={"subdomain": "a.b"}), "spec.network.subdomain"),
        (jobset(network={"subdomain": "s" * 64}), "spec.network.subdomain"),
        (jobset(part("a"), part("b", dependsOn=[{"name": "a", "status": "Ready"}] * 2)), "Duplicate value"),
        (jobset(part("a", replicas=1025), failurePolicy={"rules": [{"action": "RestartJob"}]}), "must not exceed 1024"),
        (jobset(failurePolicy=IN_PLACE), "backoffLimit"),
        (jobset(failurePolicy=IN_PLACE), "podReplacementPolicy"),
        (jobset(with_job(completions=None), failurePolicy=IN_PLACE), "equal to parallelism"),
        (jobset(mounting("d"), volumeClaimPolicies=claims("d") * 51), "must have at most 50 items"),
        (jobset(mounting("d"), volumeClaimPolicies=claims(*["d"] * 51)), "must have at most 50 items"),
        (jobset(mounting("d"), volumeClaimPolicies=claims("d", "d")), "Duplicate value"),
        (jobset(mounting("d"), volumeClaimPolicies=claims("d", namespace="x")), "namespace: Forbidden"),
        (jobset(mounting("x"), volumeClaimPolicies=claims("d")), "must be mounted"),
        (jobset(mounting("d" * 61), volumeClaimPolicies=claims("d" * 61)), "at most 63 characters"),
        (
            jobset(mounting("d", volumes=[{"name": "d", "emptyDir": {}}]), volumeClaimPolicies=claims("d")),
            "is the name of a shared claim",
        ),
        (
            jobset(
                mounting("d"), volumeClaimPolicies=[{**claims("d")[0], "retentionPolicy": {"whenDeleted": "Recycle"}}]
            ),
            "Unsupported value",
        ),
    ],
)
def test_what_is_refused(made: Json, words: str) -> None:
    assert words in problems(made)


def test_what_upstream_accepts_is_accepted() -> None:
    in_place = with_job(backoffLimit=2**31 - 1, podReplacementPolicy="Failed")
    for made in (
        jobset(coordinator={**INDEXED, "jobIndex": 1, "podIndex": 1}),
        jobset(managedBy="acme.io/me"),
        jobset(in_place, failurePolicy=IN_PLACE),
        jobset(part("a", replicas=1024), failurePolicy={"rules": [{"action": "RestartJob"}]}),
        jobset(mounting("d"), volumeClaimPolicies=claims("d")),
    ):
        assert problems(made) == ""


@pytest.mark.parametrize(("kept", "size", "count"), [("Retain", "1Gi", 0), ("Delete", "1Gi", 1), ("Delete", "2Gi", 2)])
def test_a_claim_that_exists_must_be_the_same_and_stay(kept: str, size: str, count: int) -> None:
    def spec(amount: str) -> Json:
        return {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": amount}}}

    template = {"metadata": {"name": "d"}, "spec": spec(size)}
    policy = {"templates": [template], "retentionPolicy": {"whenDeleted": kept}}
    there = {"d-js": {"spec": {**spec("1Gi"), "volumeMode": "Filesystem"}}}
    assert len(existing_claim_errors(jobset(mounting("d"), volumeClaimPolicies=[policy]), there.get)) == count
    assert existing_claim_errors(jobset(mounting("d"), volumeClaimPolicies=[policy]), lambda name: None) == []
