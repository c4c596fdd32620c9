"""Feature gates: names, defaults and what depends on what (KEP-4671, KEP-6012, Kubernetes 1.37).

What a gate that is off means to the API:

* ``GenericWorkload``: Workload and PodGroup are not served; ``schedulingGroup`` and ``workloadRef`` are dropped from
  new pods and pod templates, and kept where a stored object already has them.
* ``GangScheduling``: nothing. KEP-4671 lists only kube-scheduler as depending on it ("switched off to disable gang
  scheduling functionality"), and API changes belong to GenericWorkload. So a gang policy is accepted, validated
  and stored as ever, and the scheduler treats members of such a group as ordinary pods.
* ``TopologyAwareWorkloadScheduling``, ``DRAWorkloadResourceClaims``, ``PodGroupPreemptionPolicy``: their fields are
  dropped.
* ``CompositePodGroup``: the kind is not served; composite templates and parent names are dropped.
* ``WorkloadWithJob``: ``Job.spec.scheduling`` is dropped.
* ``JobSetGang`` (KEP-1068), ``PodGroupPerReplica`` (KEP-407): JobSets, LeaderWorkerSets get no groups.
* ``WorkloadSchedulingCycle`` (KEP-4671): nothing. Groups are always tried as one, which is what it asks for.
* ``DefaultGangs`` *on*: Indexed Jobs and Parallel StatefulSets are gangs unless they or their namespace say otherwise.
* ``WorkloadBasicPolicyDesiredCount`` *on*: ``counts`` of a WorkloadPolicy also limit groups with the Basic policy.
* ``MutableMinGroupCount``: ``minGroupCount`` of a CompositePodGroup cannot change (KEP-6012 Beta; 1.37 forbids it).
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.base.errors import ConfigProblem

COUNTS_OF_BASIC = "WorkloadBasicPolicyDesiredCount"

# name -> (on by default in local mode, gates it needs)
KNOWN: dict[str, tuple[bool, tuple[str, ...]]] = {
    "GenericWorkload": (True, ()),
    "GangScheduling": (True, ("GenericWorkload",)),
    "TopologyAwareWorkloadScheduling": (True, ("GenericWorkload",)),
    "CompositePodGroup": (True, ("GenericWorkload", "TopologyAwareWorkloadScheduling")),
    "PodGroupPreemptionPolicy": (False, ("GenericWorkload",)),
    "WorkloadWithJob": (True, ("GenericWorkload",)),
    # These need GenericWorkload or CompositePodGroup and have no effect without: they may stay on if those are off.
    "DefaultGangs": (False, ()),
    "DRAWorkloadResourceClaims": (True, ()),
    "JobSetGang": (True, ()),
    "MutableMinGroupCount": (True, ()),
    "PodGroupPerReplica": (True, ()),
    "WorkloadSchedulingCycle": (True, ()),
    COUNTS_OF_BASIC: (False, ()),
}
# Fields of `spec` that are dropped from new objects while a gate is off.
DROPPED = {
    "parentCompositePodGroupName": "CompositePodGroup",
    "compositePodGroupTemplates": "CompositePodGroup",
    "schedulingConstraints": "TopologyAwareWorkloadScheduling",
    "schedulingGroup": "GenericWorkload",
    "workloadRef": "GenericWorkload",
    "resourceClaims": "DRAWorkloadResourceClaims",
    "preemptionPolicy": "PodGroupPreemptionPolicy",
    "scheduling": "WorkloadWithJob",
}

_FLAG = "--feature-gates"
_TRUE = frozenset({"true", "True", "TRUE", "t", "T", "1"})
_FALSE = frozenset({"false", "False", "FALSE", "f", "F", "0"})


class Gates:
    """An immutable set of decisions. The constructor takes them as they are; `parse` and `check` also demand sense."""

    def __init__(self, overrides: Mapping[str, bool] | None = None) -> None:
        self._on = {name: default for name, (default, _) in KNOWN.items()}
        for name, value in (overrides or {}).items():
            if name not in KNOWN:
                raise ConfigProblem(_FLAG, f"unknown feature gate {name!r}; known gates: {', '.join(sorted(KNOWN))}")
            self._on[name] = value

    @classmethod
    def parse(cls, text: str) -> Gates:
        """Parse `A=true,B=false` as given on the command line; "" means the defaults."""
        overrides: dict[str, bool] = {}
        for part in text.split(","):
            part = part.strip()
            if not part:
                continue
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals:
                raise ConfigProblem(
                    _FLAG, f"missing value for feature gate {name!r}; write {name}=true or {name}=false"
                )
            if value in _TRUE:
                overrides[name] = True
            elif value in _FALSE:
                overrides[name] = False
            else:
                raise ConfigProblem(_FLAG, f"invalid value {value!r} of feature gate {name!r}; use true or false")
        gates = cls(overrides)
        gates.check()
        return gates

    def check(self) -> None:
        """Raise ConfigProblem when a gate is on and one that it needs is off."""
        for name, (_, needs) in KNOWN.items():
            if not self._on[name]:
                continue
            for needed in needs:
                if not self._on[needed]:
                    raise ConfigProblem(
                        _FLAG,
                        f"{name} is enabled, but depends on {needed}, which is disabled; "
                        f"add {name}=false or {needed}=true",
                    )

    def __call__(self, name: str) -> bool:
        return self._on[name]

    def as_dict(self) -> dict[str, bool]:
        """Return every gate and whether it is on, for logs and metrics."""
        return dict(self._on)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gates) and self._on == other._on

    def __hash__(self) -> int:
        return hash(tuple(sorted(self._on.items())))

    def __repr__(self) -> str:
        return f"Gates({','.join(f'{name}={str(on).lower()}' for name, on in self._on.items())})"
