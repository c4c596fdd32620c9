"""The tables: complete, consistent, and in agreement with the typed views."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
from msgspec import inspect

from phalanx.model import builtin, objects, tables
from phalanx.model.gates import Gates
from phalanx.model.schema import ListOf, MapOf, Object, Scalar, Type

_VIEWS = {
    objects.Pod: "core/v1.Pod",
    objects.Node: "core/v1.Node",
    objects.Namespace: "core/v1.Namespace",
    objects.Service: "core/v1.Service",
    objects.PersistentVolume: "core/v1.PersistentVolume",
    objects.PersistentVolumeClaim: "core/v1.PersistentVolumeClaim",
    objects.ReplicationController: "core/v1.ReplicationController",
    objects.ResourceQuota: "core/v1.ResourceQuota",
    objects.ReplicaSet: "apps/v1.ReplicaSet",
    objects.StatefulSet: "apps/v1.StatefulSet",
    objects.PodDisruptionBudget: "policy/v1.PodDisruptionBudget",
    objects.StorageClass: "storage/v1.StorageClass",
    objects.CSINode: "storage/v1.CSINode",
    objects.CSIDriver: "storage/v1.CSIDriver",
    objects.CSIStorageCapacity: "storage/v1.CSIStorageCapacity",
    objects.PriorityClass: "scheduling/v1.PriorityClass",
    objects.ResourceClaim: "resource/v1.ResourceClaim",
    objects.ResourceClaimTemplate: "resource/v1.ResourceClaimTemplate",
    objects.ResourceSlice: "resource/v1.ResourceSlice",
    objects.DeviceClass: "resource/v1.DeviceClass",
    objects.DeviceTaintRule: "resource/v1.DeviceTaintRule",
    objects.PodGroup: "scheduling/v1beta1.PodGroup",
    objects.Workload: "scheduling/v1beta1.Workload",
    objects.WorkloadPolicy: "phalanx/v1alpha1.WorkloadPolicy",
    objects.CompositePodGroup: "scheduling/v1alpha3.CompositePodGroup",
}
# Readers share one struct for records that are nearly alike; these fields are simply never there.
_ABSENT = {"PersistentVolumeClaim.spec.resources.claims", "DeviceClass.spec.config[].requests"}
_PYTHON = {
    "string": {inspect.StrType},
    "bytes": {inspect.StrType},
    "time": {inspect.StrType},
    "microtime": {inspect.StrType},
    "duration": {inspect.StrType},
    "bool": {inspect.BoolType},
    "int32": {inspect.IntType},
    "int64": {inspect.IntType},
    "double": {inspect.FloatType, inspect.IntType},
    "quantity": {inspect.StrType, inspect.IntType, inspect.FloatType},
    "intorstring": {inspect.StrType, inspect.IntType},
}


def _disagreements(view: inspect.Type, kind: Type, path: str, seen: set[tuple[str, type]]) -> list[str]:
    if isinstance(view, inspect.UnionType):
        parts = [part for part in view.types if not isinstance(part, inspect.NoneType)]
        if isinstance(kind, Scalar):
            found = {type(part) for part in parts}
            return [] if found <= _PYTHON[kind.name] else [f"{path}: {found} is not {kind.name}"]
        assert len(parts) == 1, path
        view = parts[0]
    if isinstance(view, inspect.AnyType) or (isinstance(view, inspect.DictType) and isinstance(kind, Object)):
        return []  # a part that readers take as plain JSON
    if isinstance(kind, Scalar) and kind.name == "json":
        return []  # any shape, as `fieldsV1`
    if isinstance(kind, Scalar):
        return [] if type(view) in _PYTHON[kind.name] else [f"{path}: {type(view).__name__} is not {kind.name}"]
    if isinstance(kind, ListOf):
        if not isinstance(view, inspect.ListType):
            return [f"{path}: not a list"]
        return _disagreements(view.item_type, kind.item, path + "[]", seen)
    if isinstance(kind, MapOf):
        if not isinstance(view, inspect.DictType):
            return [f"{path}: not a map"]
        return _disagreements(view.value_type, kind.value, path + "{}", seen)
    if not isinstance(view, inspect.StructType):
        return [f"{path}: not a record"]
    if (kind.name, view.cls) in seen:
        return []
    seen.add((kind.name, view.cls))
    found_here: list[str] = []
    for field in view.fields:
        declared = kind.fields.get(field.encode_name)
        at = f"{path}.{field.encode_name}"
        if declared is None and at in _ABSENT:
            continue
        if declared is None:
            found_here.append(f"{at}: no such field in {kind.name}")
        else:
            found_here += _disagreements(field.type, declared.type, at, seen)
    return found_here


@pytest.mark.parametrize("view", list(_VIEWS), ids=lambda view: view.__name__)
def test_every_field_a_typed_view_reads_is_in_the_tables(view: type[msgspec.Struct]) -> None:
    assert _disagreements(inspect.type_info(view), tables.record(_VIEWS[view]), view.__name__, set()) == []


def test_every_kind_with_a_view_was_checked() -> None:
    unchecked = {name for name in objects.__all__ if getattr(objects, name) not in _VIEWS}
    assert unchecked == {"Condition", "LabelSelector", "ObjectMeta", "OwnerReference"}  # parts of the others


def _records() -> list[Object]:
    return [record for table in tables.tables() for record in tables.records(table)]


def test_field_numbers_are_used_once_in_a_record() -> None:
    for record in _records():
        numbers = [field.number for field in (*record.fields.values(), *record.embedded) if field.number]
        assert len(numbers) == len(set(numbers)), record.name


def test_keys_of_keyed_lists_are_fields_of_the_items() -> None:
    for record in _records():
        for field in record.fields.values():
            if not isinstance(field.type, ListOf):
                continue
            keys = [*field.type.keys, *([field.type.patch_key] if field.type.patch_key else [])]
            if keys:
                assert isinstance(field.type.item, Object), f"{record.name}.{field.name}"
                assert set(keys) <= set(field.type.item.fields), f"{record.name}.{field.name}"
            assert (field.type.kind == "map") == bool(field.type.keys), f"{record.name}.{field.name}"


def test_scheduling_kinds_are_explained_completely() -> None:
    silent = [
        f"{record.name}.{field.name}"
        for record in _records()
        if record.name.startswith("scheduling/")
        for field in record.fields.values()
        if not field.doc or not record.doc
    ]
    assert silent == []


def test_embedded_records_are_flat_in_json_and_nested_on_the_wire() -> None:
    volume = tables.record("core/v1.Volume")
    assert volume.fields["persistentVolumeClaim"].inline
    assert [(each.name, each.number) for each in volume.embedded] == [("VolumeSource", 2)]


def test_pods_join_groups_in_both_ways() -> None:
    spec = tables.record("core/v1.PodSpec")
    assert (spec.fields["workloadRef"].number, spec.fields["schedulingGroup"].number) == (42, 43)
    reference = spec.fields["workloadRef"].type
    assert isinstance(reference, Object)
    assert list(reference.fields) == ["name", "podGroup", "podGroupReplicaKey"]


def test_merge_rules_that_people_rely_on() -> None:
    pod = tables.record("core/v1.PodSpec").fields
    assert pod["containers"].type.keys == ("name",)  # type: ignore[union-attr]
    assert pod["containers"].type.patch_key == "name"  # type: ignore[union-attr]
    assert pod["volumes"].type.retain_keys  # type: ignore[union-attr]
    ports = tables.record("core/v1.Container").fields["ports"].type
    assert isinstance(ports, ListOf)
    assert (ports.keys, ports.patch_key) == (("containerPort", "protocol"), "containerPort")
    taints = tables.record("core/v1.NodeSpec").fields["taints"].type
    assert isinstance(taints, ListOf)
    assert not taints.patch_merge
    assert tables.record("apps/v1.DeploymentSpec").fields["strategy"].retain_keys
    assert tables.record("meta/v1.LabelSelector").atomic


def test_gates_decide_what_is_served() -> None:
    off = builtin.registry(Gates({"GenericWorkload": False, "CompositePodGroup": False}))
    assert off.by_path("scheduling.k8s.io", "v1beta1", "workloads") is None
    assert off.by_path("scheduling.k8s.io", "v1", "priorityclasses") is not None
    some = builtin.registry(Gates({"CompositePodGroup": False}))
    assert some.by_path("scheduling.k8s.io", "v1alpha3", "compositepodgroups") is None
    assert some.by_path("scheduling.k8s.io", "v1alpha3", "podgroups") is not None
    on = builtin.registry(Gates())
    assert on.by_path("scheduling.k8s.io", "v1alpha3", "compositepodgroups") is not None


def test_versions_come_in_order_of_preference() -> None:
    served = builtin.registry(Gates()).group_versions()
    assert served[0] == ("", "v1")
    assert [version for group, version in served if group == "scheduling.k8s.io"] == [
        "v1", "v1beta1", "v1alpha3", "v1alpha1",
    ]  # fmt: skip


def test_workload_rules_views_and_columns_are_wired() -> None:
    workload = builtin.registry(Gates()).by_path("scheduling.k8s.io", "v1alpha1", "workloads")
    assert workload is not None
    assert workload.validate_create is not None
    assert workload.version("v1alpha1").from_storage is not None
    assert workload.version("v1alpha1").to_storage is not None
    assert [column.name for column in workload.columns] == ["Name", "Status", "Groups", "Pods", "Age"]


def test_both_kinds_of_events_are_one_stored_object() -> None:
    registry = builtin.registry(Gates())
    core = registry.by_path("", "v1", "events")
    other = registry.by_path("events.k8s.io", "v1", "events")
    assert core is not None
    assert other is not None
    assert core.storage_key == other.storage_key == "events"
    assert registry.by_storage_key("events") is core
    view = other.version("v1")
    assert view.from_storage is not None
    assert view.to_storage is not None
    stored = {"apiVersion": "v1", "kind": "Event", "involvedObject": {"name": "a"}, "message": "m", "count": 2}
    shown = view.from_storage(stored)
    assert shown["regarding"] == {"name": "a"}
    assert shown["note"] == "m"
    assert view.to_storage(shown) == stored
    assert other.selectable["regarding.name"](stored) == "a"


def test_field_selectors_show_zero_values_as_text() -> None:
    pods = builtin.registry(Gates()).by_path("", "v1", "pods")
    assert pods is not None
    assert pods.selectable["spec.hostNetwork"]({"spec": {}}) == "false"
    assert pods.selectable["spec.nodeName"]({}) == ""
    assert pods.selectable["status.podIPs"]({"status": {"podIPs": [{"ip": "1.2.3.4"}]}}) == "1.2.3.4"


def test_the_registry_is_ready_quickly() -> None:
    code = (
        "import msgspec, yaml, dataclasses, re, time; start = time.process_time();"
        "from phalanx.model import builtin; builtin.registry();"
        "print(time.process_time() - start)"
    )
    runs = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    assert min(runs) < 1  # about 0.1 s of computing; the bound only catches an accident


def test_tables_are_complete_for_several_threads_that_ask_first() -> None:
    """Several clusters may start at once, each in its thread."""
    script = """
import sys, threading
from phalanx.model import tables
sys.setswitchinterval(1e-6)
names = ["apps/v1.Deployment", "core/v1.Pod", "events/v1.Event", "batch/v1.Job", "core/v1.Event"]
start, found = threading.Barrier(8), []
def ask(turn):
    start.wait()
    found.extend(len(tables.record(name).fields) for name in names[turn % 5:] + names[:turn % 5])
threads = [threading.Thread(target=ask, args=(turn,)) for turn in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(found) == 40 and len(set(found)) <= 5, found
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
