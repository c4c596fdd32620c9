"""Pods with volumes: where they may run, what is bound for them, and what they wait for."""

from __future__ import annotations

from typing import Any

from phalanx.engine import decisions as d
from phalanx.engine.events import CONFLICT, Outcome
from phalanx.testing import Cluster
from phalanx.testing.builders import (
    csi_driver,
    csi_node,
    node,
    pod,
    pv,
    pvc,
    storage_capacity,
    storage_class,
)
from support.verdicts import binds, no_victims, not_helpful

HOST = "kubernetes.io/hostname"
ZONE = "topology.kubernetes.io/zone"


def cluster(nodes: int = 3) -> Cluster:
    return Cluster().see(*(node(f"n{i}").zone(f"z{i}") for i in range(nodes)))


def writes(decisions: list[d.Decision]) -> list[d.Decision]:
    return [each for each in decisions if isinstance(each, d.BindVolume | d.ProvisionVolume)]


def bind_claim(run: Cluster, claim: Any, volume: Any) -> None:
    """What the PersistentVolume controller does in the end."""
    run.see(volume.claimed_by(claim.metadata["name"]), claim.bound(volume.metadata["name"]))


def test_a_missing_claim_is_named_and_waited_for():
    run = cluster().see(pod("p").pvc("data"))
    assert binds(run.step()) == {}
    assert run.messages("p") == [not_helpful('0/3 nodes are available: persistentvolumeclaim "data" not found.')]
    run.see(pv("v").claimed_by("data"), pvc("data").bound("v"))
    assert len(binds(run.step(60))) == 1


def test_an_immediate_claim_must_be_bound_first():
    run = cluster().see(storage_class("now").provisioner("d").immediate(), pvc("data").storage_class("now"))
    run.see(pod("p").pvc("data"))
    assert binds(run.step()) == {}
    assert run.messages("p") == [
        not_helpful("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.")
    ]


def test_a_local_volume_pulls_its_pod_to_its_node():
    run = cluster().see(pv("v").node_affinity((HOST, "In", ["n2"])).claimed_by("data"), pvc("data").bound("v"))
    run.see(pod("p").pvc("data"))
    assert binds(run.step()) == {"p": "n2"}


def test_a_zonal_volume_keeps_its_pod_in_the_zone():
    run = cluster().see(pv("v").label(ZONE, "z1").claimed_by("data"), pvc("data").bound("v"))
    run.see(pod("p").pvc("data"))
    assert binds(run.step()) == {"p": "n1"}
    run.see(pv("w").label(ZONE, "z9").claimed_by("other"), pvc("other").bound("w"), pod("q").pvc("other"))
    run.step()
    assert run.messages("q") == [not_helpful("0/3 nodes are available: 3 node(s) had no available volume zone.")]


def test_the_smallest_volume_that_fits_is_bound_before_the_pod():
    run = cluster().see(storage_class("local").wait())
    volumes = [
        pv(name).storage_class("local").capacity(size).node_affinity((HOST, "In", [where]))
        for name, size, where in (("big", "9Gi", "n1"), ("tiny", "1Gi", "n1"), ("right", "3Gi", "n1"))
    ]
    claim = pvc("data").storage_class("local").ask("2Gi")
    run.see(*volumes, claim, pod("p").pvc("data"))
    decisions = run.step()
    assert binds(decisions) == {}
    assert [(w.name, w.claim_name) for w in writes(decisions) if isinstance(w, d.BindVolume)] == [("right", "data")]
    assert writes(run.step(1)) == []
    bind_claim(run, claim, volumes[2])
    assert binds(run.step()) == {"p": "n1"}


