"""ResourceClaims of a what-if query: those in its manifests, and those generated from templates.

`put_into` changes the engine permanently, so it must run in the forked process of a query (`serve.queries.fork`).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from phalanx.engine import events as e
from phalanx.engine.engine import Engine
from phalanx.engine.explain import Question
from phalanx.model.kinds import Json
from phalanx.model.objects import DeviceClass, Pod, ResourceClaim, ResourceSlice
from phalanx.model.objects.devices import ResourceClaimSpec
from phalanx.model.objects.meta import ObjectMeta, OwnerReference
from phalanx.model.objects.pod import PodResourceClaimStatus

TEMPLATE = "ResourceClaimTemplate"


class QueryClaims:
    def __init__(self, templates: Iterable[Json] = ()) -> None:
        """`templates`: the ResourceClaimTemplates of the cluster."""
        self._templates: dict[tuple[str, str], ResourceClaimSpec] = {}
        self._claims: list[ResourceClaim] = []
        self._others: list[DeviceClass | ResourceSlice] = []
        self.notes: list[str] = []
        for template in templates:
            self.take(TEMPLATE, template)

    def take(self, kind: str, doc: Json) -> bool:
        """Take an object of resource.k8s.io; return False if it is not needed."""
        if kind == TEMPLATE:
            meta = doc["metadata"]
            spec = msgspec.convert((doc.get("spec") or {}).get("spec") or {}, ResourceClaimSpec)
            self._templates[meta["namespace"], meta["name"]] = spec
        elif kind == "ResourceClaim":
            self._claims.append(msgspec.convert({**doc, "status": {}}, ResourceClaim))  # a new object has no status
        elif kind == "DeviceClass":
            self._others.append(msgspec.convert(doc, DeviceClass))
        elif kind == "ResourceSlice":
            self._others.append(msgspec.convert(doc, ResourceSlice))
        else:
            return False
        return True

    def put_into(self, engine: Engine, question: Question) -> None:
        """Generate claims from templates, and add all claims to the engine."""
        metas = [group.metadata for group in question.pod_groups] + [group.metadata for group in question.composites]
        for meta in (*metas, *(workload.metadata for workload in question.workloads)):
            engine.request_device_domain(meta.annotations)
        shared = self._claims_of_groups(engine, question)
        question.pods = [self._with_claims(pod, number, shared) for number, pod in enumerate(question.pods)]
        for other in self._others:
            if isinstance(other, ResourceSlice):
                engine.apply(e.ResourceSliceChanged(other))
            else:
                engine.apply(e.DeviceClassChanged(other))
        for claim in self._claims:
            meta = claim.metadata
            if engine.objects.get(ResourceClaim, meta.namespace, meta.name) is None:
                engine.apply(e.ResourceClaimChanged(claim))
            else:
                self.notes.append(f"ResourceClaim {meta.name}: exists already; the one of the cluster is used")
        for pod in question.pods:
            if pod.spec.resource_claims:
                engine.indexes.claims.pod_seen(pod)

    def _claims_of_groups(self, engine: Engine, question: Question) -> dict[tuple[str, str, str], str]:
        """Generate the claims of PodGroups; return (namespace, group, entry) -> claim."""
        found: dict[tuple[str, str, str], str] = {}
        for group in question.pod_groups:
            entries = group.spec.resource_claims or ()
            if entries:
                engine.objects.put(group)  # pods find the claims of their group by it
            for entry in entries:
                meta = group.metadata
                if entry.resource_claim_template_name:
                    name = self._generate(meta, "PodGroup", entry.name, entry.resource_claim_template_name)
                    found[meta.namespace, meta.name, entry.name] = name
        return found

    def _with_claims(self, pod: Pod, number: int, shared: dict[tuple[str, str, str], str]) -> Pod:
        """Return the pod with a unique uid and the names of its generated claims in its status."""
        if not pod.spec.resource_claims:
            return pod
        meta = msgspec.structs.replace(pod.metadata, uid=f"query-{number}")
        group = pod.spec.scheduling_group
        statuses: list[PodResourceClaimStatus] = []
        for entry in pod.spec.resource_claims:
            if not entry.resource_claim_template_name:
                continue
            in_group = (meta.namespace, (group.pod_group_name if group is not None else "") or "", entry.name)
            name = shared.get(in_group) or self._generate(meta, "Pod", entry.name, entry.resource_claim_template_name)
            if name:
                statuses.append(PodResourceClaimStatus(name=entry.name, resource_claim_name=name))
        status = msgspec.structs.replace(pod.status, resource_claim_statuses=statuses)
        return msgspec.structs.replace(pod, metadata=meta, status=status)

    def _generate(self, owner: ObjectMeta, kind: str, entry: str, template: str) -> str:
        """Generate a claim from a template; return its name, or "" if the template does not exist."""
        spec = self._templates.get((owner.namespace, template))
        if spec is None:
            text = f'{kind} {owner.name}: resource claim template "{template}" not found'
            if text not in self.notes:
                self.notes.append(text)
            return ""
        name = f"{owner.name}-{entry}-query"
        version = "v1" if kind == "Pod" else "scheduling.k8s.io/v1beta1"
        reference = OwnerReference(api_version=version, kind=kind, name=owner.name, uid=owner.uid, controller=True)
        meta = ObjectMeta(name=name, namespace=owner.namespace, uid=f"{name}-uid", owner_references=[reference])
        self._claims.append(ResourceClaim(metadata=meta, spec=spec))
        return name
