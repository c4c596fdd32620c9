"""What upstream's pods would do where containers run, as annotations for simulated kubelets.

Nothing runs in a simulated pod: it goes on until an annotation says when its containers end, and how. A mutating
webhook reads the few shell scripts, images and probes that Kubernetes' tests give their pods and writes it. Nothing is
executed.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from typing import Any

from support.local_cluster import LocalCluster
from support.webhook_endpoint import Endpoint

Json = dict[str, Any]
PATH = "/commands"
ANNOTATION_PREFIX = "simulation.phalanx.dev"
MISSING = ("non-existent", "nonexistent", "doesnt-exist", ":404")  # in the names of images that are nowhere
LONG_DELAY = 5  # seconds before the first probe that a test waits for
INDEX = "batch.kubernetes.io/job-completion-index"


class Commands:
    """A webhook for one cluster."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._endpoint = Endpoint()
        self._endpoint.answers[PATH] = self._answer
        self._marked: Counter[tuple[str, str]] = Counter()  # files that a script leaves for the next pod
        client = {"url": f"https://127.0.0.1:{self._endpoint.port}{PATH}", "caBundle": self._endpoint.ca}
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
        hook = {"name": "commands.example.com", "clientConfig": client, "rules": [rule]}
        rest = {"admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore"}
        cluster.create(
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            {"metadata": {"name": "commands"}, "webhooks": [{**hook, **rest}]},
        )

    def close(self) -> None:
        self._endpoint.server.shutdown()
        self._endpoint.server.server_close()

    def _answer(self, request: Json) -> Json:
        said = self._annotations(request["object"])
        if not said:
            return {"allowed": True}
        annotations = {**(request["object"]["metadata"].get("annotations") or {}), **said}
        patch = [{"op": "add", "path": "/metadata/annotations", "value": annotations}]
        return {
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(json.dumps(patch).encode()).decode(),
        }

    def _annotations(self, pod: Json) -> dict[str, str]:
        container = pod["spec"]["containers"][0]
        if any(word in container["image"] for word in MISSING):
            return {f"{ANNOTATION_PREFIX}/missing-image": container["image"]}
        delay = (container.get("readinessProbe") or {}).get("initialDelaySeconds") or 0
        if delay > LONG_DELAY:
            return {f"{ANNOTATION_PREFIX}/ready-seconds": str(delay)}
        if "volume/nfs" in container["image"]:
            return {f"{ANNOTATION_PREFIX}/log": "NFS started\n"}
        if str(pod["metadata"].get("name")).startswith("send-events-"):
            return {f"{ANNOTATION_PREFIX}/events": "true"}
        script = " ".join([*(container.get("command") or ()), *(container.get("args") or ())])
        if "trap _term SIGTERM" in script:
            return {f"{ANNOTATION_PREFIX}/stop-seconds": "5"}
        again = container.get("restartPolicy") == "OnFailure" or pod["spec"].get("restartPolicy") == "OnFailure"
        if "/data/foo\n" in script and again:  # its container leaves a file for its own next run
            return {f"{ANNOTATION_PREFIX}/run-seconds": "1", f"{ANNOTATION_PREFIX}/exit-code": "1,0"}
        code = self._exit_code(pod, container, script)
        if code is None:
            return {}
        seconds = "0" if script == "/bin/false" else "1"  # one that fails at once has failed before it is deleted
        return {f"{ANNOTATION_PREFIX}/run-seconds": seconds, f"{ANNOTATION_PREFIX}/exit-code": str(code)}

    def _exit_code(self, pod: Json, container: Json, script: str) -> int | None:
        """None: it runs until it is deleted."""
        index = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
        if "% 2" in script:
            return int(index) % 2
        if "/data/foo" in script or "RANDOM" in script:
            # By a file on the node, or by luck: the first pod fails, the next does not.
            owner = (pod["metadata"].get("ownerReferences") or [{}])[0].get("uid", "")
            key = (owner, index if "/data/foo-" in script else "")
            self._marked[key] += 1
            if self._marked[key] > 1:
                return 0
            return None if "sleep" in script else 42 if "exit 42" in script else 1
        if script in ("/bin/true", "/bin/false"):
            return int(script == "/bin/false")
        if not script and "busybox" in container["image"]:
            return 0  # a shell with nothing to read
        if "/mnt/volume1" in script:
            return 0  # it writes to its volume, or finds it empty
        found = re.fullmatch(r".*\bexit (\d+)", script)
        return int(found[1]) if found else None
