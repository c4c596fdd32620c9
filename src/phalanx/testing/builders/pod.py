"""Builders of pods."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from phalanx.model import objects as o
from phalanx.testing.builders.base import (
    PREFERRED,
    REQUIRED,
    Builder,
    Expression,
    Json,
    Selector,
    node_term_json,
    selector_json,
    timestamp,
)


class PodBuilder(Builder[o.Pod]):
    """Without calls: one container that requests nothing, not assigned to a node."""

    kind = "Pod"
    view = o.Pod

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.spec["containers"] = [{"name": "c0", "image": "app:1"}]

    # requests -------------------------------------------------------------------------------------------------------

    def resource(self, name: str, quantity: str | int, *, limit: bool = False) -> Self:
        """Add a request (and with limit=True the same limit) to the first container."""
        resources = self.spec["containers"][0].setdefault("resources", {})
        for part in ("requests", "limits") if limit else ("requests",):
            resources.setdefault(part, {})[name] = str(quantity)
        return self

    def cpu(self, quantity: str | int) -> Self:
        return self.resource("cpu", quantity)

    def mem(self, quantity: str | int) -> Self:
        return self.resource("memory", quantity)

    def gpu(self, count: int, name: str = "nvidia.com/gpu") -> Self:
        return self.resource(name, count, limit=True)

    def container(self, requests: Json | None = None, image: str = "app:1") -> Self:
        """Add a container."""
        containers = self.spec["containers"]
        containers.append(self._container(f"c{len(containers)}", requests, image))
        return self

    def init(self, requests: Json | None = None, *, sidecar: bool = False, image: str = "i:1") -> Self:
        """Add an init container; a sidecar always restarts and keeps its request."""
        containers = self.spec.setdefault("initContainers", [])
        made = self._container(f"i{len(containers)}", requests, image)
        if sidecar:
            made["restartPolicy"] = "Always"
        containers.append(made)
        return self

    @staticmethod
    def _container(name: str, requests: Json | None, image: str) -> Json:
        made: Json = {"name": name, "image": image}
        if requests:
            made["resources"] = {"requests": {k: str(v) for k, v in requests.items()}}
        return made

    def overhead(self, **resources: str) -> Self:
        return self._spec(overhead=dict(resources))

    def pod_level(self, requests: Json) -> Self:
        """Set spec.resources: requests of the pod as a whole."""
        return self._spec(resources={"requests": {k: str(v) for k, v in requests.items()}})

    def image(self, image: str) -> Self:
        self.spec["containers"][0]["image"] = image
        return self

    def port(self, host_port: int, protocol: str = "TCP", host_ip: str = "") -> Self:
        made = {"containerPort": host_port, "hostPort": host_port, "protocol": protocol}
        if host_ip:
            made["hostIP"] = host_ip
        self.spec["containers"][0].setdefault("ports", []).append(made)
        return self

    # place and time -------------------------------------------------------------------------------------------------

    def node(self, name: str) -> Self:
        """Set spec.nodeName: the pod is assigned."""
        return self._spec(nodeName=name)

    def nominated(self, name: str) -> Self:
        return self._status(nominatedNodeName=name)

    def phase(self, phase: str) -> Self:
        return self._status(phase=phase)

    def priority(self, priority: int) -> Self:
        return self._spec(priority=priority)

    def preemption_policy(self, policy: str) -> Self:
        return self._spec(preemptionPolicy=policy)

    def scheduler(self, name: str) -> Self:
        return self._spec(schedulerName=name)

    def started(self, seconds: float) -> Self:
        return self._status(startTime=timestamp(seconds))

    def gate(self, name: str) -> Self:
        return self._add("schedulingGates", {"name": name})

    def group(self, pod_group: str) -> Self:
        return self._spec(schedulingGroup={"podGroupName": pod_group})

    def workload(self, name: str, pod_group: str, replica_key: str = "") -> Self:
        """Set the v1alpha1 workloadRef of KEP-4671."""
        return self._spec(workloadRef={"name": name, "podGroup": pod_group, "podGroupReplicaKey": replica_key})

    def claim(self, name: str, claim_name: str) -> Self:
        """Add a ResourceClaim (dynamic resource allocation)."""
        return self._add("resourceClaims", {"name": name, "resourceClaimName": claim_name})

    # where it may run -----------------------------------------------------------------------------------------------

    def select(self, key: str, value: str) -> Self:
        """Add a label to spec.nodeSelector."""
        self.spec.setdefault("nodeSelector", {})[key] = value
        return self

    def tolerate(self, key: str = "", value: str = "", effect: str = "", operator: str = "") -> Self:
        """Add a toleration; operator defaults to Equal, or to Exists if there is no value."""
        made = {"operator": operator or ("Equal" if value else "Exists")}
        made.update({k: v for k, v in (("key", key), ("value", value), ("effect", effect)) if v})
        return self._add("tolerations", made)

    def node_affinity(self, *expressions: Expression, fields: Iterable[Expression] = ()) -> Self:
        """Add a required term (terms are ORed, expressions inside a term are ANDed)."""
        node_affinity = self._affinity("nodeAffinity")
        node_affinity.setdefault(REQUIRED, {"nodeSelectorTerms": []})["nodeSelectorTerms"].append(
            node_term_json(expressions, fields)
        )
        return self

    def prefer_node(self, weight: int, *expressions: Expression, fields: Iterable[Expression] = ()) -> Self:
        preferred = self._affinity("nodeAffinity").setdefault(PREFERRED, [])
        preferred.append({"weight": weight, "preference": node_term_json(expressions, fields)})
        return self

    def affinity(self, key: str, selector: Selector | None, *, weight: int | None = None, **more: Any) -> Self:
        """Add podAffinity over topology `key`: required, or preferred with a weight.

        more: namespaces=[…], namespace_selector=Selector, match_label_keys=[…], mismatch_label_keys=[…].
        """
        return self._pod_affinity("podAffinity", key, selector, weight, more)

    def anti_affinity(self, key: str, selector: Selector | None, *, weight: int | None = None, **more: Any) -> Self:
        """Add podAntiAffinity; arguments as for affinity()."""
        return self._pod_affinity("podAntiAffinity", key, selector, weight, more)

    def spread(
        self,
        key: str,
        selector: Selector | None = None,
        *,
        max_skew: int = 1,
        soft: bool = False,
        min_domains: int | None = None,
        node_affinity_policy: str | None = None,
        node_taints_policy: str | None = None,
        match_label_keys: Iterable[str] = (),
    ) -> Self:
        """Add a topologySpreadConstraint: DoNotSchedule, or ScheduleAnyway with soft=True."""
        made: Json = {
            "maxSkew": max_skew,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway" if soft else "DoNotSchedule",
            "labelSelector": None if selector is None else selector_json(selector),
            "minDomains": min_domains,
            "nodeAffinityPolicy": node_affinity_policy,
            "nodeTaintsPolicy": node_taints_policy,
            "matchLabelKeys": list(match_label_keys) or None,
        }
        return self._add("topologySpreadConstraints", {k: v for k, v in made.items() if v is not None})

    def _affinity(self, part: str) -> Json:
        found: Json = self.spec.setdefault("affinity", {}).setdefault(part, {})
        return found

    def _pod_affinity(self, part: str, key: str, selector: Selector | None, weight: int | None, more: Json) -> Self:
        term: Json = {"topologyKey": key}
        if selector is not None:
            term["labelSelector"] = selector_json(selector)
        if more.get("namespaces"):
            term["namespaces"] = list(more["namespaces"])
        if more.get("namespace_selector") is not None:
            term["namespaceSelector"] = selector_json(more["namespace_selector"])
        for option, field in (("match_label_keys", "matchLabelKeys"), ("mismatch_label_keys", "mismatchLabelKeys")):
            if more.get(option):
                term[field] = list(more[option])
        affinity = self._affinity(part)
        if weight is None:
            affinity.setdefault(REQUIRED, []).append(term)
        else:
            affinity.setdefault(PREFERRED, []).append({"weight": weight, "podAffinityTerm": term})
        return self

    # volumes --------------------------------------------------------------------------------------------------------

    def volume(self, name: str, **source: Any) -> Self:
        """Add any volume by its API fields: `.volume("v", gcePersistentDisk={"pdName": "d"})`."""
        return self._add("volumes", {"name": name, **source})

    def pvc(self, claim: str, name: str | None = None) -> Self:
        return self.volume(name or f"v-{claim}", persistentVolumeClaim={"claimName": claim})

    def ephemeral(self, name: str, claim_spec: Json | None = None) -> Self:
        """Add a generic ephemeral volume; its claim is named <pod>-<volume>."""
        return self.volume(name, ephemeral={"volumeClaimTemplate": {"spec": claim_spec or {}}})
