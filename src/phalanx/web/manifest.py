"""Manifests for what-if: that of a waiting root with a remedy applied, and the numbers of any manifest.

A waiting root is written as its groups and one ReplicaSet for each kind of pod, from what the scheduler knows of it:
requests, rules and tolerations. The scheduler never reads environment, commands or Secrets, so none can get here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import msgspec
import yaml

from phalanx.base.errors import BadRequest
from phalanx.model import yaml_body
from phalanx.model.groups import GroupKey
from phalanx.model.kinds import Json
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.queries.queue_view import text_of

MOST_DOCUMENTS = 40
_BETWEEN = re.compile(
    r"^---(?=\s|$)|^\.\.\.\s*$", re.MULTILINE
)  # a separator of documents, only at the start of a line
_VERSIONS = {"PodGroup": "scheduling.k8s.io/v1beta1", "CompositePodGroup": "scheduling.k8s.io/v1alpha3"}
# Numbers that users vary: name of the field and what it means.
_COUNTS = {
    "parallelism": "pods at a time",
    "replicas": "replicas",
    "size": "pods per replica",
    "minCount": "minimum of pods",
    "minGroupCount": "minimum of groups",
}
_DROPPED = ("nodeName", "schedulingGates", "priority", "preemptionPolicy", "volumes")


def manifest_of(reader: EngineReader, root: str, change: str = "", group: str = "", to: str = "") -> str:
    """Return the YAML of a waiting root under new names; empty if the root is not known.

    `change`, `group`, `to`: a remedy.
    """
    documents: list[Json] = []
    for key, source in reader.sources(root):
        if key.kind in _VERSIONS:
            documents.append(_group(key, source, change, group, to))
    documents += _pods(reader.waiting_pods(root))
    return yaml.safe_dump_all(documents, sort_keys=False, width=120) if documents else ""


def _group(key: GroupKey, source: Any, change: str, group: str, to: str) -> Json:
    spec = msgspec.to_builtins(source.spec)
    for name in ("workloadRef", "priority", "preemptionPolicy"):
        spec.pop(name, None)
    if spec.get("parentCompositePodGroupName"):
        spec["parentCompositePodGroupName"] = _name(spec["parentCompositePodGroupName"])
    if not group or group in (key.name, f"{key.kind} {key.name}", text_of(key)):
        _relax(spec, change, to)
    meta = {"name": _name(key.name), "namespace": key.namespace}
    return {"apiVersion": _VERSIONS[key.kind], "kind": key.kind, "metadata": meta, "spec": spec}


def _relax(spec: Json, change: str, to: str) -> None:
    if change == "topology":
        if to:
            spec["schedulingConstraints"] = {"topology": [{"key": to}]}
        else:
            spec.pop("schedulingConstraints", None)
    elif change == "members" and to.isdigit():
        gang = (spec.get("schedulingPolicy") or {}).get("gang")
        if gang:
            gang["minGroupCount" if "minGroupCount" in gang else "minCount"] = int(to)


def _pods(members: Sequence[tuple[GroupKey | None, Any]]) -> list[Json]:
    """Return a ReplicaSet for each set of identical pods of a group."""
    alike: dict[bytes, tuple[Json, int]] = {}
    for key, pod in members:
        if pod.status.phase in ("Succeeded", "Failed"):
            continue
        spec = msgspec.to_builtins(pod.spec)
        for name in _DROPPED:
            spec.pop(name, None)
        spec.pop("restartPolicy", None)
        if key is not None:
            spec["schedulingGroup"] = {"podGroupName": _name(key.name)}
        labels = {k: v for k, v in pod.metadata.labels.items() if not _of_one(k)}
        meta = {"namespace": pod.metadata.namespace, "group": key.name if key is not None else pod.metadata.name}
        body = {"spec": spec, "labels": labels, **meta}
        mark = msgspec.json.encode(body, order="sorted")
        found = alike.get(mark)
        alike[mark] = (body, found[1] + 1 if found is not None else 1)
    documents = []
    used: dict[str, int] = {}
    for body, count in alike.values():
        name = _name(body["group"])
        used[name] = used.get(name, 0) + 1
        name = name if used[name] == 1 else f"{name}-{used[name]}"
        labels = {"phalanx-what-if": name, **body["labels"]}
        documents.append(
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "metadata": {"name": name, "namespace": body["namespace"]},
                "spec": {
                    "replicas": count,
                    "selector": {"matchLabels": {"phalanx-what-if": name}},
                    "template": {"metadata": {"labels": labels}, "spec": body["spec"]},
                },
            }
        )
    return documents


def _of_one(label: str) -> bool:
    """Omit labels that differ between equal pods: they would make every pod a ReplicaSet of its own."""
    return label.endswith(("-index", "-hash", "pod-name", "-uid", "controller-uid", "/hostname"))


def _name(name: str) -> str:
    """Return a new name, because the question is about one more object like the real one."""
    return f"{name.replace('/', '-')[:50]}-what-if"


# ---- the numbers in a manifest


def parse(text: str) -> list[Json]:
    """Parse the documents of a YAML or JSON text. Raises BadRequest.

    The work is linear in the text; aliases are limited.
    """
    found = []
    for part in _BETWEEN.split(text):
        document = yaml_body.read(part.encode()) if part.strip() else None
        if document is None:
            continue
        if not isinstance(document, dict):
            raise BadRequest("every document must be an object with apiVersion and kind")
        found.append(document)
        if len(found) > MOST_DOCUMENTS:
            raise BadRequest(f"more than {MOST_DOCUMENTS} documents; use `phalanx whatif -f FILE`")
    if not found:
        raise BadRequest("there is nothing to try: paste a Job, JobSet, LeaderWorkerSet, group or pod")
    return found


def counts_in(documents: Sequence[Json]) -> list[Json]:
    """Return the numbers that get a slider on the page: the path and the present value of each."""
    found: list[Json] = []
    for number, document in enumerate(documents):
        meta = document.get("metadata")
        title = f"{document.get('kind', '?')} {meta.get('name', '') if isinstance(meta, dict) else ''}".strip()
        _walk(document.get("spec"), [number, "spec"], title, found)
    return found[:24]


def _walk(value: Any, path: list[Any], title: str, found: list[Json]) -> None:
    if len(path) > 12:
        return
    if isinstance(value, dict):
        for name, inner in value.items():
            if name in _COUNTS and isinstance(inner, int) and not isinstance(inner, bool):
                found.append({"path": [*path, name], "value": inner, "name": name, "text": _COUNTS[name], "of": title})
            elif name not in ("containers", "initContainers", "affinity", "selector"):
                _walk(inner, [*path, name], title, found)
    elif isinstance(value, list):
        for number, inner in enumerate(value[:20]):
            _walk(inner, [*path, number], title, found)


def with_counts(documents: Sequence[Json], counts: Sequence[Any]) -> list[Json]:
    """Return a copy with some numbers replaced. Raises BadRequest if a path does not exist."""
    changed = copy.deepcopy(list(documents))
    for entry in counts:
        path, value = entry.get("path"), entry.get("value")
        if not isinstance(path, list) or not path or not isinstance(value, int) or not 0 <= value <= 100_000:
            raise BadRequest("a count needs a path and a number from 0 to 100000")
        where: Any = changed
        try:
            for step in path[:-1]:
                where = where[step]
            if path[-1] not in _COUNTS or path[-1] not in where:
                raise KeyError(path[-1])
            was = where[path[-1]]
            where[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            raise BadRequest(f"no number at {'.'.join(map(str, path))}") from None
        # A Job of another size is finished when all of it is.
        if path[-1] == "parallelism" and where.get("completions") == was:
            where["completions"] = value
    return changed
