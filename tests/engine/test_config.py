"""KubeSchedulerConfiguration: what users write is what they get, and mistakes name the field."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from phalanx.base.errors import ConfigProblem
from phalanx.engine.engine import Engine
from phalanx.engine.framework import POINTS
from phalanx.engine.framework.config_args import (
    InterPodAffinityArgs,
    NodeAffinityArgs,
    NodeResourcesFitArgs,
    PodTopologySpreadArgs,
    ResourceSpec,
    VolumeBindingArgs,
)
from phalanx.engine.framework.settings import PluginUse
from phalanx.engine.plugins.config import SchedulerConfig, default_config, read_config
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS

HEAD: dict[str, Any] = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}


def read(text: str = "", **fields: Any) -> SchedulerConfig:
    return read_config({**HEAD, **(yaml.safe_load(text) or {} if text else {}), **fields})


def uses(config: SchedulerConfig, profile: int = 0) -> dict[str, PluginUse]:
    return {use.name: use for use in config.profiles[profile].plugins}


def problem(text: str = "", **fields: Any) -> ConfigProblem:
    with pytest.raises(ConfigProblem) as caught:
        read(text, **fields)
    return caught.value


def test_an_empty_document_is_the_default_profile_in_order_with_its_weights() -> None:
    config = read()
    assert config == default_config()
    assert [use.name for use in config.profiles[0].plugins] == list(DEFAULT_PLUGINS)
    assert not any(use.weight for use in uses(config).values())  # each plugin's own default
    scores = Engine(config.engine()).profiles["default-scheduler"].scores
    assert {plugin.name: weight for plugin, weight in scores if weight != 1} == {
        "TaintToleration": 3,
        "NodeAffinity": 2,
        "PodTopologySpread": 2,
        "InterPodAffinity": 2,
        "DynamicResources": 2,
        "GPUFragmentation": 3,
    }
    assert all(use.points is None for use in config.profiles[0].plugins)
    assert config.profiles[0].scheduler_name == "default-scheduler"
    assert (config.initial_backoff, config.max_backoff) == (1.0, 10.0)


def test_a_whole_configuration_is_read() -> None:
    config = read(
        """
        podInitialBackoffSeconds: 2
        podMaxBackoffSeconds: 40
        percentageOfNodesToScore: 30
        parallelism: 8
        leaderElection: {leaderElect: true, leaseDuration: 1m, renewDeadline: 40s, retryPeriod: 1s500ms,
                         resourceName: phalanx, resourceNamespace: here}
        clientConnection: {kubeconfig: /etc/kubeconfig, qps: 500, burst: 700, contentType: application/json}
        profiles:
        - schedulerName: packing
          plugins:
            score: {enabled: [{name: NodeResourcesFit, weight: 7}], disabled: [{name: ImageLocality}]}
            multiPoint: {disabled: [{name: InterPodAffinity}]}
          pluginConfig:
          - name: NodeResourcesFit
            args:
              apiVersion: kubescheduler.config.k8s.io/v1
              kind: NodeResourcesFitArgs
              ignoredResources: [example.com/foo]
              scoringStrategy: {type: MostAllocated, resources: [{name: nvidia.com/gpu, weight: 5}, {name: cpu}]}
          - name: PodTopologySpread
            args: {defaultingType: List, defaultConstraints: [
              {maxSkew: 2, topologyKey: rack, whenUnsatisfiable: DoNotSchedule}]}
        - schedulerName: plain
        """
    )
    assert (config.initial_backoff, config.max_backoff) == (2.0, 40.0)
    election = config.leader_election
    assert (election.lease_duration, election.renew_deadline, election.retry_period) == (60.0, 40.0, 1.5)
    assert (election.lease_namespace, election.lease_name) == ("here", "phalanx")
    assert (config.client_connection.qps, config.client_connection.burst) == (500.0, 700)
    packing = uses(config)
    assert packing["NodeResourcesFit"].weight == 7
    assert packing["ImageLocality"].points == frozenset(POINTS) - {"score"}
    assert "InterPodAffinity" not in packing
    args = config.profiles[0].args
    assert args["NodeResourcesFit"] == NodeResourcesFitArgs(
        ("example.com/foo",), (), "MostAllocated", (ResourceSpec("nvidia.com/gpu", 5), ResourceSpec("cpu", 1))
    )
    spread = args["PodTopologySpread"]
    assert isinstance(spread, PodTopologySpreadArgs)
    assert not spread.system_defaulted
    assert [c.topology_key for c in spread.default_constraints] == ["rack"]
    assert uses(config, 1) == uses(default_config())
    assert [note.partition(" ")[0] for note in config.notes()] == [
        "percentageOfNodesToScore",
        "parallelism",
    ]
    engine = config.engine()
    assert [p.scheduler_name for p in engine.profiles] == ["packing", "plain"]
    assert engine.max_backoff == 40.0
    assert engine.profiles[0].args["NodeResourcesFit"]["ignoredResources"] == ["example.com/foo"]


def test_multi_point_star_starts_from_nothing_in_the_written_order() -> None:
    config = read(
        """
        profiles:
        - plugins:
            multiPoint:
              disabled: [{name: "*"}]
              enabled: [{name: DefaultBinder}, {name: NodeResourcesFit, weight: 3}, {name: PrioritySort}]
        """
    )
    assert [u.name for u in config.profiles[0].plugins] == ["DefaultBinder", "NodeResourcesFit", "PrioritySort"]
    assert uses(config)["NodeResourcesFit"].weight == 3


def test_a_default_plugin_enabled_again_keeps_its_place_and_takes_the_weight() -> None:
    config = read("{profiles: [{plugins: {multiPoint: {enabled: [{name: TaintToleration, weight: 9}]}}}]}")
    assert [u.name for u in config.profiles[0].plugins] == list(DEFAULT_PLUGINS)
    assert uses(config)["TaintToleration"].weight == 9


def test_star_under_one_point_takes_that_point_from_all_but_the_ones_named() -> None:
    config = read("{profiles: [{plugins: {score: {disabled: [{name: '*'}], enabled: [{name: ImageLocality}]}}}]}")
    scoring = [n for n, u in uses(config).items() if u.points is None or "score" in u.points]
    assert scoring == ["ImageLocality"]


def test_an_installed_plugin_is_known_by_name_and_enabled_at_one_point() -> None:
    document = {**HEAD, "profiles": [{"plugins": {"filter": {"enabled": [{"name": "Mine"}]}}}]}
    config = read_config(document, known=["Mine"])
    assert uses(config)["Mine"].points == frozenset({"filter"})
    with pytest.raises(ConfigProblem, match=r"profiles\[0\]\.plugins\.filter\.enabled\[0\]\.name: unknown plugin"):
        read_config(document)


def test_every_plugin_a_profile_ends_up_with_can_be_made() -> None:
    config = read("{profiles: [{plugins: {multiPoint: {enabled: [{name: GangScheduling}], disabled: "
                  "[{name: NodeDeclaredFeatures}]}}}]}")  # fmt: skip
    engine = Engine(config.engine())
    assert list(engine.profiles["default-scheduler"].plugins) == list(DEFAULT_PLUGINS)


def test_arguments_of_affinity_and_volumes() -> None:
    config = read(
        """
        profiles:
        - pluginConfig:
          - name: InterPodAffinity
            args: {hardPodAffinityWeight: 5, ignorePreferredTermsOfExistingPods: true}
          - name: VolumeBinding
            args: {bindTimeoutSeconds: 30, shape: [{utilization: 0, score: 0}, {utilization: 100, score: 10}]}
          - name: NodeAffinity
            args: {addedAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
              {matchExpressions: [{key: pool, operator: In, values: [a]}]}]}}}
        """
    )
    args = config.profiles[0].args
    assert args["InterPodAffinity"] == InterPodAffinityArgs(5, True)
    assert args["VolumeBinding"] == VolumeBindingArgs(30.0, ((0, 0), (100, 10)))
    affinity = args["NodeAffinity"]
    assert isinstance(affinity, NodeAffinityArgs)
    assert affinity.added_affinity is not None
    assert affinity.added_affinity.required is not None


FIT = "profiles[0].pluginConfig[0].args"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("{podMaxBackOffSeconds: 3}", "podMaxBackOffSeconds"),
        ("{podInitialBackoffSeconds: 0}", "podInitialBackoffSeconds"),
        ("{podInitialBackoffSeconds: 20}", "podMaxBackoffSeconds"),
        ("{percentageOfNodesToScore: 101}", "percentageOfNodesToScore"),
        ("{parallelism: 0}", "parallelism"),
        ("{parallelism: many}", "parallelism"),
        ("{extenders: [{urlPrefix: x}]}", "extenders[0]"),
        ("{leaderElection: {leaseDuration: 5s}}", "leaderElection.leaseDuration"),
        ("{leaderElection: {leaseDuration: fast}}", "leaderElection.leaseDuration"),
        ("{leaderElection: {resourceLock: endpoints}}", "leaderElection.resourceLock"),
        ("{clientConnection: {speed: 3}}", "clientConnection.speed"),
        ("{profiles: [{schedulerName: a}, {schedulerName: a}]}", "profiles[1].schedulerName"),
        ("{profiles: [{schedulerName: a}, {}]}", "profiles[1].schedulerName"),
        ("{profiles: [{plugins: {filters: {}}}]}", "profiles[0].plugins.filters"),
        ("{profiles: [{plugins: {bind: {disabled: [{name: Nope}]}}}]}", "profiles[0].plugins.bind.disabled[0].name"),
        (
            "{profiles: [{plugins: {score: {enabled: [{name: EBSLimits}]}}}]}",
            "profiles[0].plugins.score.enabled[0].name",
        ),
        ("{profiles: [{plugins: {filter: {enabled: [{name: NodeDeclaredFeatures}]}}}]}",
         "profiles[0].plugins.filter.enabled[0].name"),
        ("{profiles: [{plugins: {permit: {disabled: [{name: GangScheduling}]}}}]}",
         "profiles[0].plugins.permit.disabled[0].name"),
        ("{profiles: [{plugins: {multiPoint: {disabled: [{name: PrioritySort}]}}}]}", "profiles[0].plugins.queueSort"),
        ("{profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {strategy: x}}]}]}", f"{FIT}.strategy"),
        (
            "{profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: Best}}}]}]}",
            f"{FIT}.scoringStrategy.type",
        ),
        (
            "{profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: "
            "{type: RequestedToCapacityRatio}}}]}]}",
            f"{FIT}.scoringStrategy.requestedToCapacityRatio",
        ),
        (
            "{profiles: [{pluginConfig: [{name: NodeResourcesBalancedAllocation, args: "
            "{resources: [{name: cpu, weight: 2}]}}]}]}",
            f"{FIT}.resources[0].weight",
        ),
        (
            "{profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultConstraints: "
            "[{maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule}]}}]}]}",
            f"{FIT}.defaultingType",
        ),
        (
            "{profiles: [{pluginConfig: [{name: PodTopologySpread, args: {defaultingType: List, defaultConstraints: "
            "[{maxSkew: one}]}}]}]}",
            f"{FIT}.defaultConstraints[0].maxSkew",
        ),
        ("{profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]}",
         f"{FIT}.hardPodAffinityWeight"),
        ("{profiles: [{pluginConfig: [{name: VolumeBinding, args: {shape: [{utilization: 5}, {utilization: 5}]}}]}]}",
         f"{FIT}.shape[1].utilization"),
        ("{profiles: [{pluginConfig: [{name: ImageLocality}, {name: ImageLocality}]}]}", "profiles[0].pluginConfig[1]"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_field(text: str, path: str) -> None:
    found = problem(text)
    assert found.path == path
    assert found.message


def test_another_kind_or_version_is_refused() -> None:
    for field, value in (("apiVersion", "kubescheduler.config.k8s.io/v1beta3"), ("kind", "KubeletConfiguration")):
        with pytest.raises(ConfigProblem) as caught:
            read_config({**HEAD, field: value})
        assert caught.value.path == field
    with pytest.raises(ConfigProblem):
        read_config(["no object"])


def test_the_default_plugins_have_the_order_of_kube_scheduler() -> None:
    names = """SchedulingGates PrioritySort NodeName NodeUnschedulable TaintToleration NodeAffinity NodePorts
        NodeResourcesFit VolumeRestrictions NodeVolumeLimits VolumeBinding VolumeZone PodTopologySpread InterPodAffinity
        DynamicResources DefaultPreemption NodeResourcesBalancedAllocation ImageLocality DefaultBinder"""
    assert list(Engine().profiles["default-scheduler"].plugins) == [*names.split(), "GPUFragmentation"]
