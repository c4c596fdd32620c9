"""Label and field selectors applied to stored entries, without decoding them where the index knows."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.base.errors import BadRequest
from phalanx.local.api.index import field_value
from phalanx.local.store.contract import Entry
from phalanx.model.kinds import Kind
from phalanx.model.selectors import BadSelector, FieldTerm, LabelMatcher, parse_fields, parse_labels


class Selection:
    """What one list or watch asked for."""

    def __init__(self, kind: Kind, labels: LabelMatcher, fields: tuple[FieldTerm, ...], name: str, namespace: str):
        self._kind = kind
        self._labels = None if labels.everything else labels
        self._fields = fields
        self.name = name  # "" or the only name that can match
        self.namespace = namespace
        self.everything = self._labels is None and not fields
        self.cost = 1 + len(labels.requirements) + 4 * len(fields)  # comparisons per entry, about

    @classmethod
    def of(cls, kind: Kind, query: Mapping[str, str], name: str = "") -> Selection:
        """Build the selection from the query. Raises BadRequest.

        `name` is the name in the path (watches of a single object).
        """
        try:
            labels = parse_labels(query.get("labelSelector", ""))
            terms = parse_fields(query.get("fieldSelector", "")).terms
        except BadSelector as problem:
            raise BadRequest(str(problem)) from None
        if name:
            terms = (*terms, FieldTerm("metadata.name", True, name))
        namespace = only = ""
        for term in terms:
            if term.path == "metadata.name":
                only = only or (term.value if term.equal else "")
            elif term.path == "metadata.namespace" and kind.namespaced:
                namespace = namespace or (term.value if term.equal else "")
            elif term.path not in kind.selectable:
                raise BadRequest(f'field label not supported: "{term.path}"')
        return cls(kind, labels, terms, only, namespace)

    def matches(self, entry: Entry) -> bool:
        if self._labels is not None and not self._labels.matches(entry.index.labels):
            return False
        for term in self._fields:
            if term.path == "metadata.name":
                found = entry.key[2]
            elif term.path == "metadata.namespace":
                found = entry.key[1]
            else:
                found = field_value(self._kind, term.path, entry.index, entry.value)
            if (found == term.value) != term.equal:
                return False
        return True
