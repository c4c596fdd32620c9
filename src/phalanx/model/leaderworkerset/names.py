"""Names, labels and annotations of LeaderWorkerSets, and the arithmetic of subgroups."""

from __future__ import annotations

import hashlib

from phalanx.model.kinds import Json

PREFIX = "leaderworkerset.sigs.k8s.io/"
NAME = f"{PREFIX}name"
REVISION = f"{PREFIX}template-revision-hash"
WORKER_INDEX = f"{PREFIX}worker-index"
GROUP_INDEX = f"{PREFIX}group-index"
GROUP_KEY = f"{PREFIX}group-key"
SUBGROUP_INDEX = f"{PREFIX}subgroup-index"
SUBGROUP_KEY = f"{PREFIX}subgroup-key"
SIZE = f"{PREFIX}size"
REPLICAS = f"{PREFIX}replicas"
LEADER_NAME = f"{PREFIX}leader-name"
EXCLUSIVE = f"{PREFIX}exclusive-topology"
SUBGROUP_EXCLUSIVE = f"{PREFIX}subgroup-exclusive-topology"
SUBGROUP_SIZE = f"{PREFIX}subgroup-size"
SUBGROUP_TYPE = f"{PREFIX}subgroup-policy-type"
SUBDOMAIN_POLICY = f"{PREFIX}subdomainPolicy"
GROUPED = f"{PREFIX}workload-aware-scheduling"
LEADER_REQUESTS_TPUS = f"{PREFIX}leader-requests-tpus"
OPT_OUT = f"{PREFIX}enable-gang-scheduling"
RECREATE_AFTER_START = f"{PREFIX}experimental-recreate-group-after-start"


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def group_key(namespace: str, leader: str) -> str:
    return sha1(f"{namespace}/{leader}")


def subgroup_key(leader: str, index: int) -> str:
    return sha1(f"{leader}/{index}")


def subgroup_index(size: int, subgroup_size: int, worker_index: int) -> int:
    """Return the subgroup of a worker. If the leader is one pod too many, it joins subgroup 0."""
    if (size - 1) % subgroup_size == 0 and size % subgroup_size:
        return (worker_index - 1) // subgroup_size
    return worker_index // subgroup_size


def leader_name(lws: Json, index: int) -> str:
    return f"{lws['metadata']['name']}-{index}"


def group_name(lws: Json, index: int, revision: str) -> str:
    """Name a group, including the revision: a rolled replica never shares a group with its predecessor."""
    return f"{lws['metadata']['name']}-{index}-{revision}"


def size_of(lws: Json) -> int:
    return int(lws["spec"]["leaderWorkerTemplate"].get("size") or 1)


def leader_template(lws: Json) -> Json:
    template = lws["spec"]["leaderWorkerTemplate"]
    found: Json = template.get("leaderTemplate") or template["workerTemplate"]
    return found


def worker_template(lws: Json) -> Json:
    found: Json = lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return found


def annotation(obj: Json, key: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(key) or "")


def label(obj: Json, key: str) -> str:
    return str((obj["metadata"].get("labels") or {}).get(key) or "")
