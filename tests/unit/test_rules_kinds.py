"""Core, apps, batch, storage, JobSet and LeaderWorkerSet objects: completed, refused and frozen as users expect."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.model.gates import Gates
from support.rules import rules_for

Obj = dict[str, Any]


def born(key: str, obj: Obj, gates: Gates | None = None, name: str = "a") -> tuple[Obj, list[str]]:
    rules = rules_for(key, gates or Gates())
    new = copy.deepcopy(obj)
    new.setdefault("metadata", {"name": name, "uid": "u-1"})
    if rules.default:
        rules.default(new)
    if rules.prepare_create:
        rules.prepare_create(new)
    assert rules.validate_create
    return new, [str(error) for error in rules.validate_create(new)]


def changed(key: str, old: Obj, *path: str, to: Any, gates: Gates | None = None) -> list[str]:
    rules = rules_for(key, gates or Gates())
    new = copy.deepcopy(old)
    holder = new
    for name in path[:-1]:
        holder = holder[int(name)] if isinstance(holder, list) else holder.setdefault(name, {})
    if to is None:
        holder.pop(path[-1], None)
    else:
        holder[path[-1]] = to
    if rules.default:
        rules.default(new)
    assert rules.prepare_update and rules.validate_update
    rules.prepare_update(new, old)
    return [str(error) for error in rules.validate_update(new, old)]


POD = {"containers": [{"name": "c", "image": "i"}]}


def template(labels: dict[str, str] | None = None, **spec: Any) -> Obj:
    return {"metadata": {"labels": labels or {"app": "x"}}, "spec": {**POD, **spec}}


APP: Obj = {"spec": {"selector": {"matchLabels": {"app": "x"}}, "template": template()}}
IMMUTABLE = "field is immutable"


CLAIM: Obj = {
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
}


def stateful_set(mounted: str, **pod: Any) -> Obj:
    container = {"name": "c", "image": "i", "volumeMounts": [{"name": mounted, "mountPath": "/data"}]}
    spec = {**APP["spec"], "template": template(containers=[container], **pod), "volumeClaimTemplates": [CLAIM]}
    return {"spec": spec}


def test_pods_of_a_stateful_set_mount_its_claim_templates() -> None:
    assert born("statefulsets.apps", stateful_set("data"))[1] == []
    # A volume of the template by the same name gives way to the claim.
    assert born("statefulsets.apps", stateful_set("data", volumes=[{"name": "data", "emptyDir": {}}]))[1] == []
    errors = born("statefulsets.apps", stateful_set("other"))[1]
    assert errors == ['spec.template.spec.containers[0].volumeMounts[0].name: Not found: "other"']


def test_deployment_is_completed() -> None:
    obj, errors = born("deployments.apps", APP)
    assert errors == []
    spec = obj["spec"]
    assert (spec["replicas"], spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (1, 10, 600)
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}}
    assert spec["template"]["spec"]["restartPolicy"] == "Always"
    assert "enableServiceLinks" not in spec["template"]["spec"]


def test_stateful_and_daemon_sets_are_completed() -> None:
    obj, errors = born("statefulsets.apps", APP)
    assert errors == []
    assert obj["spec"]["podManagementPolicy"] == "OrderedReady"
    rolling = {"partition": 0, "maxUnavailable": 1}
    assert obj["spec"]["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": rolling}
    obj, errors = born("daemonsets.apps", APP)
    assert errors == []
    assert obj["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}


@pytest.mark.parametrize("key", ["deployments.apps", "replicasets.apps", "statefulsets.apps", "daemonsets.apps"])
def test_selectors_match_their_templates_and_stay(key: str) -> None:
    bad = copy.deepcopy(APP)
    bad["spec"]["template"]["metadata"]["labels"] = {"app": "y"}
    assert born(key, bad)[1] == [
        'spec.template.metadata.labels: Invalid value: {"app":"y"}: `selector` does not match template `labels`'
    ]
    del bad["spec"]["selector"]
    assert "spec.selector: Required value" in born(key, bad)[1]
    old, _ = born(key, APP)
    errors = changed(key, old, "spec", "selector", to={"matchLabels": {"app": "x", "b": "c"}})
    assert any(IMMUTABLE in error or "are forbidden" in error for error in errors)
    assert changed(key, old, "metadata", "labels", to={"a": "b"}) == []
    never = copy.deepcopy(APP)
    never["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    assert born(key, never)[1] == [
        'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'
    ]


def test_stateful_set_says_what_may_change() -> None:
    old, _ = born("statefulsets.apps", APP)
    assert changed("statefulsets.apps", old, "spec", "replicas", to=4) == []
    (error,) = changed("statefulsets.apps", old, "spec", "serviceName", to="other")
    assert error == 'spec.serviceName: Invalid value: "other": field is immutable'
    (error,) = changed("statefulsets.apps", old, "spec", "podManagementPolicy", to="Parallel")
    assert error == 'spec.podManagementPolicy: Invalid value: "Parallel": field is immutable'
    (error,) = changed("statefulsets.apps", old, "spec", "replicas", to=-1)
    assert error == "spec.replicas: Invalid value: -1: must be greater than or equal to 0"


JOB: Obj = {"spec": {"parallelism": 4, "template": template({"a": "b"}, restartPolicy="Never")}}


def test_job_is_completed_and_selects_its_own_pods() -> None:
    obj, errors = born("jobs.batch", {"spec": {"template": {"spec": {**POD, "restartPolicy": "Never"}}}})
    assert errors == []
    spec = obj["spec"]
    assert (spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (1, 1, 6)
    assert (spec["completionMode"], spec["podReplacementPolicy"], spec["suspend"]) == (
        "NonIndexed",
        "TerminatingOrFailed",
        False,
    )
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}}
    assert spec["template"]["metadata"]["labels"] == {
        "batch.kubernetes.io/controller-uid": "u-1",
        "batch.kubernetes.io/job-name": "a",
        "controller-uid": "u-1",
        "job-name": "a",
    }
    always = {"spec": {"template": {"spec": POD}}}
    assert born("jobs.batch", always)[1] == [
        'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'
    ]


def job_with(**scheduling: Any) -> Obj:
    obj = copy.deepcopy(JOB)
    obj["spec"]["scheduling"] = scheduling
    return obj


def test_job_scheduling_rules() -> None:
    gang = {"gang": {"minCount": 4}}
    assert born("jobs.batch", job_with(schedulingPolicy=gang, disruptionMode={"all": {}}))[1] == []
    assert born("jobs.batch", job_with(schedulingPolicy={"gang": {}}))[1] == []
    assert born("jobs.batch", job_with(schedulingPolicy={"gang": {"minCount": 5}}))[1] == [
        "spec.scheduling.schedulingPolicy.gang.minCount: Invalid value: 5: must not be greater than parallelism (4)"
    ]
    assert born("jobs.batch", job_with(disruptionMode={"all": {}}))[1] == [
        'spec.scheduling.disruptionMode: Invalid value: "": '
        "the disruptionMode `all` is not supported with the Basic scheduling policy"
    ]
    old, _ = born("jobs.batch", job_with(schedulingPolicy=gang))
    where = ("spec", "scheduling", "schedulingPolicy")
    assert changed("jobs.batch", old, *where, to={"gang": {"minCount": 2}}) == []
    assert changed("jobs.batch", old, *where, to={"basic": {}}) == [
        "spec.scheduling.schedulingPolicy: Invalid value: null: "
        "the basic/gang policy variant is immutable after creation; only schedulingPolicy.gang.minCount may be updated"
    ]
    assert changed("jobs.batch", old, "spec", "parallelism", to=3) == [
        "spec.scheduling.schedulingPolicy.gang.minCount: Invalid value: 4: must not be greater than parallelism (3)"
    ]
    assert changed("jobs.batch", old, "spec", "scheduling", to=None) == [
        "spec.scheduling: Invalid value: null: field cannot be cleared once set"
    ]
    off, errors = born("jobs.batch", job_with(schedulingPolicy=gang), Gates({"WorkloadWithJob": False}))
    assert errors == [] and "scheduling" not in off["spec"]


def test_a_suspended_job_may_ask_for_other_resources_and_go_elsewhere_until_its_pods_run() -> None:
    suspended = copy.deepcopy(JOB)
    suspended["spec"]["suspend"] = True
    old, _ = born("jobs.batch", suspended)
    pod = ("spec", "template", "spec")
    started = {"startTime": "2026-01-01T00:00:00Z", "conditions": [{"type": "Suspended", "status": "True"}]}
    for status in ({}, started):  # never started, or suspended again and empty
        old["status"] = status
        assert changed("jobs.batch", old, *pod, "containers", "0", "resources", to={"requests": {"cpu": "1"}}) == []
        assert changed("jobs.batch", old, *pod, "nodeSelector", to={"a": "b"}) == []
        node = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
        assert changed("jobs.batch", old, *pod, "affinity", to=node) == []
        errors = changed("jobs.batch", old, *pod, "containers", "0", "image", to="other")
        assert errors and errors[0].startswith("spec.template.spec: Invalid value") and IMMUTABLE in errors[0]
        assert changed("jobs.batch", old, *pod, "affinity", to={"podAffinity": {}})
    for status in ({**started, "active": 1}, {**started, "conditions": []}):  # pods still run, or may
        old["status"] = status
        assert IMMUTABLE in changed("jobs.batch", old, *pod, "nodeSelector", to={"a": "b"})[0]
        resources = {"requests": {"cpu": "1"}}
        assert IMMUTABLE in changed("jobs.batch", old, *pod, "containers", "0", "resources", to=resources)[0]


def test_job_template_is_fixed_unless_suspended_before_its_start() -> None:
    old, _ = born("jobs.batch", JOB)
    (error,) = changed("jobs.batch", old, "spec", "template", "spec", "nodeSelector", to={"a": "b"})
    assert error.startswith("spec.template: Invalid value: ") and error.endswith(IMMUTABLE)
    suspended = copy.deepcopy(JOB)
    suspended["spec"]["suspend"] = True
    old, _ = born("jobs.batch", suspended)
    assert changed("jobs.batch", old, "spec", "template", "spec", "nodeSelector", to={"a": "b"}) == []
    assert changed("jobs.batch", old, "spec", "template", "spec", "hostNetwork", to=True) != []


def test_group_membership_leaves_pod_templates_with_its_gate() -> None:
    off = Gates({"GenericWorkload": False})
    grouped = {"schedulingGroup": {"podGroupName": "g"}}
    obj, _ = born("jobs.batch", {"spec": {"template": template(restartPolicy="Never", **grouped)}}, off)
    assert "schedulingGroup" not in obj["spec"]["template"]["spec"]
    app = copy.deepcopy(APP)
    app["spec"]["template"]["spec"] |= grouped
    assert "schedulingGroup" not in born("deployments.apps", app, off)[0]["spec"]["template"]["spec"]
    assert "schedulingGroup" in born("deployments.apps", app)[0]["spec"]["template"]["spec"]


def test_cron_jobs() -> None:
    good = {
        "spec": {
            "schedule": "*/5 0-6 * * MON-FRI",
            "jobTemplate": {"spec": {"template": template(restartPolicy="Never")}},
        }
    }
    obj, errors = born("cronjobs.batch", good)
    assert errors == []
    assert (obj["spec"]["concurrencyPolicy"], obj["spec"]["successfulJobsHistoryLimit"]) == ("Allow", 3)
    bad = copy.deepcopy(good)
    bad["spec"]["schedule"] = "every day"
    (error,) = born("cronjobs.batch", bad)[1]
    assert error.startswith('spec.schedule: Invalid value: "every day": expected exactly 5 fields, found 2')
    assert born("cronjobs.batch", good, name="a" * 53)[1] != []


def test_priority_classes() -> None:
    obj, errors = born("priorityclasses.scheduling.k8s.io", {"value": 10})
    assert errors == [] and obj["preemptionPolicy"] == "PreemptLowerPriority"
    assert born("priorityclasses.scheduling.k8s.io", {"value": 1000000001})[1] == [
        "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"
    ]
    assert born("priorityclasses.scheduling.k8s.io", {"value": 2000001000}, name="system-node-critical")[1] == []
    (error,) = born("priorityclasses.scheduling.k8s.io", {"value": 1}, name="system-mine")[1]
    assert error.startswith("metadata.name: Forbidden: priority class names with 'system-' prefix are reserved")
    assert changed("priorityclasses.scheduling.k8s.io", obj, "value", to=11) == [
        "value: Forbidden: may not be changed in an update."
    ]


def test_budgets_leases_and_quotas() -> None:
    (error,) = born("poddisruptionbudgets.policy", {"spec": {"minAvailable": 1, "maxUnavailable": "10%"}})[1]
    assert error.endswith("minAvailable and maxUnavailable cannot be both set")
    assert born("poddisruptionbudgets.policy", {"spec": {"minAvailable": "120%"}})[1] == [
        'spec.minAvailable: Invalid value: "120%": must not be greater than 100%'
    ]
    assert born("leases.coordination.k8s.io", {"spec": {"leaseDurationSeconds": 0}})[1] == [
        "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"
    ]
    assert born("resourcequotas", {"spec": {"hard": {"cpu": "-1"}}})[1] != []


def test_namespaces_wait_for_their_content() -> None:
    obj, errors = born("namespaces", {})
    assert errors == []
    assert obj["spec"] == {"finalizers": ["kubernetes"]} and obj["status"] == {"phase": "Active"}
    assert obj["metadata"]["labels"] == {"kubernetes.io/metadata.name": "a"}
    assert born("namespaces", {}, name="a.b")[1] == ['metadata.name: Invalid value: "a.b": must not contain dots']
    rules = rules_for("namespaces", Gates())
    assert rules.prepare_update
    new = {**copy.deepcopy(obj), "spec": {}}
    rules.prepare_update(new, obj)
    assert new["spec"] == {"finalizers": ["kubernetes"]}
    ending = copy.deepcopy(obj)
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    new = {**copy.deepcopy(ending), "spec": {}}
    rules.prepare_update(new, ending)
    assert new["spec"] == {}


def test_nodes_register_with_their_status() -> None:
    obj, errors = born("nodes", {"status": {"capacity": {"cpu": "8"}}})
    assert errors == [] and obj["status"]["allocatable"] == {"cpu": "8"}
    assert born("nodes", {"spec": {"taints": [{"key": "k"}]}})[1] == ["spec.taints[0].effect: Required value"]


def test_configuration_can_be_sealed() -> None:
    old, errors = born("configmaps", {"data": {"k": "v"}, "immutable": True})
    assert errors == []
    assert changed("configmaps", old, "data", "k", to="w") == [
        "data: Forbidden: field is immutable when `immutable` is set"
    ]
    assert born("configmaps", {"data": {"big": "x" * (1024 * 1024 + 1)}})[1] == [
        ": Too long: may not be more than 1048576 bytes"
    ]
    secret, errors = born("secrets", {"stringData": {"k": "v"}})
    assert (
        errors == [] and secret["data"] == {"k": "dg=="} and secret["type"] == "Opaque" and "stringData" not in secret
    )
    assert changed("secrets", secret, "type", to="x") == ['type: Invalid value: "x": field is immutable']


def test_services_get_an_address_and_keep_it() -> None:
    obj, errors = born("services", {"spec": {"ports": [{"port": 80}]}})
    assert errors == []
    assert obj["spec"]["clusterIP"].startswith("10.") and obj["spec"]["ports"][0]["targetPort"] == 80
    assert changed("services", obj, "spec", "clusterIP", to=None) == []
    assert changed("services", obj, "spec", "clusterIP", to="10.0.0.9") != []
    assert born("services", {"spec": {}})[1] == ["spec.ports: Required value"]


def test_claims_and_classes() -> None:
    good = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    claim, errors = born("persistentvolumeclaims", good)
    assert errors == [] and claim["spec"]["volumeMode"] == "Filesystem" and claim["status"] == {"phase": "Pending"}
    assert changed("persistentvolumeclaims", claim, "spec", "volumeName", to="v") == []
    (error,) = changed("persistentvolumeclaims", claim, "spec", "accessModes", to=["ReadWriteMany"])
    assert error.startswith("spec: Forbidden: spec is immutable after creation")
    more = {"requests": {"storage": "2Gi"}}
    (error,) = changed("persistentvolumeclaims", claim, "spec", "resources", to=more)
    assert error.startswith("spec: Forbidden: spec is immutable after creation")
    bound = {**claim, "status": {"phase": "Bound"}}
    assert changed("persistentvolumeclaims", bound, "spec", "resources", to=more) == []
    storage, errors = born("storageclasses.storage.k8s.io", {"provisioner": "example.com/p"})
    assert errors == [] and storage["volumeBindingMode"] == "Immediate"
    assert changed("storageclasses.storage.k8s.io", storage, "provisioner", to="other.com/p") == [
        "provisioner: Invalid value: null: field is immutable"
    ]


# -- JobSet and LeaderWorkerSet --------------------------------------------------------------------------------------

JOBSET = "jobsets.jobset.x-k8s.io"
LWS = "leaderworkersets.leaderworkerset.x-k8s.io"


def replicated(name: str, **more: Any) -> Obj:
    return {"name": name, "template": {"spec": {"parallelism": 2, "completions": 2, "template": {"spec": POD}}}, **more}


def jobset(*jobs: Obj, **spec: Any) -> Obj:
    return {"spec": {"replicatedJobs": list(jobs) or [replicated("w")], **spec}}


def test_jobset_is_completed() -> None:
    obj, errors = born(JOBSET, jobset())
    assert errors == []
    spec = obj["spec"]
    assert spec["successPolicy"] == {"operator": "All"}
    assert spec["network"] == {"enableDNSHostnames": True, "publishNotReadyAddresses": True}
    item = spec["replicatedJobs"][0]
    assert (item["replicas"], item["groupName"]) == (1, "default")
    assert item["template"]["spec"]["completionMode"] == "Indexed"
    assert item["template"]["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_gang_config_is_for_the_set_or_its_parts_and_stays() -> None:
    gang, replicas, off = ({"gangMode": mode} for mode in ("Gang", "ReplicatedGang", "Off"))
    assert born(JOBSET, jobset(replicated("w", gangConfig=replicas)))[1] == []
    assert born(JOBSET, jobset(replicated("w", gangConfig=off), gangConfig=gang))[1] == []
    assert born(JOBSET, jobset(replicated("w", gangConfig=gang), gangConfig=gang))[1] == [
        "spec.replicatedJobs[0].gangConfig: Forbidden: may not be set when spec.gangConfig is set"
    ]
    assert born(JOBSET, jobset(gangConfig=replicas))[1] == [
        'spec.gangConfig.gangMode: Unsupported value: "ReplicatedGang": supported values: "Gang", "Off"'
    ]
    old, _ = born(JOBSET, jobset(replicated("w", gangConfig=gang)))
    new_jobs = copy.deepcopy(old["spec"]["replicatedJobs"])
    new_jobs[0]["gangConfig"] = replicas
    (error,) = changed(JOBSET, old, "spec", "replicatedJobs", to=new_jobs)
    assert error.startswith("spec.replicatedJobs[0].gangConfig: Invalid value: ") and error.endswith(IMMUTABLE)
    (error,) = changed(JOBSET, old, "spec", "gangConfig", to=off)
    assert error.endswith(IMMUTABLE)
    assert changed(JOBSET, old, "spec", "suspend", to=True) == []


@pytest.mark.parametrize(
    ("obj", "start"),
    [
        (jobset(replicated("w", replicas=-1)), "spec.replicatedJobs[0].replicas: Invalid value: -1"),
        (jobset(replicated("w"), replicated("w")), 'spec.replicatedJobs[1]: Duplicate value: "w"'),
        (jobset(replicated("w" * 70)), "spec.replicatedJobs[0].name: Invalid value"),
        (
            jobset(replicated("w", dependsOn=[{"name": "x", "status": "Ready"}])),
            'spec.replicatedJobs[0].dependsOn[0].name: Invalid value: "x"',
        ),
        (jobset(successPolicy={"operator": "Some"}), "spec.successPolicy.operator: Unsupported value"),
        (
            jobset(scheduling={"schedulingPolicy": {"gang": {}}, "replicatedJobs": [{"targetReplicatedJobs": ["w"]}]}),
            "spec.scheduling.replicatedJobs: Forbidden",
        ),
        (
            jobset(scheduling={"replicatedJobs": [{"targetReplicatedJobs": ["x"]}]}),
            "spec.scheduling.replicatedJobs[0].targetReplicatedJobs[0]: Invalid value",
        ),
    ],
)
def test_jobsets_that_cannot_work_are_refused(obj: Obj, start: str) -> None:
    errors = born(JOBSET, obj)[1]
    assert errors and errors[0].startswith(start)


def test_a_suspended_jobset_may_be_steered() -> None:
    old, _ = born(JOBSET, jobset(suspend=True))
    jobs = copy.deepcopy(old["spec"]["replicatedJobs"])
    jobs[0]["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"a": "b"}
    assert changed(JOBSET, old, "spec", "replicatedJobs", to=jobs) == []
    jobs[0]["template"]["spec"]["parallelism"] = 5
    assert changed(JOBSET, old, "spec", "replicatedJobs", to=jobs) != []


def lws(**template: Any) -> Obj:
    return {"spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": POD}, "size": 4, **template}}}


def test_leader_worker_set() -> None:
    obj, errors = born(LWS, lws())
    assert errors == []
    spec = obj["spec"]
    assert (spec["replicas"], spec["startupPolicy"]) == (1, "LeaderCreated")
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert spec["rolloutStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdateConfiguration": {"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
    }
    assert born(LWS, lws(size=0))[1] == [
        "spec.leaderWorkerTemplate.size: Invalid value: 0: must be equal or greater than 1"
    ]
    rolling = {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxUnavailable": "25%", "maxSurge": 0}}
    few = lws()
    few["spec"] |= {"replicas": 2, "rolloutStrategy": rolling}
    (error,) = born(LWS, few)[1]  # a quarter of two groups is none
    assert error.endswith("must not be 0 when `maxSurge` is 0")
    many = lws()
    many["spec"] |= {"replicas": 4, "rolloutStrategy": rolling}
    assert born(LWS, many)[1] == []
    (error,) = born(LWS, lws(subGroupPolicy={"subGroupSize": 3, "subGroupPolicyType": "LeaderWorker"}, size=5))[1]
    assert error.endswith("size or size - 1 must be divisible by subGroupSize")
    grouped, errors = born(LWS, lws(subGroupPolicy={"subGroupSize": 2}))
    assert errors == []
    assert changed(LWS, grouped, "spec", "leaderWorkerTemplate", "subGroupPolicy", "subGroupSize", to=4) != []
    assert born(LWS, lws(), name="1a")[1] != []
    assert changed(LWS, obj, "spec", "replicas", to=-1) == [
        "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
    ]


def test_a_new_volume_can_be_used() -> None:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    volume, errors = born("persistentvolumes", {"spec": spec})
    assert errors == []
    assert volume["status"] == {"phase": "Pending"} and volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
