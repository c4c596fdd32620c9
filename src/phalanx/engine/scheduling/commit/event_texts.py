"""Write the plain sentences of events about pods and groups that fit nowhere: those of `why`, `top` and the dashboard.

Conditions keep kube-scheduler's message. An event of a single pod has it behind the sentences, because programs look
for it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.placement.blockers import LeafDemand, blockers_of, leaf_demands, rules_sentence
from phalanx.engine.placement.outcome import RuledOut
from phalanx.engine.placement.plain import of_group, of_nodes, sentence_case
from phalanx.engine.placement.rule_words import rule_words, rules_of
from phalanx.engine.scheduling.queue.units import Refusal
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape


class EventTexts:
    """Keep the last text: units of one class join it one after another and have the same."""

    def __init__(self, state: ClusterState) -> None:
        self._cluster = state
        self._pod: tuple[Shape, str] | None = None
        self._of_pod = ""
        self._refusal: Refusal | None = None
        self._of_group = ""

    def of_pod(self, shape: Shape, counts: Mapping[str, int], message: str) -> str:
        """Return the text for a single pod, from its condition's message.

        counts: reason of a filter -> number of nodes that it rejected
        """
        if self._pod != (shape, message):
            self._pod = (shape, message)
            text = self._blockers([LeafDemand({shape: 1})]) or self._nodes(shape, counts)
            self._of_pod = f"{text}. {message}" if text else message
        return self._of_pod

    def of_group(self, refusal: Refusal, records: Iterable[PodRecord]) -> str:
        """Return the text for a group that was refused, from its waiting pods; empty if no search explains it."""
        if self._refusal is not refusal:
            self._refusal = refusal
            self._of_group = self._unplaced(refusal, list(records))
        return self._of_group

    def _unplaced(self, refusal: Refusal, records: list[PodRecord]) -> str:
        certificate = refusal.outcome.certificate if refusal.outcome is not None else None
        if certificate is None and not refusal.rules:
            return ""
        if blockers := self._blockers(leaf_demands(self._cluster.forest, records)):
            return blockers
        if certificate is None:
            return rules_sentence(self._cluster.forest, records)
        rules = rules_of(self._cluster, [record.shape for record in records])
        return of_group(certificate, rules, refusal.reserved)

    def _blockers(self, leaves: list[LeafDemand]) -> str:
        """Return what no change of other pods can help, all of it."""
        found = blockers_of(self._cluster, leaves)
        return ". ".join(sentence_case(each.text) for each in found)

    def _nodes(self, shape: Shape, counts: Mapping[str, int]) -> str:
        rejected = [RuledOut(reason, 0, nodes) for reason, nodes in counts.items()]
        rejected.sort(key=lambda each: (-each.nodes, each.reason))
        rules = rule_words(self._cluster.columns, self._cluster.objects, shape)
        return of_nodes(rejected, self._cluster.columns.count, rules)