def test_two_pods_never_get_one_volume():
    run = cluster().see(storage_class("local").wait(), pv("v").storage_class("local"))
    run.see(pvc("a").storage_class("local"), pvc("b").storage_class("local"))
    run.see(pod("p").pvc("a"), pod("q").pvc("b"))
    decisions = run.step()
    assert [w.claim_name for w in writes(decisions) if isinstance(w, d.BindVolume)] == ["a"]
    assert run.messages("q") == [
        not_helpful("0/3 nodes are available: 3 node(s) didn't find available persistent volumes to bind.")
    ]


def test_a_new_volume_is_asked_for_where_the_pod_goes():
    run = cluster().see(storage_class("fast").provisioner("d").wait().allow(ZONE, "z1"))
    claim = pvc("data").storage_class("fast")
    run.see(claim, pod("p").pvc("data"))
    decisions = run.step()
    assert [(w.name, w.node) for w in writes(decisions) if isinstance(w, d.ProvisionVolume)] == [("data", "n1")]
    assert binds(decisions) == {}
    run.see(claim.selected_node("n1"))
    assert binds(run.step(1)) == {}
    bind_claim(run, claim, pv("made").storage_class("fast"))
    assert binds(run.step(1)) == {"p": "n1"}


def test_a_provisioner_that_gives_up_sends_the_pod_back():
    run = cluster().see(storage_class("fast").provisioner("d").wait())
    claim = pvc("data").storage_class("fast")
    run.see(claim, pod("p").pvc("data"))
    run.step()
    run.see(claim.copy().selected_node("n0"))
    run.step(1)
    run.see(claim)
    assert binds(run.step(1)) == {}
    assert 'binding volumes: provisioning failed for PVC "data"' in run.messages("p")
    again = [w for w in writes(run.step(60)) if isinstance(w, d.ProvisionVolume)]
    assert [w.name for w in again] == ["data"]


def test_a_volume_that_another_pod_took_sends_the_pod_back():
    run = cluster().see(storage_class("local").wait(), pv("v").storage_class("local"), pv("w").storage_class("local"))
    run.see(pvc("data").storage_class("local"), pod("p").pvc("data"))
    [first] = writes(run.engine.step(run.now, 100))
    assert isinstance(first, d.BindVolume)
    run.engine.apply(Outcome(first.id, CONFLICT, "the object has been modified"))
    run.see(pv("v").storage_class("local").claimed_by("theirs"))
    run.step()
    [second] = writes(run.step(60))
    assert (first.name, second.name) == ("v", "w")
    assert run.messages("p") == ["binding volumes: v: the object has been modified"]


def test_waiting_for_volumes_ends_after_the_bind_timeout():
    run = cluster().see(storage_class("fast").provisioner("d").wait(), pvc("data").storage_class("fast"))
    run.see(pod("p").pvc("data"))
    run.step()
    run.step(599)
    assert run.messages("p") == []
    run.step(2)
    assert any("timed out" in message for message in run.messages("p"))


def test_pools_without_room_are_left_out():
    run = cluster().see(
        storage_class("pool").provisioner("d").wait(),
        csi_driver("d").storage_capacity(),
        storage_capacity("small").of("pool", "1Gi").on({ZONE: "z0"}),
        storage_capacity("large").of("pool", "50Gi").on({ZONE: "z2"}),
        pvc("data").storage_class("pool").ask("5Gi"),
        pod("p").pvc("data"),
    )
    assert [w.node for w in writes(run.step()) if isinstance(w, d.ProvisionVolume)] == ["n2"]
    run.see(pvc("huge").storage_class("pool").ask("500Gi"), pod("q").pvc("huge"))
    run.step()
    assert run.messages("q") == [not_helpful("0/3 nodes are available: 3 node(s) did not have enough free storage.")]


def test_a_claim_for_one_pod_is_not_shared():
    run = cluster().see(pv("v").claimed_by("data"), pvc("data").modes("ReadWriteOncePod").bound("v"))
    run.see(pod("p").pvc("data"))
    assert len(binds(run.step())) == 1
    run.see(pod("q").pvc("data"))
    assert binds(run.step()) == {}
    assert "ReadWriteOncePod access mode already in-use by another pod" in run.messages("q")[0]
    run.gone("Pod", "p")
    assert set(binds(run.step(60))) == {"q"}


