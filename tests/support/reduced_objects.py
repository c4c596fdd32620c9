"""Objects of every kind a controller reads, as full as users write them; and the smaller ones the API still accepts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from phalanx.base.client import Call, Client, Resource
from phalanx.base.errors import ApiProblem

Json = dict[str, Any]
Path = tuple[str | int, ...]

_CLAIM: Json = {
    "metadata": {"name": "data", "labels": {"a": "b"}},
    "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "s"},
}
_POD: Json = {
    "metadata": {"labels": {"app": "x"}, "annotations": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "c",
                "image": "busybox",
                "command": ["true"],
                "env": [{"name": "A", "value": "b"}],
                "ports": [{"containerPort": 80, "name": "http"}],
                "resources": {"requests": {"cpu": "1m"}, "limits": {"memory": "1Mi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
        "initContainers": [{"name": "i", "image": "busybox"}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "terminationGracePeriodSeconds": 1,
    },
}


def _pod(**spec: Any) -> Json:
    found = copy.deepcopy(_POD)
    found["spec"] |= spec
    return found


def _unmounted(**spec: Any) -> Json:
    """A pod template whose volume is a claim of the owner."""
    found = _pod(**spec)
    del found["spec"]["volumes"]
    return found


_SELECTOR: Json = {"matchLabels": {"app": "x"}, "matchExpressions": [{"key": "app", "operator": "Exists"}]}
_JOB: Json = {
    "parallelism": 2,
    "completions": 2,
    "completionMode": "Indexed",
    "backoffLimit": 1,
    "activeDeadlineSeconds": 1000,
    "ttlSecondsAfterFinished": 1000,
    "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]},
    "successPolicy": {"rules": [{"succeededIndexes": "0", "succeededCount": 1}]},
    "scheduling": {
        "schedulingPolicy": {"gang": {"minCount": 2}},
        "schedulingConstraints": {"topology": [{"key": "z"}]},
    },
    "template": _pod(restartPolicy="Never"),
}
_PLAIN_JOB = {key: value for key, value in _JOB.items() if key != "scheduling"}
_JOB_WITH_CLAIM = {**_PLAIN_JOB, "template": _unmounted(restartPolicy="Never")}

FULL: dict[str, Json] = {
    "Deployment": {
        "spec": {
            "replicas": 2,
            "selector": _SELECTOR,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "25%"}},
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": 60,
            "minReadySeconds": 1,
            "template": _pod(),
        }
    },
    "ReplicaSet": {"spec": {"replicas": 2, "selector": _SELECTOR, "minReadySeconds": 1, "template": _pod()}},
    "ReplicationController": {"spec": {"replicas": 1, "selector": {"app": "x"}, "template": _pod()}},
    "StatefulSet": {
        "spec": {
            "replicas": 2,
            "serviceName": "x",
            "selector": _SELECTOR,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1, "maxUnavailable": 1}},
            "ordinals": {"start": 1},
            "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
            "volumeClaimTemplates": [_CLAIM],
            "template": _unmounted(),
        }
    },
    "DaemonSet": {
        "spec": {
            "selector": _SELECTOR,
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "template": _pod(),
        }
    },
    "Job": {"spec": _JOB},
    "CronJob": {
        "spec": {
            "schedule": "* * * * *",
            "timeZone": "Etc/UTC",
            "startingDeadlineSeconds": 100,
            "concurrencyPolicy": "Replace",
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 1,
            "jobTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": _JOB},
        }
    },
    "JobSet": {
        "spec": {
            "replicatedJobs": [
                {"name": "a", "groupName": "g", "replicas": 2, "template": {"metadata": {}, "spec": _JOB_WITH_CLAIM}},
                {
                    "name": "b",
                    "replicas": 1,
                    "dependsOn": [{"name": "a", "status": "Ready"}],
                    "template": {"spec": _JOB_WITH_CLAIM},
                },
            ],
            "network": {"enableDNSHostnames": True, "subdomain": "sub", "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["a"]},
            "failurePolicy": {
                "maxRestarts": 1,
                "restartStrategy": "BlockingRecreate",
                "rules": [
                    {
                        "name": "r",
                        "action": "RestartJob",
                        "onJobFailureReasons": ["BackoffLimitExceeded"],
                        "onJobFailureMessagePatterns": ["x.*"],
                        "targetReplicatedJobs": ["a"],
                    }
                ],
            },
            "startupPolicy": {"startupPolicyOrder": "AnyOrder"},
            "suspend": False,
            "coordinator": {"replicatedJob": "a", "jobIndex": 0, "podIndex": 0},
            "ttlSecondsAfterFinished": 1000,
            "volumeClaimPolicies": [{"templates": [_CLAIM], "retentionPolicy": {"whenDeleted": "Delete"}}],
            "gangConfig": {"gangMode": "Gang"},
        }
    },
    "LeaderWorkerSet": {
        "spec": {
            "replicas": 2,
            "startupPolicy": "LeaderCreated",
            "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {"partition": 1, "maxUnavailable": 1, "maxSurge": 1},
            },
            "leaderWorkerTemplate": {
                "size": 3,
                "restartPolicy": "RecreateGroupAfterStart",
                "subGroupPolicy": {"subGroupPolicyType": "LeaderWorker", "subGroupSize": 2},
                "volumeClaimTemplates": [{**_CLAIM, "metadata": {"name": "claim"}}],
                "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Delete", "whenScaled": "Delete"},
                "leaderTemplate": _pod(),
                "workerTemplate": _pod(),
            },
            "scheduling": {"schedulingPolicy": {"gang": {"minCount": 3}}},
        }
    },
    "DisaggregatedSet": {
        "spec": {
            "slices": 2,
            "placementPolicy": {"type": "ExclusiveSlice", "topology": "rack"},
            "roles": [
                {
                    "name": name,
                    "scaling": {"mode": "Static"},
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {
                        "replicas": 1,
                        "startupPolicy": "LeaderCreated",
                        "rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": 1, "maxSurge": "50%"}},
                        "leaderWorkerTemplate": {"size": 2, "leaderTemplate": _pod(), "workerTemplate": _pod()},
                    },
                }
                for name in ("prefill", "decode")
            ],
        }
    },
    "DisaggregatedSetRoleScaler": {"spec": {"replicas": 1}},
    "PodDisruptionBudget": {
        "spec": {"minAvailable": 1, "selector": _SELECTOR, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    },
    "Service": {
        "spec": {
            "selector": {"app": "x"},
            "ports": [{"name": "http", "port": 80, "targetPort": "http", "protocol": "TCP"}],
            "type": "ClusterIP",
        }
    },
    "Endpoints": {
        "subsets": [{"addresses": [{"ip": "10.0.0.1", "hostname": "h"}], "ports": [{"name": "p", "port": 1}]}]
    },
    "PersistentVolumeClaim": {"spec": {**_CLAIM["spec"], "volumeMode": "Filesystem", "selector": _SELECTOR}},
    "PersistentVolume": {
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/x"},
            "storageClassName": "s",
            "claimRef": {"namespace": "default", "name": "claim", "uid": "u"},
            "persistentVolumeReclaimPolicy": "Delete",
        }
    },
    "StorageClass": {"provisioner": "p", "volumeBindingMode": "Immediate", "reclaimPolicy": "Delete"},
    "Node": {
        "spec": {"unschedulable": True, "taints": [{"key": "a", "effect": "NoExecute", "value": "b"}]},
        "status": {"capacity": {"cpu": "1"}},
    },
    "Pod": {
        "spec": {
            **_POD["spec"],
            "nodeName": "n",
            "volumes": [
                {"name": "data", "ephemeral": {"volumeClaimTemplate": {"metadata": {}, "spec": _CLAIM["spec"]}}},
                {"name": "other", "persistentVolumeClaim": {"claimName": "other"}},
            ],
            "schedulingGroup": {"podGroupName": "g"},
        }
    },
    "Workload": {
        "spec": {
            "controllerRef": {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "x"},
            "podGroupTemplates": [{"name": "a", "schedulingPolicy": {"gang": {"minCount": 2}}}],
        }
    },
    "PodGroup": {
        "spec": {
            "workloadRef": {"workloadName": "w", "templateName": "a"},
            "schedulingPolicy": {"gang": {"minCount": 2}},
            "schedulingConstraints": {"topology": [{"key": "zone"}]},
            "priorityClassName": "high",
        }
    },
}

# Conditions that controllers read, on the kinds they read them of; lastTransitionTime is optional there.
CONDITIONS: dict[str, tuple[str, ...]] = {
    "Job": ("Failed", "Complete", "Suspended", "FailureTarget", "SuccessCriteriaMet"),
    "Pod": ("Ready", "DisruptionTarget", "PodScheduled"),
    "Deployment": ("Progressing", "Available", "ReplicaFailure"),
    "ReplicaSet": ("ReplicaFailure",),
    "StatefulSet": ("Anything",),
    "DaemonSet": ("Anything",),
    "Node": ("Ready", "MemoryPressure"),
    "PersistentVolumeClaim": ("Resizing",),
}


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place below a value, the outer places first."""
    keys: list[str | int] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    for key in keys:
        yield (*path, key)
        yield from paths(value[key], (*path, key))


