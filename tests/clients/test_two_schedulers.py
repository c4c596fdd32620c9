"""kube-scheduler and ours on the same nodes, without coordination: kubelets reject what does not fit.

GANGS=200 in the environment runs as many gangs, and as many pods of kube-scheduler.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.model.quantity import milli
from support.local_cluster import LocalCluster
from support.programs import program, running

GANGS = SINGLES = int(os.environ.get("GANGS", "40"))
MEMBERS, NODES = 4, 8
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
SECONDS = 1200  # many, for a busy machine
Json = dict[str, Any]


@pytest.fixture
def cluster(start_cluster: Callable[..., LocalCluster], tmp_path: Path) -> Iterator[LocalCluster]:
    """Two schedulers as processes of their own: kube-scheduler for `default-scheduler`, ours for `phalanx`."""
    program("kube-scheduler")
    found = start_cluster(nodes=NODES, run_scheduler=False)
    configuration = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(found.kubeconfig), "qps": 500, "burst": 500},
        "leaderElection": {"leaderElect": False},
    }
    (tmp_path / "scheduler.yaml").write_text(json.dumps(configuration))
    command = [sys.executable, "-m", "phalanx", "scheduler", "--kubeconfig", str(found.kubeconfig)]
    command += ["--scheduler-name", "phalanx", "--no-leader-elect", "--no-dashboard", "--health", "127.0.0.1:0"]
    flags = (f"--config={tmp_path / 'scheduler.yaml'}", "--secure-port=0", "--feature-gates=GenericWorkload=true")
    with running(tmp_path / "log", "kube-scheduler", *flags):
        ours = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            yield found
        finally:
            ours.kill()
            ours.wait()


def job(name: str, scheduler: str, pods: int, **annotations: str) -> Json:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "8"}}}
    template = {
        "metadata": {"annotations": {"simulation.phalanx.dev/run-seconds": "2"}},
        "spec": {"schedulerName": scheduler, "restartPolicy": "Never", "containers": [container]},
    }
    spec = {"parallelism": pods, "completions": pods, "backoffLimit": 1000, "template": template}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


@pytest.mark.timeout(SECONDS + 100)
def test_every_gang_gets_whole_and_nothing_waits_for_ever(cluster: LocalCluster) -> None:
    """No node runs more than it has, no gang's Job pays for a rejection, and ours never evicts a pod of the other."""
    faulthandler.cancel_dump_traceback_later()  # 200 gangs take minutes
    changes: list[tuple[str, Json, float]] = []
    threading.Thread(target=lambda: read(cluster, changes), daemon=True).start()
    for number in range(GANGS):
        gang = job(f"gang-{number}", "phalanx", MEMBERS, **{"scheduling.phalanx.dev/gang": "true"})
        cluster.create(JOBS, gang)
        cluster.create(JOBS, job(f"single-{number}", "default-scheduler", 1))
    end = time.monotonic() + SECONDS
    while not all(map(is_done, found := cluster.list(JOBS))):
        left = [each["metadata"]["name"] for each in found if not is_done(each)]
        assert time.monotonic() < end, f"{len(left)} Jobs did not end, such as {left[:5]}"
        time.sleep(2)
    failed = {each["metadata"]["name"]: each["status"].get("failed", 0) for each in cluster.list(JOBS)}
    assert {name for name, count in failed.items() if count and name.startswith("gang")} == set()
    seen = changes.copy()  # the last ones may be on their way, and end what ran
    rejected = {pod["metadata"]["name"] for _, pod, _ in seen if is_rejected(pod)}
    evicted = {pod["metadata"]["name"] for _, pod, _ in seen if is_evicted(pod)}
    waits = seconds_until_returned(seen)
    print(f"{len(rejected)} pods rejected, {len(evicted)} returned, of {GANGS * MEMBERS + SINGLES}")
    print(f"returned after {', '.join(f'{wait:.2f}' for wait in waits)} s")
    assert not {name for name in evicted if name.startswith("single")}
    assert 0 < most_used(seen) <= milli("64")


def read(cluster: LocalCluster, changes: list[tuple[str, Json, float]]) -> None:
    """Collect events, with the time of each, until the server goes away."""
    with (
        contextlib.suppress(AttributeError, OSError, ValueError),
        cluster.watch(PODS, timeout=SECONDS, timeoutSeconds=SECONDS) as watch,
    ):
        changes.extend((*change, time.monotonic()) for change in iter(watch.next, None))


def seconds_until_returned(changes: list[tuple[str, Json, float]]) -> list[float]:
    """How long each gang waited, from a rejected pod to the deletion of the last of its other pods.

    Rejections within a second are one attempt to run it.
    """
    rejected: dict[str, float] = {}
    returned: dict[str, dict[str, float]] = defaultdict(dict)  # gang -> its pods
    known: set[str] = set()
    for change, pod, when in changes:
        meta = pod["metadata"]
        gang = meta["labels"]["job-name"]
        if is_rejected(pod) and meta["name"] not in known:
            known.add(meta["name"])
            rejected[gang] = when if when > rejected.get(gang, 0) + 1 else rejected[gang]
        elif is_evicted(pod) and "deletionTimestamp" in meta and change != "DELETED" and gang in rejected:
            returned[gang].setdefault(meta["name"], when - rejected[gang])
    return sorted(max(pods.values()) for pods in returned.values())


def is_done(found: Json) -> bool:
    return bool(found["status"].get("succeeded") == found["spec"]["completions"])


def is_rejected(pod: Json) -> bool:
    return str(pod["status"].get("reason", "")).startswith("OutOf")


def is_evicted(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(each["type"] == "DisruptionTarget" and each["status"] == "True" for each in conditions)


def most_used(changes: list[tuple[str, Json, float]]) -> float:
    """The most cpu that running pods of one node requested at one time."""
    running_on: dict[str, set[str]] = defaultdict(set)
    most: Counter[str] = Counter()
    for change, pod, _ in changes:
        node, name = pod["spec"].get("nodeName", ""), pod["metadata"]["name"]
        runs = change != "DELETED" and pod["status"].get("phase") == "Running"
        (running_on[node].add if runs else running_on[node].discard)(name)
        most[node] = max(most[node], len(running_on[node]))
    return max(most.values()) * milli("8")
