"""Small clusters in which everything collides: few zones, few labels, few taints, ports and volumes."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from phalanx.testing import builders as b

ZONE, HOST, RACK = "topology.kubernetes.io/zone", "kubernetes.io/hostname", "rack"
KEYS = st.sampled_from([ZONE, HOST, RACK])
NAMES = [f"n{i}" for i in range(5)]
SPACES = st.sampled_from(["default", "default", "default", "other"])
APPS = ["web", "db"]

maybe = st.booleans()
few = st.integers(0, 2)

selectors: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(APPS).map(lambda app: {"app": app}),
    st.sampled_from(APPS).map(lambda app: {"app": app}),
    st.just({}),
    st.sampled_from(
        [
            [("app", "In", ["web", "db"])],
            [("app", "NotIn", ["web"])],
            [("tier", "Exists", [])],
            [("tier", "DoesNotExist", [])],
        ]
    ),
    st.just({"app": "web", "tier": "a"}),
)
expressions = st.sampled_from(
    [
        (ZONE, "In", ["z0"]),
        (ZONE, "NotIn", ["z0"]),
        (RACK, "Exists", []),
        (RACK, "DoesNotExist", []),
        ("size", "Gt", ["1"]),
        ("size", "Lt", ["2"]),
    ]
)


@st.composite
def nodes(draw: st.DrawFn) -> Any:
    name = draw(st.sampled_from(NAMES))
    made = b.node(name).cpu(draw(st.sampled_from(["0", "2", "4", "1500m"]))).mem(draw(st.sampled_from(["1Gi", "4Gi"])))
    made.pods(draw(st.sampled_from([1, 3, 10])))
    if draw(maybe):
        made.gpu(draw(few))
    if draw(st.integers(0, 4)):
        made.zone(f"z{draw(few)}")
    if draw(maybe):
        made.label(RACK, f"r{draw(few)}")
    if draw(maybe):
        made.label("size", draw(st.sampled_from(["1", "2", "big"])))
    if draw(st.integers(0, 5)) == 0:
        del made.metadata["labels"][HOST]
    for effect in draw(st.lists(st.sampled_from(["NoSchedule", "NoExecute", "PreferNoSchedule"]), max_size=2)):
        made.taint(draw(st.sampled_from(["k1", "k2"])), draw(st.sampled_from(["", "v"])), effect)
    if draw(st.integers(0, 5)) == 0:
        made.unschedulable()
    for i, size in enumerate((50, 400)):
        if draw(maybe):
            made.image(size * 1024 * 1024, f"img{i}:latest")
    return made.build()


@st.composite
def calm_nodes(draw: st.DrawFn) -> Any:
    """Nodes with room, so that most are feasible and their scores are compared."""
    made = b.node(draw(st.sampled_from(NAMES))).cpu("16").mem("64Gi").pods(50)
    if draw(st.integers(0, 5)):
        made.zone(f"z{draw(few)}")
    if draw(st.integers(0, 2)):
        made.label(RACK, f"r{draw(st.integers(0, 1))}")
    if draw(st.integers(0, 6)) == 0:
        del made.metadata["labels"][HOST]
    if draw(st.integers(0, 5)) == 0:
        made.taint("k1")
    return made.build()


@st.composite
def _base(draw: st.DrawFn, name: str) -> b.PodBuilder:
    made = b.pod(name).ns(draw(SPACES)).image(draw(st.sampled_from(["img0", "img1:latest"])))
    if draw(st.integers(0, 4)):
        made.label("app", draw(st.sampled_from(APPS)))
    if draw(maybe):
        made.label("tier", draw(st.sampled_from(["a", "b"])))
    if draw(st.integers(0, 7)) == 0:
        made.deleting()
    return made


@st.composite
def plain(draw: st.DrawFn, name: str) -> b.PodBuilder:
    """What the per-node plugins look at."""
    made = draw(_base(name))
    if draw(maybe):
        made.cpu(draw(st.sampled_from(["0", "500m", "1", "3"])))
    if draw(maybe):
        made.mem(draw(st.sampled_from(["100Mi", "2Gi"])))
    if draw(st.integers(0, 3)) == 0:
        made.gpu(1)
    if draw(maybe):
        made.container(draw(st.sampled_from([None, {"cpu": "250m"}])), "img1")
    if draw(maybe):
        made.init(draw(st.sampled_from([None, {"cpu": "2", "memory": "1Gi"}])), sidecar=draw(maybe))
    if draw(st.integers(0, 3)) == 0:
        made.overhead(cpu="100m")
    if draw(st.integers(0, 3)) == 0:
        made.pod_level({"cpu": "1"})
    for port in draw(st.lists(st.sampled_from([80, 81]), max_size=1)):
        made.port(port, draw(st.sampled_from(["TCP", "UDP"])), draw(st.sampled_from(["", "10.0.0.1", "10.0.0.2"])))
    for key in draw(st.lists(st.sampled_from(["", "k1", "k2"]), max_size=2)):
        made.tolerate(key, draw(st.sampled_from(["", "v"])) if key else "", draw(st.sampled_from(["", "NoSchedule"])))
    if draw(st.integers(0, 3)) == 0:
        made.select(ZONE, "z0")
    for expression in draw(st.lists(expressions, max_size=2)):
        made.node_affinity(expression)
    if draw(st.integers(0, 5)) == 0:
        made.node_affinity(fields=[("metadata.name", draw(st.sampled_from(["In", "NotIn"])), ["n0"])])
    for expression in draw(st.lists(expressions, max_size=2)):
        made.prefer_node(draw(st.sampled_from([1, 7, 100])), expression)
    return made


@st.composite
def spreading(draw: st.DrawFn, name: str) -> b.PodBuilder:
    made = draw(_base(name))
    for _ in range(draw(st.integers(0, 3))):
        made.spread(
            draw(KEYS),
            draw(st.one_of(st.none(), selectors)),
            max_skew=draw(st.integers(1, 3)),
            soft=draw(maybe),
            min_domains=draw(st.sampled_from([None, None, 1, 3])),
            node_affinity_policy=draw(st.sampled_from([None, "Honor", "Ignore"])),
            node_taints_policy=draw(st.sampled_from([None, "Honor", "Ignore"])),
            match_label_keys=draw(st.sampled_from([(), ("tier",)])),
        )
    if draw(st.integers(0, 3)) == 0:
        made.node_affinity(draw(expressions))
    if draw(st.integers(0, 3)) == 0:
        made.tolerate("k1")
    if draw(maybe):
        kinds = ["ReplicaSet", "StatefulSet", "ReplicationController", "Job"]
        kind, version = draw(st.sampled_from(kinds)), draw(st.sampled_from(["apps/v1", "apps/v1", "v1"]))
        made.owner(kind, draw(st.sampled_from(["o1", "o2"])), api_version=version)
    return made


@st.composite
def relating(draw: st.DrawFn, name: str) -> b.PodBuilder:
    made = draw(_base(name))
    for _ in range(draw(st.integers(0, 3))):
        method = made.affinity if draw(maybe) else made.anti_affinity
        method(
            draw(KEYS),
            draw(st.one_of(st.none(), selectors)),
            weight=draw(st.sampled_from([None, None, 1, 33, 100])),
            namespaces=draw(st.sampled_from([(), (), ("other",), ("default", "other")])),
            namespace_selector=draw(st.sampled_from([None, None, {}, {"team": "x"}, [("team", "NotIn", ["x"])]])),
            match_label_keys=draw(st.sampled_from([(), (), ("tier",)])),
            mismatch_label_keys=draw(st.sampled_from([(), (), ("app",)])),
        )
    return made


CLAIMS = ["c0", "c1", "c2"]


@st.composite
def storing(draw: st.DrawFn, name: str) -> b.PodBuilder:
    made = draw(_base(name)).ns("default")
    for claim in draw(st.lists(st.sampled_from(CLAIMS), max_size=2, unique=True)):
        made.pvc(claim)
    if draw(st.integers(0, 4)) == 0:
        made.ephemeral("e")
    if draw(st.integers(0, 2)) == 0:
        read_only = draw(maybe)
        made.volume("gce", gcePersistentDisk={"pdName": "d", "readOnly": read_only})
    if draw(st.integers(0, 3)) == 0:
        made.volume("ebs", awsElasticBlockStore={"volumeID": draw(st.sampled_from(["a", "b"]))})
    if draw(st.integers(0, 3)) == 0:
        made.volume("iscsi", iscsi={"iqn": "q", "targetPortal": "t", "readOnly": draw(maybe)})
    if draw(st.integers(0, 3)) == 0:
        monitors = draw(st.sampled_from([["m1"], ["m2"], ["m1", "m2"]]))
        made.volume("rbd", rbd={"monitors": monitors, "image": "i", "pool": "p", "readOnly": draw(maybe)})
    return made


@st.composite
def namespaces(draw: st.DrawFn) -> Any:
    made = b.namespace(draw(st.sampled_from(["default", "other"])))
    if draw(maybe):
        made.label("team", draw(st.sampled_from(["x", "y"])))
    return made.build()


@st.composite
def owners(draw: st.DrawFn) -> Any:
    kind: Any = draw(st.sampled_from([b.service, b.replication_controller, b.replica_set, b.stateful_set]))
    made: Any = kind(draw(st.sampled_from(["o1", "o2"]))).ns(draw(SPACES))
    if kind in (b.service, b.replication_controller):
        return made.select(draw(st.sampled_from([{"app": "web"}, {"app": "web", "tier": "a"}, {}]))).build()
    return made.select(draw(selectors)).build()


@st.composite
def backdrop(draw: st.DrawFn) -> list[Any]:
    """Storage in which most pods can be placed: every claim, volume, class and driver there is, each drawn once."""
    found = [b.storage_class("local").wait().build()]
    wait = b.storage_class("wait").provisioner(draw(st.sampled_from(["d1", "d2"]))).wait()
    if draw(maybe):
        wait.allow(ZONE, "z0", "z1")
    found += [wait.build(), b.storage_class("now").provisioner("d1").immediate().build()]
    for i, claim in enumerate(CLAIMS):
        volume = b.pv(f"v{i}").capacity(draw(st.sampled_from(["1Gi", "2Gi", "5Gi"])))
        volume.csi(draw(st.sampled_from(["d1", "d2"])))
        if draw(st.integers(0, 2)) == 0:
            volume.node_affinity(draw(expressions))
        if draw(st.integers(0, 2)) == 0:
            volume.label(ZONE, draw(st.sampled_from(["z0", "z0__z1", "z1"])))
        made = b.pvc(claim).ask(draw(st.sampled_from(["1Gi", "2Gi"])))
        made.modes(draw(st.sampled_from(["ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"])))
        kind = draw(st.integers(0, 3))
        if kind <= 1:
            volume.storage_class("wait").claimed_by(claim)
            made.storage_class("wait").bound(f"v{i}")
        else:
            name = "local" if kind == 2 else "wait"
            volume.storage_class(name)
            made.storage_class(name)
            if draw(st.integers(0, 2)) == 0:
                volume.claimed_by(claim, uid="")
        found += [volume.build(), made.build()]
    for name in NAMES:
        if draw(maybe):
            csi_node = b.csi_node(name)
            csi_node.driver("d1", draw(st.sampled_from([None, 1, 1, 2])))
            if draw(maybe):
                csi_node.driver("d2", draw(st.sampled_from([None, 1, 2])))
            found.append(csi_node.build())
    if draw(maybe):
        found.append(b.csi_driver("d1").storage_capacity().build())
        found.append(b.storage_capacity("s0").of("wait", "10Gi").on({ZONE: "z0"}).build())
        found.append(b.storage_capacity("s1").of("wait", draw(st.sampled_from(["1Gi", "3Gi"]))).on({}).build())
    return found


@st.composite
def storage(draw: st.DrawFn) -> Any:
    """Any object a volume plugin reads."""
    which = draw(st.integers(0, 9))
    size = st.sampled_from(["1Gi", "2Gi", "5Gi"])
    classes = st.sampled_from(["wait", "wait", "wait", "local", "local", "now", ""])
    if which <= 3:
        claim = b.pvc(draw(st.sampled_from([*CLAIMS, "x-e"]))).ask(draw(size)).storage_class(draw(classes))
        claim.modes(draw(st.sampled_from(["ReadWriteOnce", "ReadWriteOnce", "ReadWriteOncePod"])))
        state = draw(st.integers(0, 15))
        if state <= 4:
            claim.bound(draw(st.sampled_from(["v0", "v1", "v2"])))
        elif state <= 6:
            claim.selected_node(draw(st.sampled_from(NAMES)))
        elif state == 7:
            claim.phase("Lost")
        elif state == 8:
            claim.deleting()
        elif state == 9:
            claim.volume_name("v0")
        if draw(st.integers(0, 5)):
            claim.owner("Pod", "x", "pod:default/x", "v1")
        if draw(st.integers(0, 4)) == 0:
            claim.select({"disk": "fast"})
        return claim.build()
    if which <= 6:
        volume = b.pv(draw(st.sampled_from(["v0", "v1", "v2"]))).capacity(draw(size)).storage_class(draw(classes))
        if draw(maybe):
            volume.csi(draw(st.sampled_from(["d1", "d2"])))
        if draw(maybe):
            volume.node_affinity(draw(expressions))
        if draw(maybe):
            volume.label(ZONE, draw(st.sampled_from(["z0", "z0__z1", "z1", ""])))
        if draw(st.integers(0, 3)) == 0:
            volume.label("failure-domain.beta.kubernetes.io/zone", "z0")
        if draw(st.integers(0, 3)) == 0:
            volume.label("disk", "fast")
        if draw(st.integers(0, 2)) == 0:
            volume.claimed_by(draw(st.sampled_from(CLAIMS)), uid=draw(st.sampled_from([None, ""])))
            volume.phase(draw(st.sampled_from(["Available", "Bound"])))
        return volume.build()
    if which == 7:
        name = draw(st.sampled_from(["wait", "local", "now"]))
        made = b.storage_class(name)
        if name != "local":
            made.provisioner(draw(st.sampled_from(["d1", "d2"])))
        if name == "now":
            made.immediate()
        else:
            made.wait()
        if draw(maybe):
            made.allow(ZONE, *draw(st.sampled_from([("z0",), ("z0", "z1")])))
        return made.build()
    if which == 8:
        csi_node = b.csi_node(draw(st.sampled_from(NAMES)))
        for driver in draw(st.lists(st.sampled_from(["d1", "d2"]), max_size=2, unique=True)):
            csi_node.driver(driver, draw(st.sampled_from([None, 0, 1, 2])))
        return csi_node.build()
    if draw(maybe):
        driver_object = b.csi_driver(draw(st.sampled_from(["d1", "d2"]))).storage_capacity(draw(maybe))
        driver_object.spec["preventPodSchedulingIfMissing"] = draw(maybe)
        return driver_object.build()
    capacity = b.storage_capacity(draw(st.sampled_from(["s0", "s1"])))
    capacity.of("wait", draw(st.sampled_from(["1Gi", "10Gi", None])), draw(st.sampled_from([None, "2Gi"])))
    return capacity.on(draw(st.sampled_from([{}, {ZONE: "z0"}, [(RACK, "Exists", [])]]))).build()
