"""Write the plain sentence of events about pods and groups that fit nowhere, with the labels and taints they name.

Conditions keep kube-scheduler's message. An event of a single pod has it behind the sentence, because programs look for
it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.placement.outcome import Certificate, RuledOut
from phalanx.engine.placement.plain import of_nodes, sentence_of
from phalanx.engine.placement.rule_words import claim_facts, rule_words, rules_of, too_large, volume_facts
from phalanx.engine.scheduling.queue.units import Refusal
from phalanx.engine.state.shapes import Shape


class EventTexts:
    """Keep the last sentence: units of one class join it one after another and have the same."""

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
            sentence = next(self._facts(shape), "") or self._nodes(shape, counts)
            self._of_pod = f"{sentence[:1].upper()}{sentence[1:]}. {message}" if sentence else message
        return self._of_pod

    def of_group(self, refusal: Refusal, shapes: Iterable[Shape]) -> str:
        """Return the sentence for a group that was refused; empty if no search explains it."""
        if self._refusal is not refusal:
            self._refusal = refusal
            certificate = refusal.outcome.certificate if refusal.outcome is not None else None
            self._of_group = self._unplaced(certificate, list(dict.fromkeys(shapes))) if certificate is not None else ""
        return self._of_group

    def _unplaced(self, certificate: Certificate, shapes: list[Shape]) -> str:
        fact = next((fact for shape in shapes for fact in self._facts(shape)), "")
        return f"{fact[:1].upper()}{fact[1:]}" if fact else sentence_of(certificate, rules_of(self._cluster, shapes))

    def _facts(self, shape: Shape) -> Iterator[str]:
        """Yield what no change of other pods can help."""
        columns, objects = self._cluster.columns, self._cluster.objects
        yield from volume_facts(objects, shape)
        yield from claim_facts(objects, shape)
        if columns.count:
            yield from too_large(columns, shape, columns.alive[: columns.n])

    def _nodes(self, shape: Shape, counts: Mapping[str, int]) -> str:
        rejected = [RuledOut(reason, 0, nodes) for reason, nodes in counts.items()]
        rejected.sort(key=lambda each: (-each.nodes, each.reason))
        rules = rule_words(self._cluster.columns, self._cluster.objects, shape)
        return of_nodes(rejected, self._cluster.columns.count, rules)
