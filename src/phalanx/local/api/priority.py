"""Priority admission: from the name of a PriorityClass to a number, for pods, PodGroups and CompositePodGroups."""

from __future__ import annotations

import msgspec

from phalanx.base.well_known import PREEMPTION_POLICIES
from phalanx.local.api.context import Context
from phalanx.local.api.problems import forbidden
from phalanx.local.api.view import decode
from phalanx.local.store.contract import Entry
from phalanx.model.kinds import Json, Kind

RESOURCE = "priorityclasses.scheduling.k8s.io"
_NOUN = {"podgroups": "pod group", "compositepodgroups": "composite pod group"}


class PriorityClassView(msgspec.Struct, frozen=True):
    revision: int
    name: str
    value: int
    policy: str  # "" = the class does not say
    default: bool


_NONE = PriorityClassView(0, "", 0, "PreemptLowerPriority", False)


class Priorities:
    def __init__(self, ctx: Context) -> None:
        self._store = ctx.store
        self._gates = ctx.gates
        self._known: dict[str, PriorityClassView] = {}

    def pod(self, kind: Kind, pod: Json) -> None:
        spec = pod.get("spec")
        if not isinstance(spec, dict):
            return
        found = self._resolve(kind, pod, spec)
        given = spec.get("priority")
        if given is not None and given != found.value:
            raise forbidden(
                kind,
                _name(pod),
                f"the integer value of priority ({given}) must not be provided in pod spec; priority admission "
                f"controller computed {found.value} from the given PriorityClass name",
            )
        spec["priority"] = found.value
        if found.policy:
            policy = spec.get("preemptionPolicy")
            if policy is not None and policy != found.policy:
                raise forbidden(kind, _name(pod), _policy_text(policy, "pod", found.policy))
            spec["preemptionPolicy"] = found.policy

    def group(self, kind: Kind, group: Json) -> None:
        """Set the priority of a PodGroup or CompositePodGroup from its PriorityClass. Raises Forbidden."""
        spec = group.get("spec")
        if not isinstance(spec, dict):
            return
        noun = _NOUN[kind.plural]
        found = self._resolve(kind, group, spec)
        given = spec.get("priority")
        if given is not None and given != found.value:
            raise forbidden(
                kind,
                _name(group),
                f"priority set in the {noun} ({given}) must match the priority computed ({found.value}) based on the "
                "priority class set in the spec",
            )
        spec["priority"] = found.value
        if not self._gates("PodGroupPreemptionPolicy") or not found.policy:
            return
        if found.policy not in PREEMPTION_POLICIES:
            raise forbidden(
                kind,
                _name(group),
                f"preemptionPolicy set in the PriorityClass object ({found.policy}) must match one of the allowed "
                f"values of PreemptionPolicy type in {noun}",
            )
        policy = spec.get("preemptionPolicy")
        if policy is not None and policy != found.policy:
            raise forbidden(kind, _name(group), _policy_text(policy, noun, found.policy))
        spec["preemptionPolicy"] = found.policy

    def only_one_default(self, kind: Kind, obj: Json, *, creating: bool) -> None:
        if not obj.get("globalDefault"):
            return
        there = self.default()
        if there.default and (creating or there.name != _name(obj)):
            raise forbidden(
                kind,
                _name(obj),
                f"PriorityClass {there.name} is already marked as default. Only one default can exist",
            )

    def default(self) -> PriorityClassView:
        """Return the global default class, the lowest one if there are several.

        Without one: priority 0.
        """
        found = _NONE
        for entry in self._store.list(RESOURCE):
            known = self._read(entry)
            if known.default and (not found.default or known.value < found.value):
                found = known
        return found

    def _resolve(self, kind: Kind, obj: Json, spec: Json) -> PriorityClassView:
        name = spec.get("priorityClassName") or ""
        if not name:
            found = self.default()
            if found.name:
                spec["priorityClassName"] = found.name
            return found
        entry = self._store.latest((RESOURCE, "", name))
        if entry is None:
            raise forbidden(kind, _name(obj), f"no PriorityClass with name {name} was found")
        return self._read(entry)

    def _read(self, entry: Entry) -> PriorityClassView:
        """Return the decoded class, from memory if it has not changed."""
        name = entry.key[2]
        known = self._known.get(name)
        if known is None or known.revision != entry.revision:
            obj: Json = decode(entry.value)
            known = self._known[name] = PriorityClassView(
                entry.revision,
                name,
                int(obj.get("value") or 0),
                str(obj.get("preemptionPolicy") or ""),
                bool(obj.get("globalDefault")),
            )
        return known


def _name(obj: Json) -> str:
    return str(obj["metadata"].get("name") or "")


def _policy_text(given: str, noun: str, computed: str) -> str:
    return (
        f"the string value of PreemptionPolicy ({given}) must not be provided in {noun} spec; priority admission "
        f"controller computed {computed} from the given PriorityClass name"
    )
