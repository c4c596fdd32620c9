"""The harness of the differential tests: an engine, changes made to it, and the reference's opinion of the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from hypothesis import strategies as st

from phalanx.engine import events as e
from phalanx.engine.engine import Engine
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.settings import EngineSettings, ProfileSettings
from phalanx.model import objects as o
from phalanx.testing import builders as b
from support import reference
from support.reference.cluster import Cluster
from support.reference.plugin import Plugin, Rejection
from support.strategies import NAMES

PROFILE = "default-scheduler"
RELATIONS = {"PodTopologySpread", "InterPodAffinity"}
Pods = Callable[[str], st.SearchStrategy[b.PodBuilder]]
VOLUMES = {"VolumeRestrictions", "NodeVolumeLimits", "VolumeBinding", "VolumeZone"}


class World:
    """Applies changes to an engine and compares every plugin with the reference, about the columns as they are."""

    def __init__(
        self, plugins: Sequence[Plugin] = reference.PLUGINS, args: dict[str, dict[str, Any]] | None = None
    ) -> None:
        self.engine = Engine(EngineSettings(profiles=(ProfileSettings(args=args or {}),)))
        self.plugins = plugins
        self.pods: dict[str, o.Pod] = {}  # every pod ever seen, by key; the columns say which count

    # ---- changes

    def see(self, thing: Any) -> None:
        if isinstance(thing, o.Pod):
            self.pods[f"{thing.metadata.namespace}/{thing.metadata.name}"] = thing
        self.engine.apply(e.CHANGED_BY_KIND[type(thing).__name__](thing))

    def gone(self, thing: Any) -> None:
        meta = thing.metadata
        self.engine.apply(e.Gone(type(thing).__name__, meta.name, meta.namespace))

    def trial(self, moves: Sequence[tuple[str, int]], pods: Sequence[o.Pod]) -> None:
        """Take pods off and put others on, look, and undo: both views must be right."""
        columns = self.engine.columns
        mark = columns.journal.mark()
        for key, at in moves:
            record = self.engine.pods.records.get(key)
            rows = sorted(columns.row_of.values())
            if record is None or not rows:
                continue
            if record.row >= 0:
                columns.unplace(record)
            else:
                columns.place(record, rows[at % len(rows)])
        for pod in pods:
            self.check(pod)
        columns.journal.rewind(mark)
        for pod in pods:
            self.check(pod)

    # ---- the reference's world

    def cluster(self) -> Cluster:
        columns, objects = self.engine.columns, self.engine.objects
        cluster = Cluster(
            nodes=[node for node in columns.nodes if node is not None],
            namespaces=list(objects.all(o.Namespace)),
            services=list(objects.all(o.Service)),
            replication_controllers=list(objects.all(o.ReplicationController)),
            replica_sets=list(objects.all(o.ReplicaSet)),
            stateful_sets=list(objects.all(o.StatefulSet)),
            volumes=list(objects.all(o.PersistentVolume)),
            claims=list(objects.all(o.PersistentVolumeClaim)),
            classes=list(objects.all(o.StorageClass)),
            csi_nodes=list(objects.all(o.CSINode)),
            csi_drivers=list(objects.all(o.CSIDriver)),
            capacities=list(objects.all(o.CSIStorageCapacity)),
        )
        for name, records in zip(columns.names, columns.pods, strict=True):
            for key in records:
                cluster.pods.append(on_node(self.pods[key], name))
        return cluster

    # ---- comparison

    def check(self, pod: o.Pod) -> None:
        """The evaluation that followed all changes, and one made from scratch, against the reference."""
        engine = self.engine
        shape = engine.shapes.of(pod)
        followed = engine.evaluations.of(shape, engine.profiles[PROFILE])
        fresh = Evaluation(shape, engine.profiles[PROFILE], engine.columns, engine.objects)
        opinion = Opinion(pod, self.cluster(), self.plugins)
        for evaluation in (followed, fresh):
            evaluation.refresh()
            self._compare(evaluation, opinion)

    def _compare(self, evaluation: Evaluation, opinion: Opinion) -> None:
        status = evaluation.pre_filter()
        refused = opinion.refused
        if refused is None:
            assert status is None, status
        else:
            assert status is not None, refused
            assert (status.plugin, status.reasons) == (refused.plugin, refused.reasons)
        self._compare_filters(evaluation, opinion)
        if refused is None:
            self._compare_scores(evaluation, opinion)

    def _compare_filters(self, evaluation: Evaluation, opinion: Opinion) -> None:
        columns = self.engine.columns
        trackers = {plugin.name: tracker for plugin, tracker in evaluation.filters}
        for plugin, verdicts in opinion.verdicts.items():
            tracker = trackers.get(plugin)
            for name, expected in verdicts.items():
                row = columns.row_of[name]
                passes = tracker is None or bool(tracker.mask[row])
                assert passes == (expected is None), (plugin, name, expected)
                if expected is None or tracker is None:
                    continue
                findings = tracker.explain(np.array([row]))
                assert sorted(f.reason for f in findings) == sorted(expected.reasons), (plugin, findings)
                assert any(f.unresolvable for f in findings) == expected.unresolvable, (plugin, findings)
        if opinion.refused is None:
            found = {columns.names[row] for row in np.flatnonzero(evaluation.feasible)}
            assert found == {node.metadata.name for node in opinion.feasible}

    def _compare_scores(self, evaluation: Evaluation, opinion: Opinion) -> None:
        columns = self.engine.columns
        best = evaluation.best()
        if not opinion.feasible:
            assert best == -1
            assert evaluation.diagnose().message == opinion.message
            return
        shares = {term.plugin.name: term.tracker.raw for term in evaluation._plain}
        shares |= {term.plugin.name: term.scaled / term.weight for term in evaluation._normalised}
        for plugin, scores in opinion.scores.items():
            for name, expected in scores.items():
                found = shares[plugin][columns.row_of[name]] if plugin in shares else 0.0
                assert found == expected, (plugin, name, found, expected)
        for term in evaluation._normalised:
            for name, expected in opinion.raw.get(term.plugin.name, {}).items():
                found = term.tracker.raw[columns.row_of[name]]
                assert found == expected or np.isnan(found), (term.plugin.name, name, found, expected)
        totals = {node.metadata.name: evaluation.total[columns.row_of[node.metadata.name]] for node in opinion.feasible}
        assert totals == opinion.totals
        assert columns.names[best] == opinion.chosen


class Opinion:
    """All the reference has to say about a pod, worked out once."""

    def __init__(self, pod: o.Pod, cluster: Cluster, plugins: Sequence[Plugin]) -> None:
        self.refused: Rejection | None = None
        for plugin in plugins:
            self.refused = self.refused or plugin.pre_filter(pod, cluster)
        self.verdicts = {
            plugin.name: {node.metadata.name: plugin.filter(pod, node, cluster) for node in cluster.nodes}
            for plugin in plugins
            if self.refused is None or plugin.name not in VOLUMES
        }
        self.feasible = [
            node for node in cluster.nodes if not any(v[node.metadata.name] for v in self.verdicts.values())
        ]
        self.scores: dict[str, dict[str, int]] = {}
        self.raw: dict[str, dict[str, int]] = {}  # of every node, also those that cannot be chosen
        self.totals: dict[str, int] = {node.metadata.name: 0 for node in self.feasible}
        first = (
            next((v[n.metadata.name] for v in self.verdicts.values() if v[n.metadata.name]), None)
            for n in cluster.nodes
        )
        self.message = reference.fit_error(len(cluster.nodes), [rejection for rejection in first if rejection])
        if self.refused is not None or not self.feasible:
            return
        for plugin in plugins:
            if not plugin.weight:
                continue
            raw = {n.metadata.name: plugin.score(pod, n, self.feasible, cluster) for n in self.feasible}
            if plugin.name in RELATIONS:
                others = {n.metadata.name: plugin.score(pod, n, self.feasible, cluster) for n in cluster.nodes}
                self.raw[plugin.name] = others
            self.scores[plugin.name] = plugin.normalise(raw, pod, self.feasible, cluster)
            for name, value in self.scores[plugin.name].items():
                self.totals[name] += plugin.weight * value
        self.chosen = max(self.totals, key=lambda name: self.totals[name])  # the first of the best


def on_node(pod: o.Pod, name: str) -> o.Pod:
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=name))


def renamed(node: Any, name: str) -> Any:
    """Return the node under another name and host name."""
    labels = dict(node.metadata.labels)
    if "kubernetes.io/hostname" in labels:
        labels["kubernetes.io/hostname"] = name
    meta = msgspec.structs.replace(node.metadata, name=name, uid=f"node:/{name}", labels=labels)
    return msgspec.structs.replace(node, metadata=meta)


def place(data: st.DataObject, world: World, pods: Pods, name: str) -> None:
    where = data.draw(st.sampled_from(sorted(world.engine.columns.row_of) or NAMES))
    world.see(data.draw(pods(name)).node(where).build())


def change(
    data: st.DataObject,
    world: World,
    pods: Pods,
    objects: st.SearchStrategy[Any] | None,
    made: st.SearchStrategy[Any],
) -> None:
    match data.draw(st.integers(0, 6 if objects is None else 10), label="change"):
        case 0 | 1:
            name = data.draw(st.sampled_from(NAMES))
            world.see(renamed(data.draw(made), name))
        case 2:
            known = sorted(world.engine.columns.row_of)
            if known:
                world.gone(b.node(data.draw(st.sampled_from(known))).build())
        case 3 | 4:
            place(data, world, pods, data.draw(st.sampled_from(["p0", "p5", "p6", "p7"])))
        case 5 | 6:
            bound = sorted(key for key, pod in world.pods.items() if pod.spec.node_name)
            if bound:
                world.gone(world.pods[data.draw(st.sampled_from(bound))])
        case _:
            assert objects is not None
            thing = data.draw(objects)
            if data.draw(st.integers(0, 3)) == 0:
                world.gone(thing)
            else:
                world.see(thing)
