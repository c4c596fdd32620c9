"""JobSets and Jobs as their users write them."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]
RUN = "simulation.phalanx.dev/run-seconds"
EXIT = "simulation.phalanx.dev/exit-code"


def pods(run: float | None = None, exit_code: int = 0, **spec: Any) -> Json:
    """A pod template; run: seconds after which its containers end."""
    template: Json = {"spec": {"containers": [{"name": "c", "image": "busybox"}], **spec}}
    if run is not None:
        template["metadata"] = {"annotations": {RUN: str(run), EXIT: str(exit_code)}}
    return template


def part(name: str, replicas: int, size: int, run: float | None = None, **rest: Any) -> Json:
    """A ReplicatedJob of `replicas` Jobs of `size` pods."""
    pod = rest.pop("pod", {})
    job = rest.pop("job", {})
    meta = rest.pop("annotations", None)
    exit_code = rest.pop("exit_code", 0)
    template: Json = {
        "spec": {"parallelism": size, "completions": size, "template": pods(run, exit_code, **pod), **job}
    }
    if meta:
        template["metadata"] = {"annotations": meta}
    return {"name": name, "replicas": replicas, "template": template, **rest}


def jobset(name: str, *parts: Json, annotations: Json | None = None, uid: str = "", **spec: Any) -> Json:
    meta: Json = {"name": name, "namespace": "default"}
    if annotations:
        meta["annotations"] = annotations
    if uid:
        meta["uid"] = uid
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": meta,
        "spec": {"replicatedJobs": list(parts), **spec},
    }


def job(name: str, size: int = 1, *, run: float | None = None, uid: str = "", **rest: Any) -> Json:
    meta: Json = {"name": name, "namespace": "default", **rest.pop("metadata", {})}
    if uid:
        meta["uid"] = uid
    exit_code = rest.pop("exit_code", 0)
    pod = {"restartPolicy": "Never", **rest.pop("pod", {})}
    spec = {"parallelism": size, "completions": size, "template": pods(run, exit_code, **pod), **rest}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}


def finished(obj: Json) -> bool:
    """A Job or JobSet that is over."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(c["type"] in ("Complete", "Completed", "Failed") and c["status"] == "True" for c in conditions)


def gang() -> Json:
    return {"schedulingPolicy": {"gang": {}}}
