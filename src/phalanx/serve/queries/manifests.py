"""Convert manifests to a what-if query: defaults, priorities, groups and pods as the cluster would create them.

Nothing is created. Workloads become groups by the library of the controllers, their pods come from the templates, and a
CronJob counts as one run. Kinds without pods are ignored with a note.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import msgspec

from phalanx.base.errors import BadRequest
from phalanx.base.well_known import DEFAULT_SCHEDULER, PHALANX_API, SCHEDULING_API
from phalanx.controllers.cluster_mode.linking import requests_gang, scheduler_for
from phalanx.controllers.grouping import Grouping, GroupingRefused, Link
from phalanx.controllers.workloads.kind import WorkloadKind
from phalanx.controllers.workloads.registry import READ, kind_of
from phalanx.engine.engine import Engine
from phalanx.engine.explain import Question
from phalanx.kube.group_api import KINDS
from phalanx.model import builtin, objects
from phalanx.model.annotation_values import unknown
from phalanx.model.decode import conform
from phalanx.model.gates import Gates
from phalanx.model.kinds import Json, Kind
from phalanx.serve.queries.manifest_claims import QueryClaims
from phalanx.serve.queries.manifest_dialects import QueryDialects

MOST_PODS = 20_000  # per query
_READ = frozenset(resource.kind for resource in READ)  # kinds that matter only to objects that refer to them


class Manifests:
    def __init__(
        self,
        gates: Gates,
        priority_classes: Iterable[Json],
        schedulers: Sequence[str] = (),
        claim_templates: Iterable[Json] = (),
        dialects: Sequence[str] = (),
    ) -> None:
        """`schedulers`: names of the answering scheduler; grouped pods of the cluster's default scheduler go to the
        first one, where our controllers send them. `claim_templates`: ResourceClaimTemplates of the cluster.
        `dialects`: other schedulers whose PodGroups are used."""
        self._gates, self._schedulers = gates, schedulers
        self._registry = builtin.registry(gates)
        self._classes: dict[str, Json] = {}
        self._default: Json | None = None
        self._add_priority_classes(priority_classes)
        self.question = Question()
        self._claims = QueryClaims(claim_templates)
        self._dialects = QueryDialects(dialects)
        self.notes: list[str] = []

    def read(self, documents: Sequence[Json], namespace: str) -> None:
        """Read manifests. Raises BadRequest with the invalid document's name."""
        flat = list(_flat(documents))
        self._add_priority_classes(doc for doc in flat if isinstance(doc, dict) and doc.get("kind") == "PriorityClass")
        whole = [self._complete(document, namespace) for document in flat]
        everything = [doc for _, doc in whole]
        for kind, doc in whole:
            try:
                self.notes += [f"{_title(doc)}: {text}" for text in unknown(doc["metadata"].get("annotations"))]
                workload = kind_of(doc)
                if workload is not None:
                    self._workload(workload, doc, everything)
                elif kind is not None:
                    self._add_document(kind, doc)
                elif doc["kind"] not in _READ and not self._dialects.take(doc):
                    self.notes.append(f"{_title(doc)}: of a kind that is not known here; left out")
            except GroupingRefused as refused:
                raise BadRequest(f"{_title(doc)}: {refused}") from None
            except (KeyError, TypeError, ValueError, AttributeError) as problem:
                raise BadRequest(f"{_title(doc)}: a field is missing or has the wrong type ({problem!r})") from None
        self._dialects.link(self.question, self._schedulers)
        self.notes += self._dialects.notes
        if len(self.question.pods) > MOST_PODS:
            raise BadRequest(f"{len(self.question.pods)} pods in one query; at most {MOST_PODS} are allowed")

    def put_into(self, engine: Engine) -> None:
        """Add claims and devices of the query to the engine permanently: only for a forked process."""
        self._claims.put_into(engine, self.question)
        self.notes += self._claims.notes

    def _add_priority_classes(self, classes: Iterable[Json]) -> None:
        """Add priority classes of the cluster and of the manifests."""
        self._classes |= {(entry.get("metadata") or {}).get("name") or "": entry for entry in classes}
        self._default = next((entry for entry in self._classes.values() if entry.get("globalDefault")), None)

    # ---- one document

    def _complete(self, document: Json, namespace: str) -> tuple[Kind | None, Json]:
        """Return the document as the API server would store it."""
        if not isinstance(document, dict) or not document.get("kind") or not document.get("apiVersion"):
            raise BadRequest("every document needs apiVersion and kind")
        doc = copy.deepcopy(document)
        own, _, version = str(doc["apiVersion"]).rpartition("/")
        if own == PHALANX_API and doc["kind"] in KINDS.values():  # for clusters with groups as custom resources
            own, doc["apiVersion"] = SCHEDULING_API, f"{SCHEDULING_API}/{version}"
        kind = self._registry.by_kind(own, version, str(doc["kind"]))
        meta = doc.setdefault("metadata", {})
        if not isinstance(meta, dict):
            raise BadRequest(f"{doc['kind']}: metadata must be an object")
        if kind is None:
            meta.setdefault("namespace", namespace)
            return None, doc
        served = kind.version(version)
        title = _title(doc)
        self.notes += [f"{title}: {text}" for text in conform(doc, served.schema)]
        meta = doc["metadata"]
        if kind.namespaced:
            meta.setdefault("namespace", namespace)
        if not meta.get("name"):
            meta["name"] = f"{meta.get('generateName') or kind.kind.lower() + '-'}0"
        if served.to_storage is not None:
            doc = served.to_storage(doc)
        if kind.default is not None:
            kind.default(doc)
        self._priority(kind, doc)
        doc["metadata"].setdefault("uid", "unknown")
        status = doc.get("status")
        if kind.prepare_create is not None:
            kind.prepare_create(doc)
        if status and kind.kind == "Workload":
            doc["status"] = status  # has the pods to come
        errors = kind.new_object_errors(doc)
        if errors:
            raise BadRequest(f"{title} is invalid: {'; '.join(map(str, errors))}")
        return kind, doc

    def _priority(self, kind: Kind, doc: Json) -> None:
        if kind.kind not in ("Pod", "PodGroup", "CompositePodGroup") or not isinstance(doc.get("spec"), dict):
            return
        spec = doc["spec"]
        name = spec.get("priorityClassName") or ""
        found = self._classes.get(name) if name else self._default
        if name and found is None:
            raise BadRequest(f"{_title(doc)}: no PriorityClass with name {name} was found")
        spec["priority"] = int(found.get("value") or 0) if found is not None else 0
        policy = found.get("preemptionPolicy") if found is not None else None
        if policy and (kind.kind == "Pod" or self._gates("PodGroupPreemptionPolicy")):
            spec["preemptionPolicy"] = policy

    def _add_document(self, kind: Kind, doc: Json) -> None:
        """Add one document of the manifest to the question; other kinds are named in its notes."""
        key = (kind.group, kind.kind)
        question = self.question
        match key:
            case ("", "Pod"):
                question.pods.append(msgspec.convert(doc, objects.Pod))
            case ("scheduling.k8s.io", "PodGroup"):
                question.pod_groups.append(msgspec.convert(doc, objects.PodGroup))
            case ("scheduling.k8s.io", "CompositePodGroup"):
                question.composites.append(msgspec.convert(doc, objects.CompositePodGroup))
            case ("scheduling.k8s.io", "Workload"):
                question.workloads.append(msgspec.convert(doc, objects.Workload))
                self._pod_sets(doc)
            case ("scheduling.phalanx.dev", "WorkloadPolicy"):
                question.policies.append(msgspec.convert(doc, objects.WorkloadPolicy))
            case ("scheduling.k8s.io", "PriorityClass"):
                pass  # read before: its name is needed for its value
            case ("resource.k8s.io", name) if self._claims.take(name, doc):
                pass
            case _:
                self.notes.append(f"{_title(doc)}: has no pods; left out")

    # ---- workloads

    def _pod_sets(self, workload: Json) -> None:
        """Take the groups and pods in a Workload's `status.podSets`."""
        meta, sets = workload["metadata"], (workload.get("status") or {}).get("podSets") or []
        templates = {each["name"]: each for each in workload["spec"].get("podGroupTemplates") or ()}
        if sets and not templates:
            self.notes.append(f"{_title(workload)}: is a tree; ask about the object that it was made from")
            return
        for each in sets:
            template = templates.get(each["podGroupTemplateName"])
            if template is None:
                continue
            for number in range(int(each.get("groups") or 0)):
                name = f"{meta['name']}-{template['name']}-{number}"
                if not any(group.metadata.name == name for group in self.question.pod_groups):
                    self._group(workload, template, name)
                before = len(self.question.pods)
                for pod in range(int(each.get("podsPerGroup") or 0)):
                    if len(self.question.pods) >= MOST_PODS:
                        raise BadRequest(f"{_title(workload)}: more than {MOST_PODS} pods in one query")
                    self._pod(workload, each["template"], f"{name}-{before + pod}", Link(pod_group=name), "")

    def _group(self, workload: Json, template: Json, name: str) -> None:
        spec = {key: value for key, value in template.items() if key != "name"}
        reference = {"workloadName": workload["metadata"]["name"], "templateName": template["name"]}
        body: Json = {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": name, "namespace": workload["metadata"]["namespace"]},
            "spec": {**copy.deepcopy(spec), "workloadRef": reference},
        }
        kind, made = self._complete(body, workload["metadata"]["namespace"])
        if kind is not None:
            self._add_document(kind, made)

    def _workload(self, kind: WorkloadKind, doc: Json, everything: Sequence[Json]) -> None:
        found = kind.group(doc, everything) or Grouping()
        namespace = doc["metadata"]["namespace"]
        for obj in found.objects:
            for owner in obj["metadata"].get("ownerReferences") or ():
                owner["uid"] = owner["uid"] or "unknown"
            made_kind, made = self._complete(obj, namespace)
            if made_kind is not None:
                self._add_document(made_kind, made)
        before = len(self.question.pods)
        ours = self._taken_over(doc)
        sent = False
        # Count before completing the pods, which is slow: the user chose the number.
        expected = list(islice(kind.pods(doc, everything, found), MOST_PODS + 1 - before))
        if before + len(expected) > MOST_PODS:
            raise BadRequest(f"{_title(doc)}: more than {MOST_PODS} pods in one query")
        for name, template, link, labels in expected:
            theirs = ours and link is not None and _scheduler_of(template) == DEFAULT_SCHEDULER
            sent = sent or bool(theirs)
            self._pod(doc, template, name, link, ours if theirs else "", labels)
        if sent:
            note = (
                f"grouped pods are asked about as pods of {ours}, where `phalanx controllers --mode cluster` sends them"
            )
            self.notes.append(f"{_title(doc)}: {note}")
        if len(self.question.pods) == before:
            self.notes.append(f"{_title(doc)}: has no pods; left out")

    def _taken_over(self, doc: Json) -> str:
        """Return the scheduler for grouped pods without a scheduler name; "": unchanged, or no group is requested."""
        if not self._schedulers or DEFAULT_SCHEDULER in self._schedulers or not requests_gang(doc):
            return ""
        return scheduler_for(doc, self._schedulers[0])

    def _pod(
        self,
        doc: Json,
        template: Json,
        name: str,
        link: Link | None,
        scheduler: str,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        meta = template.get("metadata") or {}
        body: Json = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": doc["metadata"]["namespace"],
                "labels": {**(meta.get("labels") or {}), **labels},
                "annotations": dict(meta.get("annotations") or {}),
            },
            "spec": copy.deepcopy(template.get("spec") or {}),
        }
        if link is not None:
            link.put_on(body["spec"])
        if scheduler:
            body["spec"]["schedulerName"] = scheduler
        _, made = self._complete(body, doc["metadata"]["namespace"])
        self.question.pods.append(msgspec.convert(made, objects.Pod))


def _scheduler_of(template: Json) -> str:
    return str((template.get("spec") or {}).get("schedulerName") or DEFAULT_SCHEDULER)


def _flat(documents: Sequence[Json]) -> list[Json]:
    found: list[Json] = []
    for document in documents:
        if isinstance(document, dict) and str(document.get("kind", "")).endswith("List") and "items" in document:
            found += document["items"] or ()
        else:
            found.append(document)
    return found


def _title(document: Json) -> str:
    meta = document.get("metadata")
    name = meta.get("name") or meta.get("generateName") if isinstance(meta, dict) else None
    return f"{document.get('kind')} {name or '?'}"