def test_a_disk_is_not_mounted_twice_on_a_node_unless_read_only():
    run = cluster(1)
    disk = {"pdName": "d", "readOnly": False}
    run.see(pod("p").volume("d", gcePersistentDisk=disk), pod("q").volume("d", gcePersistentDisk=disk))
    assert len(binds(run.step())) == 1
    read = {"pdName": "e", "readOnly": True}
    run.see(pod("r").volume("d", gcePersistentDisk=read), pod("s").volume("d", gcePersistentDisk=read))
    assert set(binds(run.step())) == {"r", "s"}


def test_a_node_takes_as_many_volumes_as_its_driver_allows():
    run = cluster(1).see(csi_node("n0").driver("d", 2))
    for i in range(3):
        run.see(pv(f"v{i}").csi("d").claimed_by(f"c{i}"), pvc(f"c{i}").bound(f"v{i}"), pod(f"p{i}").pvc(f"c{i}"))
    assert set(binds(run.step())) == {"p0", "p1"}
    assert run.messages("p2") == [no_victims("0/1 nodes are available: 1 node(s) exceed max volume count.")]
    run.see(pod("again").pvc("c0"))
    assert set(binds(run.step())) == {"again"}
    run.gone("Pod", "p1")
    assert set(binds(run.step(60))) == {"p2"}


def test_a_claim_that_turns_out_to_be_a_csi_volume_counts_from_then_on():
    run = cluster(1).see(csi_node("n0").driver("d", 1))
    run.see(pv("v0").claimed_by("c0"), pvc("c0").bound("v0"), pv("v1").csi("d").claimed_by("c1"), pvc("c1").bound("v1"))
    run.see(pod("p").pvc("c0").node("n0"), pod("probe").pvc("c1"))
    assert set(binds(run.step())) == {"probe"}
    run.gone("Pod", "probe").see(pv("v0").csi("d").claimed_by("c0"), pod("q").pvc("c1"))
    assert binds(run.step()) == {}
    assert run.messages("q") == [no_victims("0/1 nodes are available: 1 node(s) exceed max volume count.")]


def test_a_trial_that_is_undone_gives_the_volume_back():
    run = cluster(1).see(storage_class("local").wait(), pv("v").storage_class("local"))
    run.see(pvc("a").storage_class("local"), pvc("b").storage_class("local"), pod("p").pvc("a"))
    engine = run.engine
    plugin = engine.profiles["default-scheduler"].plugins["VolumeBinding"]
    record = engine.pods.records["default/p"]
    mark = engine.columns.journal.mark()
    engine.columns.place(record, 0)
    assert plugin.reserve(record, 0) is None
    assert plugin.state.volume_for == {"v": ("default", "a")}
    engine.columns.journal.rewind(mark)
    assert plugin.state.volume_for == {}
    run.gone("Pod", "p").see(pod("q").pvc("b"))
    assert [w.claim_name for w in writes(run.step()) if isinstance(w, d.BindVolume)] == ["b"]


def test_an_ephemeral_volume_waits_for_its_own_claim():
    run = cluster(1).see(pod("p").ephemeral("scratch"))
    run.step()
    waiting = 'waiting for ephemeral volume controller to create the persistentvolumeclaim "p-scratch"'
    assert run.messages("p") == [not_helpful(f"0/1 nodes are available: {waiting}.")]
    foreign = pvc("p-scratch").bound("v")
    run.see(pv("v").claimed_by("p-scratch"), foreign)
    run.step(60)
    assert "was not created for pod default/p" in run.messages("p")[-1]
    run.see(foreign.owner("Pod", "p", "pod:default/p", "v1"))
    assert set(binds(run.step(60))) == {"p"}
