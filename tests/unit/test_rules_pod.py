"""Pods are defaulted, refused and frozen as a Kubernetes user expects."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

from phalanx.model.gates import Gates
from support.rules import rules_for

RULES = rules_for("pods", Gates())
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def pod(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [{"name": "c", "image": "busybox"}], **copy.deepcopy(spec)},
    }


def born(obj: dict[str, Any], gates: Gates | None = None) -> tuple[dict[str, Any], list[str]]:
    rules = rules_for("pods", gates) if gates else RULES
    assert rules.default and rules.prepare_create and rules.validate_create
    rules.default(obj)
    rules.prepare_create(obj)
    return obj, [str(error) for error in rules.validate_create(obj)]


def errors(**spec: Any) -> list[str]:
    return born(pod(**spec))[1]


def changed(old: dict[str, Any], **spec: Any) -> list[str]:
    assert RULES.default and RULES.prepare_update and RULES.validate_update
    new = copy.deepcopy(old)
    new["spec"].update(copy.deepcopy(spec))
    for name in [name for name, value in new["spec"].items() if value is None]:
        del new["spec"][name]
    RULES.default(new)
    RULES.prepare_update(new, old)
    return [str(error) for error in RULES.validate_update(new, old)]


def test_a_small_pod_is_completed() -> None:
    obj, problems = born(
        pod(
            containers=[{"name": "c", "image": "busybox:1.36", "resources": {"limits": {"cpu": "1"}}}],
            volumes=[{"name": "v"}],
        )
    )
    assert problems == []
    assert obj["spec"] == {
        "containers": [
            {
                "name": "c",
                "image": "busybox:1.36",
                "imagePullPolicy": "IfNotPresent",
                "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "dnsPolicy": "ClusterFirst",
        "enableServiceLinks": True,
        "restartPolicy": "Always",
        "schedulerName": "default-scheduler",
        "securityContext": {},
        "terminationGracePeriodSeconds": 30,
        "volumes": [{"name": "v", "emptyDir": {}}],
    }
    assert obj["status"] == {"phase": "Pending", "qosClass": "Burstable"}


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("a", "Always"),
        ("a:latest", "Always"),
        ("a:1", "IfNotPresent"),
        ("h:5000/a", "Always"),
        ("a@sha256:0", "IfNotPresent"),
    ],
)
def test_pull_policy_follows_the_tag(image: str, policy: str) -> None:
    obj, _ = born(pod(containers=[{"name": "c", "image": image}]))
    assert obj["spec"]["containers"][0]["imagePullPolicy"] == policy


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}, "Burstable"),
        ({"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": 1}}, "BestEffort"),
    ],
)
def test_quality_of_service(resources: dict[str, Any], quality: str) -> None:
    obj, problems = born(pod(containers=[{"name": "c", "image": "i", "resources": resources}]))
    assert (obj["status"]["qosClass"], problems) == (quality, [])


def container(**more: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "i", **more}]}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": []}, ["spec.containers: Required value"]),
        (
            {"containers": [{"name": "c", "image": "i"}, {"name": "c"}]},
            ["spec.containers[1].image: Required value", 'spec.containers[1].name: Duplicate value: "c"'],
        ),
        (
            container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
            ['spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'],
        ),
        (
            container(resources={"requests": {"cpu": "-1"}}),
            ['spec.containers[0].resources.requests[cpu]: Invalid value: "-1": must be greater than or equal to 0'],
        ),
        (
            container(resources={"limits": {"example.com/gpu": "1500m"}}),
            [
                'spec.containers[0].resources.limits[example.com/gpu]: Invalid value: "1500m": must be an integer',
                'spec.containers[0].resources.requests[example.com/gpu]: Invalid value: "1500m": must be an integer',
            ],
        ),
        (
            {"restartPolicy": "Sometimes"},
            ['spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"'],
        ),
        (
            {"tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]},
            ["spec.tolerations[0].operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'"],
        ),
        (
            {"topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
            ["spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero"],
        ),
        (
            {"affinity": {"podAffinity": {REQUIRED: [{"topologyKey": "z"}]}}},
            [],
        ),
        (
            {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}},
            [
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: "
                "Required value: must have at least one node selector term"
            ],
        ),
        (container(volumeMounts=[{"name": "x", "mountPath": "/x"}]),
         ['spec.containers[0].volumeMounts[0].name: Not found: "x"']),
        (
            {"schedulingGates": [{"name": "g"}], "nodeName": "n1"},
            ["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"],
        ),
        (
            {"schedulingGroup": {}},
            ["spec.schedulingGroup.podGroupName: Invalid value: null: must specify one of: `podGroupName`"],
        ),
        (
            {"workloadRef": {"name": "w", "podGroup": "a.b", "podGroupReplicaKey": "k"}},
            ['spec.workloadRef.podGroup: Invalid value: "a.b": must not contain dots'],
        ),
        ({"workloadRef": {"name": "w"}}, ["spec.workloadRef.podGroup: Required value"]),
        (
            {"workloadRef": {"name": "w", "podGroup": "g"}, "schedulingGroup": {"podGroupName": "g"}},
            ["spec.workloadRef: Forbidden: may not be set when schedulingGroup is set"],
        ),
    ],
)  # fmt: skip
def test_pods_that_make_no_sense_are_refused(spec: dict[str, Any], expected: list[str]) -> None:
    assert errors(**spec) == expected


def test_group_membership_leaves_with_its_gate_but_is_kept_where_it_is_stored() -> None:
    off = Gates({"GenericWorkload": False})
    obj, problems = born(pod(schedulingGroup={"podGroupName": "g"}), off)
    assert problems == [] and "schedulingGroup" not in obj["spec"]
    stored, _ = born(pod(schedulingGroup={"podGroupName": "g"}))
    rules = rules_for("pods", off)
    assert rules.prepare_update
    new = copy.deepcopy(stored)
    rules.prepare_update(new, stored)
    assert new["spec"]["schedulingGroup"] == {"podGroupName": "g"}


def test_most_of_a_pod_never_changes() -> None:
    old, _ = born(pod(schedulingGroup={"podGroupName": "g"}, tolerations=[{"key": "a", "operator": "Exists"}]))
    for spec in (
        {"schedulingGroup": {"podGroupName": "other"}},
        {"schedulingGroup": None},
        {"nodeName": "n1"},
        {"nodeSelector": {"a": "b"}},
        {"priority": 3},
    ):
        (error,) = changed(old, **spec)
        assert error.startswith(
            "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
            "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions "
            "to existing tolerations),`spec.terminationGracePeriodSeconds` "
            "(allow it to be set to 1 if it was previously negative)\n"
        )
    image = [{**old["spec"]["containers"][0], "image": "busybox:2"}]
    assert changed(old, containers=image) == []
    assert changed(old, activeDeadlineSeconds=5) == []
    assert changed(old, tolerations=[{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]) == []
    assert changed(old, tolerations=[{"key": "b", "operator": "Exists"}]) == [
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
    ]
    assert changed(old, schedulingGates=[{"name": "g"}]) == [
        "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'g'"
    ]
    assert changed(old, containers=old["spec"]["containers"] + [{"name": "d", "image": "i"}]) == [
        "spec.containers: Forbidden: pod updates may not add or remove containers"
    ]


def test_a_gated_pod_may_become_choosier() -> None:
    terms = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    old, _ = born(pod(schedulingGates=[{"name": "g"}, {"name": "h"}], nodeSelector={"a": "b"}, affinity=affinity))
    assert changed(old, schedulingGates=[{"name": "h"}]) == []
    assert changed(old, schedulingGates=None) == []
    assert changed(old, nodeSelector={"a": "b", "c": "d"}) == []
    assert changed(old, nodeSelector={"c": "d"}) == [
        'spec.nodeSelector: Invalid value: {"c":"d"}: '
        "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
    ]
    stricter = copy.deepcopy(affinity)
    chosen = stricter["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    chosen[0]["matchExpressions"].append({"key": "b", "operator": "Exists"})
    assert changed(old, affinity=stricter) == []
    chosen.append({"matchExpressions": [{"key": "c", "operator": "Exists"}]})
    (error,) = changed(old, affinity=stricter)
    assert error.endswith("no additions/deletions to non-empty NodeSelectorTerms list are allowed")
    bare, _ = born(pod(schedulingGates=[{"name": "g"}]))
    assert changed(bare, affinity=affinity) == []


def test_match_label_keys_become_requirements() -> None:
    obj = pod(
        topologySpreadConstraints=[
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "x"}},
                "matchLabelKeys": ["hash", "absent"],
            }
        ]
    )
    obj["metadata"]["labels"] = {"hash": "1"}
    obj, problems = born(obj)
    selector = obj["spec"]["topologySpreadConstraints"][0]["labelSelector"]
    assert selector["matchExpressions"] == [{"key": "hash", "operator": "In", "values": ["1"]}]
    assert problems == []


def test_status_and_spec_are_written_apart() -> None:
    assert RULES.prepare_status and RULES.validate_status
    old, _ = born(pod())
    new = copy.deepcopy(old)
    new["spec"]["nodeName"] = "n1"
    new["status"] = {"phase": "Running"}
    RULES.prepare_status(new, old)
    assert new["spec"] == old["spec"]
    assert new["status"] == {"phase": "Running", "qosClass": "BestEffort"}
    assert RULES.validate_status(new, old) == []


def test_unknown_labels_and_annotations_are_welcome() -> None:
    obj = pod()
    obj["metadata"] |= {"labels": {"anything.example/goes": "x"}, "annotations": {"Some/Key": "{}" * 100}}
    assert born(obj)[1] == []
    obj["metadata"]["annotations"]["big"] = "x" * (256 * 1024)
    assert born(obj)[1] == ["metadata.annotations: Too long: may not be more than 262144 bytes"]


def test_checking_a_small_pod_is_cheap() -> None:
    """Rules run on every write: the bound is generous, the usual figure is printed by -s."""
    obj, problems = born(
        pod(containers=[{"name": "c", "image": "i", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}])
    )
    assert problems == [] and RULES.validate_create
    best = min(_timed(lambda: RULES.validate_create(obj)) for _ in range(5))
    print(f"validate_create: {best * 1e6:.1f} µs")
    assert best < 1e-3


def _timed(call: Any, rounds: int = 200) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - start) / rounds


def test_names_of_kernel_settings_are_looked_at() -> None:
    def announced(*found: str, **spec: Any) -> list[str]:
        return errors(securityContext={"sysctls": [{"name": name, "value": "1"} for name in found]}, **spec)

    assert announced("kernel.shm_rmid_forced", "net/ipv4/ip_forward") == []
    at = "spec.securityContext.sysctls"
    assert announced("foo-", "") == [
        f'{at}[0].name: Invalid value: "foo-": must have at most 253 characters and match regex '
        r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$",
        f"{at}[1].name: Required value",
    ]
    assert announced("a.b", "a.b") == [f'{at}[1].name: Duplicate value: "a.b"']
    host = f"{at}[0].name: Invalid value: \"net.core.x\": may not be specified when 'hostNetwork' is true"
    assert announced("net.core.x", hostNetwork=True) == [host]


def test_a_host_name_override_is_a_name_of_64_bytes_and_of_no_host_network() -> None:
    assert errors(hostnameOverride="db-0.example") == []
    assert errors(hostnameOverride="a", hostNetwork=True) == [
        "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true"
    ]
    assert errors(hostnameOverride="a", setHostnameAsFQDN=True) == [
        "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true"
    ]
    assert errors(hostnameOverride="a" * 65) == ["spec.hostnameOverride: Too long: may not be more than 64 bytes"]
    assert "a lowercase RFC 1123 subdomain" in errors(hostnameOverride="Not_A_Name")[0]
