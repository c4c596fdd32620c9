"""Return one sentence why a unit is pending, from its last attempt: without a trial, fast enough for lists.

`why` answers the same with a trial at the time of the query. Both take what holds a unit from `held`, and what rules
out every node from `placement.blockers`.
"""

from __future__ import annotations

from phalanx.engine.explain.sentences import missing_in_tree, of_gate
from phalanx.engine.explain.values import NodeReason, PendingReason, Proof, proof_of
from phalanx.engine.placement.blockers import (
    Blocker,
    leaf_demands,
    node_blockers,
    object_blockers,
    rules_sentence,
    total_blockers,
)
from phalanx.engine.placement.plain import (
    NO_RULES,
    RuleWords,
    code_of_filter,
    code_of_proof,
    of_group,
    of_nodes,
    resource_word,
    sentence_case,
)
from phalanx.engine.placement.rule_words import rules_of
from phalanx.engine.scheduling.queue.units import QueueName, SchedulingUnit
from phalanx.engine.scheduling.scheduler import Scheduler
from phalanx.engine.state.shapes import Shape

MOST_SHAPES = 500  # pod shapes compared with every node; further units are described by their last attempt only

# Reason code -> two or three words, for a narrow column and for filters.
WORDS = {
    "Preempting": "waiting for victims",
    "MembersMissing": "members missing",
    "GroupMissing": "group missing",
    "VolumeMissing": "volume missing",
    "ClassMissing": "device class missing",
    "Gated": "held at a gate",
    "Reserved": "room is reserved",
    "StrictFIFO": "behind an older unit",
    "NeverFits": "can never fit",
    "NoNodes": "no nodes",
    "NoDomain": "topology label missing",
    "NodeSelector": "node selector",
    "Cordoned": "nodes cordoned",
    "Taints": "taints",
    "NotReady": "nodes not ready",
    "TopologySpread": "topology spread",
    "PodAffinity": "pod affinity",
    "HostPorts": "host ports",
    "Volumes": "volumes",
    "FewPerNode": "few fit on a node",
    "DoesNotFit": "does not fit",
    "Searching": "being searched",
    "Retrying": "tried again soon",
    "NotTried": "not tried yet",
}


class PendingReasons:
    """Describe pending units of one scheduler. Facts about nodes are kept until `forget` is called."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._blockers: dict[int, list[Blocker]] = {}  # by shape
        self._rules: dict[tuple[int, ...], RuleWords] = {}  # by shapes

    def forget(self) -> None:
        """Compare shapes with all nodes again: a node was added, changed or removed."""
        self._blockers.clear()
        self._rules.clear()

    def of(self, unit: SchedulingUnit) -> PendingReason:
        """Return the sentence, the reason code and the time of the attempt they are from."""
        waits = unit.equivalence_class
        tried = unit.refusal.at if unit.refusal is not None else waits.tried if waits is not None else 0.0
        if found := held(self._scheduler, unit, tried):
            return found
        if blocker := self._blocker(unit):
            return _reason(blocker.code, sentence_case(blocker.text), tried)
        proof = self._proof(unit)
        if proof is not None:
            code, resource = code_of_proof(proof)
            return _reason(
                code,
                of_group(proof, self._rules_of(unit), unit.refusal.reserved if unit.refusal is not None else 0),
                tried,
                resource,
            )
        if unit.refusal is not None and unit.refusal.rules:
            return _reason("DoesNotFit", rules_sentence(self._scheduler.cluster.forest, unit.records.values()), tried)
        if unit.refusal is not None:
            return _reason("DoesNotFit", sentence_case(unit.refusal.message), tried)
        if waits is not None and waits.counts:
            reasons = [NodeReason(reason, nodes) for reason, nodes in waits.counts.items()]
            reasons.sort(key=lambda reason: (-reason.nodes, reason.reason))
            code, resource = code_of_filter(reasons[0].reason)
            return _reason(
                code, of_nodes(reasons, self._scheduler.columns.count, self._rules_of(unit)), tried, resource
            )
        if waits is not None and waits.message:
            return _reason("DoesNotFit", sentence_case(waits.message), tried)
        return self._untried(unit)

    @staticmethod
    def _untried(unit: SchedulingUnit) -> PendingReason:
        if unit.queue_name is QueueName.SEARCH:
            return _reason("Searching", "The search for a placement continues; other units are served in between", 0.0)
        if unit.attempts:
            said = next((record.last_message for record in unit.records.values() if record.last_message), "")
            text = "Is tried again when its turn comes"
            return _reason("Retrying", f"{text}; last time: {said}" if said else text, 0.0)
        return _reason("NotTried", "Not tried yet", 0.0)

    def _rules_of(self, unit: SchedulingUnit) -> RuleWords:
        shapes = dict.fromkeys(record.shape for record in unit.records.values())
        found = self._rules.get(key := tuple(shape.id for shape in shapes))
        if found is None:
            if len(self._rules) >= MOST_SHAPES:
                return NO_RULES
            found = self._rules[key] = rules_of(self._scheduler.cluster, shapes)
        return found

    @staticmethod
    def _proof(unit: SchedulingUnit) -> Proof | None:
        outcome = unit.refusal.outcome if unit.refusal is not None else None
        return proof_of(outcome.certificate) if outcome is not None else None

    def _blocker(self, unit: SchedulingUnit) -> Blocker | None:
        """Return the first of the unit's blockers, in the order of `blockers_of`."""
        if unit.refusal is None and unit.equivalence_class is None:
            return None
        shapes = list(dict.fromkeys(record.shape for record in unit.records.values()))
        for shape in shapes:
            for found in object_blockers(self._scheduler.cluster, shape):
                return found
        for shape in shapes:
            for found in self._of_shape(shape):
                return found
        leaves = leaf_demands(self._scheduler.cluster.forest, unit.records.values()) if unit.group is not None else ()
        return next((found for leaf in leaves for found in total_blockers(self._scheduler.columns, leaf)), None)

    def _of_shape(self, shape: Shape) -> list[Blocker]:
        found = self._blockers.get(shape.id)
        if found is None:
            if len(self._blockers) >= MOST_SHAPES:
                return []
            found = self._blockers[shape.id] = list(node_blockers(self._scheduler.columns, shape))
        return found


def held(scheduler: Scheduler, unit: SchedulingUnit, tried: float = 0.0) -> PendingReason | None:
    """Return why a unit waits though it may fit: for victims, members, a gate or reserved room; None if it does not.

    tried: time of its last attempt in seconds
    """
    state = scheduler.cluster
    if unit.plan is not None:
        left, size = len(unit.plan.victims), unit.plan.size
        return _reason("Preempting", f"Waits until {left} of {size} preempted pods have stopped", tried)
    if unit.queue_name is QueueName.GATED:
        code, sentence = missing_in_tree(state.forest, unit.group) if unit.group is not None else ("", "")
        if sentence:
            return _reason(code, sentence, 0.0)
        return _reason("Gated", of_gate(state, unit, unit.gate), 0.0)
    if sentence := scheduler.starts.sentence(unit):
        return _reason("Reserved", sentence_case(sentence), tried)
    if sentence := scheduler.starts.strict_order.message(unit):
        return _reason("StrictFIFO", sentence, tried)
    return None


def _reason(code: str, text: str, tried: float, resource: str = "") -> PendingReason:
    words = f"short of {resource_word(resource)}" if resource else WORDS[code]
    return PendingReason(code, words, text, round(tried, 1), resource)