def without(obj: Json, path: Path) -> Json:
    found = copy.deepcopy(obj)
    holder: Any = found
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return found


def _emptied(obj: Json, path: Path) -> Json | None:
    """The object with nothing inside the object or list at a place; None when there is nothing to empty."""
    found = copy.deepcopy(obj)
    holder: Any = found
    for key in path[:-1]:
        holder = holder[key]
    if not isinstance(holder[path[-1]], (dict, list)) or not holder[path[-1]]:
        return None
    holder[path[-1]] = type(holder[path[-1]])()
    return found


class Reduction:
    """Asks the API server, without storing anything, what it would accept."""

    def __init__(self, client: Client, resource: Resource) -> None:
        self._client, self._resource = client, resource

    async def accepted(self, body: Json) -> bool:
        namespace = "default" if self._resource.namespaced else ""
        call = Call("create", self._resource, namespace=namespace, body=body, query={"dryRun": "All"})
        try:
            await self._client.call(call)
        except ApiProblem:
            return False
        return True

    async def variants(self, full: Json) -> list[Json]:
        """The object, with each of its fields left out or emptied, and with only what it cannot do without."""
        found = [full]
        for path in paths(full):
            if path[0] in ("apiVersion", "kind", "metadata"):
                continue
            for smaller in (without(full, path), _emptied(full, path)):
                if smaller is not None and await self.accepted(smaller):
                    found.append(smaller)
        return [*found, await self._smallest(full)]

    async def _smallest(self, full: Json) -> Json:
        smallest = full
        again = True
        while again:
            again = False
            for path in paths(smallest):
                if path[0] in ("apiVersion", "kind", "metadata"):
                    continue
                if await self.accepted(smaller := without(smallest, path)):
                    smallest, again = smaller, True
                    break
        return smallest
