"""CustomResourceDefinitions of the scheduling kinds and of WorkloadPolicy, made from the tables of those kinds.

For clusters that do not serve them natively; no cluster does so for WorkloadPolicy. They live in
scheduling.phalanx.dev: kube-apiserver never passes requests below /apis/scheduling.k8s.io, a group of its own, on to
custom resources. Schemas are structural, so trees of templates are written out to the greatest depth that is allowed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from phalanx.base.well_known import INT_OR_STRING, LIST_MAP_KEYS, LIST_TYPE, PHALANX_API, PRESERVE_UNKNOWN_FIELDS
from phalanx.model import tables
from phalanx.model.kinds import Json
from phalanx.model.openapi_schema import PLAIN, one_of_rule
from phalanx.model.printing.groups import HEALTHY
from phalanx.model.schema import Field, ListOf, MapOf, Object, Scalar, Type

LEVELS = 3  # nested composite templates above the leaves: KEP-6012 allows trees of depth 4

_KEPT_WHOLE = ("core/v1.PodTemplateSpec",)  # as the API server has them: its schema would be longer than all others

_SCALARS: dict[str, Json] = PLAIN | {
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "duration": {"type": "string"},
    "quantity": {INT_OR_STRING: True},
    "intorstring": {INT_OR_STRING: True},
}
_RECURSIVE = "compositePodGroupTemplates"
_AGE = {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}


def definitions() -> list[Json]:
    scheduled = {
        "name": "Scheduled",
        "type": "string",
        "description": "Whether the group was placed.",
    }
    state = [
        {"name": "Placed", "type": "integer", "jsonPath": ".status.scheduledPods"},
        {"name": "Pods", "type": "integer", "jsonPath": ".status.pods"},
        {"name": "Status", "type": "string", "jsonPath": f'.status.conditions[?(@.type=="{HEALTHY}")].reason'},
    ]
    group = [
        {"name": "Min", "type": "integer", "jsonPath": ".spec.schedulingPolicy.gang.minCount"},
        {**scheduled, "jsonPath": '.status.conditions[?(@.type=="PodGroupInitiallyScheduled")].status'},
        *state,
        {"name": "Workload", "type": "string", "jsonPath": ".spec.workloadRef.workloadName"},
    ]
    composite = [
        {"name": "Min", "type": "integer", "jsonPath": ".spec.schedulingPolicy.gang.minGroupCount"},
        {**scheduled, "jsonPath": '.status.conditions[?(@.type=="CompositePodGroupInitiallyScheduled")].status'},
        *state,
        {"name": "Workload", "type": "string", "jsonPath": ".spec.workloadRef.workloadName"},
    ]
    # The columns of the native kind (model/printing); a path cannot join two fields.
    owner = [
        {
            **scheduled,
            "description": "Whether all its groups have their minimum.",
            "jsonPath": '.status.conditions[?(@.type=="Scheduled")].status',
        },
        {"name": "Groups", "type": "integer", "jsonPath": ".status.groups"},
        {"name": "Pods", "type": "integer", "jsonPath": ".status.pods"},
        {"name": "Placed", "type": "integer", "jsonPath": ".status.scheduledPods"},
        {"name": "For", "type": "string", "jsonPath": ".spec.controllerRef.kind"},
        {"name": "Name-of", "type": "string", "jsonPath": ".spec.controllerRef.name"},
    ]
    policy = [
        {"name": "Kind", "type": "string", "jsonPath": ".spec.targetRef.kind"},
        {"name": "Target", "type": "string", "jsonPath": ".spec.targetRef.name"},
        {"name": "Rescheduling", "type": "string", "jsonPath": ".spec.rescheduling.policy"},
        {"name": "Accepted", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Accepted")].status'},
        {"name": "Groups", "type": "integer", "jsonPath": ".status.matchedGroups"},
    ]
    return [
        _definition("Workload", "v1beta1", owner),
        _definition("PodGroup", "v1beta1", group),
        _definition("CompositePodGroup", "v1alpha3", composite),
        _definition("WorkloadPolicy", "v1alpha1", policy, plural="workloadpolicies", table="phalanx", short="wlp"),
    ]


def manifest(*, policies: bool = False) -> str:
    """Return definitions as YAML: those of groups, which newer clusters serve themselves, or that of WorkloadPolicy.

    `python -m phalanx.model.crds` writes both below deploy/.
    """
    head = "# Generated from the tables of the API model; a test says when it must be written again.\n"
    chosen = [body for body in definitions() if (body["spec"]["names"]["kind"] == "WorkloadPolicy") == policies]
    return head + yaml.dump_all(chosen, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _definition(
    kind: str, version: str, columns: list[Json], *, plural: str = "", table: str = "scheduling", short: str = ""
) -> Json:
    record = tables.record(f"{table}/{version}.{kind}")
    served: Json = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": _root(record)},
        "additionalPrinterColumns": [*columns, _AGE],
        "subresources": {"status": {}},
    }
    plural = plural or f"{kind.lower()}s"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{PHALANX_API}", "labels": {"app.kubernetes.io/part-of": "phalanx"}},
        "spec": {
            "group": PHALANX_API,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                **({"shortNames": [short]} if short else {}),
                "categories": ["phalanx"],
            },
            "versions": [served],
        },
    }


def _root(record: Object) -> Json:
    schema = _record(record, 0)
    schema["properties"] |= {
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
    }
    return schema


def _record(record: Object, level: int) -> Json:
    """Return the schema of a record.

    level: how many lists of composite templates are above it.
    """
    fields = {key: field for key, field in record.fields.items() if key != _RECURSIVE or level < LEVELS}
    found: Json = {"type": "object"}
    if record.doc:
        found["description"] = record.doc
    if fields:
        found["properties"] = {key: _field(field, level + (key == _RECURSIVE)) for key, field in fields.items()}
    if required := [key for key, field in fields.items() if field.required]:
        found["required"] = required
    if all(name in fields for name in record.one_of):
        found |= one_of_rule(record)
    if record.atomic:
        found["x-kubernetes-map-type"] = "atomic"
    return found


def _field(field: Field, level: int) -> Json:
    found = _type(field.type, level)
    if field.doc:
        found["description"] = field.doc
    found |= {name: bound for name, bound in field.limits if name != "format"}
    if isinstance(field.type, ListOf):
        found[LIST_TYPE] = field.type.kind
        if field.type.keys:
            found[LIST_MAP_KEYS] = list(field.type.keys)
    return found


def _type(kind: Type, level: int) -> Json:
    if isinstance(kind, Object):
        if kind.name in _KEPT_WHOLE:
            return {"type": "object", PRESERVE_UNKNOWN_FIELDS: True}
        return _record(kind, level)
    if isinstance(kind, ListOf):
        return {"type": "array", "items": _type(kind.item, level)}
    if isinstance(kind, MapOf):
        return {"type": "object", "additionalProperties": _type(kind.value, level)}
    assert isinstance(kind, Scalar)
    return dict(_SCALARS[kind.name])


def main() -> None:
    deploy = Path(__file__).parents[3] / "deploy"
    (deploy / "components" / "custom-resources" / "10-crds.yaml").write_text(manifest())
    (deploy / "base" / "10-policies.yaml").write_text(manifest(policies=True))


if __name__ == "__main__":
    main()
