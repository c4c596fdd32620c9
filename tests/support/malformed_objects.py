"""Objects with one or several values that no user would write in good faith, of every kind that the engine reads."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec

from phalanx.engine.events import CHANGED_BY_KIND
from phalanx.model import objects
from phalanx.model.annotation_values import KNOWN

Json = dict[str, Any]

VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2**31,
    2**63 - 1,
    -(2**63),
    10**30,
    1.5,
    1e308,
    "",
    "x",
    "-1",
    "1e400",
    "9" * 5000,
    "1e399",
    "[" * 2000,
    '{"size":1e999,"template":{}}',
    '{"size":9999,"template":{"spec":{"containers":[{"resources":{"requests":{"cpu":"1"}}}]}}}',
    '{"cpu":"1e300"}',
    "\x00\ud7ff",
    "a/b/c",
    "In",
    "Gt",
    "0001-01-01T00:00:00Z",
    "9999-99-99T99:99:99Z",
    "x" * 70_000,
    [],
    {},
    [""],
    {"": ""},
    [{}],
    [[]],
    [{"key": "", "operator": "Gt", "values": ["x", "y"]}],
)

_TERM: Json = {
    "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
    "topologyKey": "zone",
    "namespaces": ["default"],
    "namespaceSelector": {"matchLabels": {"a": "b"}},
    "matchLabelKeys": ["a"],
}
_REQUIREMENT: Json = {"key": "zone", "operator": "In", "values": ["z1"]}
_SPEC: Json = {
    "schedulerName": "default-scheduler",
    "priority": 5,
    "preemptionPolicy": "PreemptLowerPriority",
    "nodeName": "",
    "nodeSelector": {"zone": "z1"},
    "containers": [
        {
            "name": "c",
            "image": "i:1",
            "resources": {
                "requests": {"cpu": "100m", "memory": "64Mi", "example.com/gpu": "1"},
                "limits": {"cpu": "1"},
            },
            "ports": [{"hostPort": 80, "containerPort": 80, "protocol": "TCP", "hostIP": "0.0.0.0"}],
        }
    ],
    "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "1"}}, "restartPolicy": "Always"}],
    "overhead": {"cpu": "10m"},
    "resources": {"requests": {"cpu": "100m"}},
    "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoSchedule", "value": "", "tolerationSeconds": 5}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [_REQUIREMENT], "matchFields": [_REQUIREMENT]}]
            },
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 5, "preference": {"matchExpressions": [_REQUIREMENT]}}
            ],
        },
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [_TERM],
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": _TERM}],
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [_TERM],
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": _TERM}],
        },
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "minDomains": 2,
            "topologyKey": "zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "labelSelector": {"matchLabels": {"a": "b"}},
            "matchLabelKeys": ["a"],
            "nodeAffinityPolicy": "Honor",
            "nodeTaintsPolicy": "Ignore",
        }
    ],
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "pvc"}}, {"name": "e", "ephemeral": {}}],
    "schedulingGates": [{"name": "g"}],
    "schedulingGroup": {"podGroupName": "malformed"},
    "workloadRef": {"name": "malformed", "podGroup": "workers", "podGroupReplicaKey": "0"},
}
_CONDITION: Json = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "m",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
_POLICY: Json = {
    "schedulingPolicy": {"gang": {"minCount": 1}},
    "schedulingConstraints": {"topology": [{"key": "zone"}]},
    "disruptionMode": {"all": {}},
    "priority": 5,
    "preemptionPolicy": "Never",
}

SAMPLES: dict[str, Json] = {
    "Pod": {
        "spec": _SPEC,
        "status": {
            "phase": "Pending",
            "conditions": [_CONDITION],
            "nominatedNodeName": "n0",
            "startTime": "2026-01-01T00:00:00Z",
            "containerStatuses": [{"name": "c", "allocatedResources": {"cpu": "1"}, "resources": {"requests": {}}}],
        },
    },
    "Node": {
        "spec": {"unschedulable": False, "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]},
        "status": {
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", "example.com/gpu": "8"},
            "capacity": {"cpu": "4"},
            "images": [{"names": ["i:1"], "sizeBytes": 1000}],
            "conditions": [_CONDITION],
        },
    },
    "PodGroup": {
        "spec": {**_POLICY, "parentCompositePodGroupName": "malformed", "workloadRef": {"workloadName": "malformed"}},
        "status": {"conditions": [{**_CONDITION, "type": "DisruptionTarget", "status": "True"}]},
    },
    "CompositePodGroup": {
        "spec": {**_POLICY, "schedulingPolicy": {"gang": {"minGroupCount": 1}}, "parentCompositePodGroupName": "up"},
        "status": {"conditions": [_CONDITION]},
    },
    "Workload": {
        "spec": {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "j"},
            "podGroupTemplates": [{"name": "workers", **_POLICY}],
            "compositePodGroupTemplates": [{"name": "all", "podGroupTemplates": [{"name": "w", **_POLICY}]}],
        },
        "status": {"conditions": [_CONDITION]},
    },
    "WorkloadPolicy": {
        "spec": {
            "targetRef": {"apiGroup": "scheduling.k8s.io", "kind": "PodGroup", "name": "malformed"},
            "counts": {"min": 1, "desired": 2, "max": 3},
            "ranks": {"from": "label", "key": "a", "placement": "adjacent", "topologyKey": "zone", "coPlaceWith": "x"},
            "rescheduling": {"policy": "replace", "graceSeconds": 5, "maxRestarts": 3, "backoffSeconds": 5},
            "timeouts": {"membersSeconds": 5, "scheduleSeconds": 5, "readySeconds": 5},
            "preemption": {"minRuntimeSeconds": 5},
            "disruption": {"maxUnavailableReplicas": 1},
            "expectedDurationSeconds": 60,
        },
        "status": {"conditions": [_CONDITION]},
    },
    "PersistentVolume": {
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "s",
            "volumeMode": "Filesystem",
            "claimRef": {"namespace": "default", "name": "pvc", "uid": "u"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [_REQUIREMENT]}]}},
            "csi": {"driver": "d", "volumeHandle": "h"},
        },
        "status": {"phase": "Available"},
    },
    "PersistentVolumeClaim": {
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "s",
            "volumeName": "",
            "resources": {"requests": {"storage": "1Gi"}},
            "selector": {"matchLabels": {"a": "b"}},
        },
        "status": {"phase": "Pending"},
    },
    "StorageClass": {
        "provisioner": "p",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["z1"]}]}],
    },
    "CSINode": {"spec": {"drivers": [{"name": "d", "allocatable": {"count": 5}, "topologyKeys": ["zone"]}]}},
    "CSIDriver": {"spec": {"storageCapacity": True, "attachRequired": True}},
    "CSIStorageCapacity": {
        "storageClassName": "s",
        "capacity": "10Gi",
        "maximumVolumeSize": "1Gi",
        "nodeTopology": {"matchLabels": {"zone": "z1"}},
    },
    "Namespace": {},
    "PodDisruptionBudget": {
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "minAvailable": "50%", "maxUnavailable": 1},
        "status": {"disruptionsAllowed": 1, "disruptedPods": {"p": "2026-01-01T00:00:00Z"}, "expectedPods": 3},
    },
    "DeviceClass": {
        "spec": {
            "selectors": [{"cel": {"expression": "device.driver == 'd'"}}],
            "extendedResourceName": "example.com/gpu",
        }
    },
    "ResourceClaim": {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "r",
                        "exactly": {
                            "deviceClassName": "malformed",
                            "selectors": [{"cel": {"expression": "true"}}],
                            "allocationMode": "ExactCount",
                            "count": 1,
                            "tolerations": [{"key": "k", "operator": "Exists"}],
                            "capacity": {"requests": {"memory": "1Gi"}},
                        },
                    },
                    {"name": "f", "firstAvailable": [{"name": "s", "deviceClassName": "malformed", "count": 2}]},
                ],
                "constraints": [{"requests": ["r"], "matchAttribute": "d/a"}],
            }
        },
        "status": {
            "allocation": {
                "devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": "x"}]},
                "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [_REQUIREMENT]}]},
            },
            "reservedFor": [{"resource": "pods", "name": "malformed", "uid": "u"}],
        },
    },
    "ResourceSlice": {
        "spec": {
            "driver": "d",
            "nodeName": "n0",
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
            "sharedCounters": [{"name": "c", "counters": {"m": {"value": "1"}}}],
            "devices": [
                {
                    "name": "x",
                    "attributes": {"a": {"string": "s"}, "b": {"int": 1}, "c": {"version": "1.0.0"}},
                    "capacity": {"memory": {"value": "1Gi", "requestPolicy": {"default": "1", "validValues": ["1"]}}},
                    "consumesCounters": [{"counterSet": "c", "counters": {"m": {"value": "1"}}}],
                    "taints": [{"key": "k", "effect": "NoSchedule"}],
                }
            ],
        }
    },
    "DeviceTaintRule": {
        "spec": {
            "deviceSelector": {"driver": "d", "pool": "p", "device": "x"},
            "taint": {"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        }
    },
    "ResourceQuota": {
        "spec": {
            "hard": {"pods": "5", "requests.cpu": "4", "limits.memory": "1Gi", "count/pods": 5},
            "scopes": ["NotTerminating"],
            "scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}]},
        },
        "status": {"used": {"pods": "1"}},
    },
    "Service": {"spec": {"selector": {"a": "b"}}},
    "ReplicationController": {"spec": {"selector": {"a": "b"}}},
    "ReplicaSet": {"spec": {"selector": {"matchLabels": {"a": "b"}}}},
    "StatefulSet": {"spec": {"selector": {"matchLabels": {"a": "b"}}}},
    "PriorityClass": {"value": 5, "globalDefault": False, "preemptionPolicy": "Never"},
}


def sample(kind: str, name: str = "malformed") -> Json:
    """An object of the kind with every field that the engine reads."""
    meta: Json = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{kind}-{name}",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"a": "b", "zone": "z1"},
        "annotations": {"note": "x"},
        "ownerReferences": [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
        ],
    }
    return {"metadata": meta, **copy.deepcopy(SAMPLES[kind])}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value below `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*path, key)
        yield from places(below, (*path, key))


def put(root: Json, path: tuple[Any, ...], value: Any) -> None:
    at: Any = root
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value


def malformed(rng: random.Random, kind: str) -> Any | None:
    """A random object of a kind; None: the API server's own types, or an informer, would not let it through."""
    body = sample(kind)
    identity = {("metadata",), ("metadata", "name"), ("metadata", "namespace"), ("metadata", "uid")}
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if rng.random() < 0.2:
            body["metadata"]["annotations"] = {rng.choice(sorted(KNOWN)): str(rng.choice(VALUES))}
            continue
        path = rng.choice([path for path in places(body) if path not in identity])
        put(body, path, copy.deepcopy(rng.choice(VALUES)))
    for part in ("nodeSelector", "affinity", "schedulingGates", "schedulingGroup", "nodeName"):
        if kind == "Pod" and rng.random() < 0.5 and isinstance(body.get("spec"), dict):
            body["spec"].pop(part, None)
            if part == "nodeName" and rng.random() < 0.5:
                body["spec"]["nodeName"] = "n0"
    try:
        return msgspec.json.decode(msgspec.json.encode(body), type=getattr(objects, kind))
    except (msgspec.MsgspecError, UnicodeEncodeError, OverflowError):
        return None


def announcement(rng: random.Random) -> str:
    """A value of `pods-to-come`, in order or with a few values replaced."""
    body: Json = {"size": rng.choice((1, 2, 5, 50)), "template": {"metadata": {}, "spec": copy.deepcopy(_SPEC)}}
    if rng.random() < 0.7:
        body["template"]["spec"] = {"containers": copy.deepcopy(_SPEC["containers"])}
    for _ in range(rng.choice((0, 1, 3))):
        put(body, rng.choice(list(places(body))), copy.deepcopy(rng.choice(VALUES)))
    return json.dumps(body)


KINDS = sorted(CHANGED_BY_KIND)
