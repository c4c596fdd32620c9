"""Selectors over labels, nodes and fields, compiled once and matched often.

`parse_labels` reads the query grammar (`a=b,c in (x,y),!d`), `from_selector` a LabelSelector object, `node_selector`
the terms of node affinity, `parse_fields` field selectors. All raise BadSelector with a clear text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from phalanx.model import names
from phalanx.model.objects.meta import LabelSelector
from phalanx.model.objects.pod import NodeSelector, NodeSelectorTerm

Labels = Mapping[str, str]


class BadSelector(ValueError):
    """The selector cannot be understood; the text says which part and why."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one key."""

    key: str
    operator: str  # In NotIn Exists DoesNotExist Gt Lt, and = == != for what was written so
    values: tuple[str, ...] = ()
    members: Collection[str] = field(init=False, repr=False, compare=False)  # the same, quick to look up

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", self.values if len(self.values) <= 8 else frozenset(self.values))

    def matches(self, labels: Labels) -> bool:
        value = labels.get(self.key)
        operator = self.operator
        if operator in ("=", "==", "In"):
            return value is not None and value in self.members
        if operator in ("!=", "NotIn"):
            return value is None or value not in self.members
        if operator == "Exists":
            return value is not None
        if operator == "DoesNotExist":
            return value is None
        found, bound = integer(value), integer(self.values[0])
        if found is None or bound is None:
            return False
        return found > bound if operator == "Gt" else found < bound

    def __str__(self) -> str:
        match self.operator:
            case "Exists":
                return self.key
            case "DoesNotExist":
                return f"!{self.key}"
            case "In" | "NotIn":
                return f"{self.key} {self.operator.lower()} ({','.join(sorted(self.values))})"
            case "Gt" | "Lt":
                return f"{self.key}{'>' if self.operator == 'Gt' else '<'}{self.values[0]}"
        return f"{self.key}{self.operator}{self.values[0]}"


_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)


def integer(text: str | None) -> int | None:
    """Return the text as a 64-bit number; None if it is not one, which is common for labels."""
    if text is None or len(text) > 20 or _INTEGER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None


class LabelMatcher(msgspec.Struct, frozen=True):
    """All requirements must hold. No requirement: everything matches, unless `nothing`."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    def matches(self, labels: Labels | None) -> bool:
        if self.nothing:
            return False
        found = labels or {}
        if len(self.requirements) == 1:  # the rule, and held against thousands of labels
            return self.requirements[0].matches(found)
        return all(requirement.matches(found) for requirement in self.requirements)

    @property
    def everything(self) -> bool:
        return not self.nothing and not self.requirements

    def __str__(self) -> str:
        return ",".join(str(requirement) for requirement in self.requirements)


EVERYTHING = LabelMatcher()
NOTHING = LabelMatcher(nothing=True)

MAX_TERMS = 500  # of one selector in a query: every object of a list is held against every one

_TOKEN = re.compile(r"\s*(==|!=|=|!|>|<|\(|\)|,|[^\s=!<>(),]+)\s*")


def _tokens(text: str) -> list[str]:
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:  # only trailing blanks are left
            break
        found.append(match.group(1))
        position = match.end()
    return found


class _Reader:
    """Walks the tokens of one label selector."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.at = 0

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def fail(self, expected: str) -> BadSelector:
        token = self.peek()
        where = f"found '{token}', expected: {expected}" if token else f"the selector ends early, expected: {expected}"
        return BadSelector(f"unable to parse requirement: {where}")

    def word(self, expected: str) -> str:
        token = self.peek()
        if not token or token in _PUNCTUATION:
            raise self.fail(expected)
        self.at += 1
        return token

    def values(self) -> tuple[str, ...]:
        """Read a list of values `(a,b)`; an omitted value is the empty text, as in Kubernetes."""
        if self.take() != "(":
            self.at -= 1
            raise self.fail("'('")
        found, current = [], ""
        while True:
            token = self.peek()
            if token == ")":
                self.at += 1
                found.append(current)
                return tuple(dict.fromkeys(found))
            if token == ",":
                self.at += 1
                found.append(current)
                current = ""
            elif token and token not in _PUNCTUATION and not current:
                self.at += 1
                current = token
            else:
                raise self.fail("',', or ')'")


_PUNCTUATION = frozenset({"==", "!=", "=", "!", ">", "<", "(", ")", ","})


def _checked(requirement: Requirement) -> Requirement:
    for problem in names.label_key(requirement.key):
        raise BadSelector(f'key: Invalid value: "{requirement.key}": {problem}')
    operator, values = requirement.operator, requirement.values
    if operator in ("Gt", "Lt") and integer(values[0]) is None:
        raise BadSelector(
            f"values[0]: Invalid value: \"{values[0]}\": for 'Gt', 'Lt' operators, the value must be an integer"
        )
    for index, value in enumerate(values):
        for problem in names.label_value(value):
            raise BadSelector(f'values[{index}][{requirement.key}]: Invalid value: "{value}": {problem}')
    return requirement


def _requirement(reader: _Reader) -> Requirement:
    if reader.peek() == "!":
        reader.take()
        return Requirement(reader.word("identifier after '!'"), "DoesNotExist")
    key = reader.word("!, identifier, or 'end of string'")
    token = reader.peek()
    if token in ("", ","):
        return Requirement(key, "Exists")
    reader.take()
    if token in ("=", "==", "!="):
        following = reader.peek()
        value = "" if following in ("", ",") else reader.word("identifier")
        return Requirement(key, token, (value,))
    if token in (">", "<"):
        return Requirement(key, "Gt" if token == ">" else "Lt", (reader.word("a number"),))
    if token in ("in", "notin"):
        return Requirement(key, "In" if token == "in" else "NotIn", reader.values())
    reader.at -= 1
    raise reader.fail("in, notin, =, ==, !=, gt, lt")


@lru_cache(maxsize=1024)
def parse_labels(text: str) -> LabelMatcher:
    """Parse a `labelSelector` query parameter; empty text selects everything."""
    reader = _Reader(text)
    requirements = []
    while reader.peek():
        requirements.append(_checked(_requirement(reader)))
        if not reader.peek():
            break
        if reader.take() != ",":
            reader.at -= 1
            raise reader.fail("',' or 'end of string'")
        if not reader.peek():
            raise reader.fail("identifier after ','")
        if len(requirements) >= MAX_TERMS:
            raise BadSelector(f"the label selector has more than {MAX_TERMS} requirements")
    return LabelMatcher(tuple(sorted(dict.fromkeys(requirements), key=lambda requirement: requirement.key)))


_SELECTOR_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def from_selector(selector: Mapping[str, Any] | LabelSelector | None) -> LabelMatcher:
    """Compile a LabelSelector, as JSON or as typed view. None selects nothing, {} everything."""
    if selector is None:
        return NOTHING
    if isinstance(selector, LabelSelector):
        wanted = selector.match_labels or {}
        expressions = [(e.key, e.operator, e.values or ()) for e in selector.match_expressions or ()]
    else:
        wanted = selector.get("matchLabels") or {}
        expressions = [
            (e.get("key", ""), e.get("operator", ""), e.get("values") or ())
            for e in selector.get("matchExpressions") or ()
        ]
    requirements = [Requirement(key, "In", (wanted[key],)) for key in sorted(wanted)]
    for key, operator, values in expressions:
        if operator not in _SELECTOR_OPERATORS:
            raise BadSelector(f'"{operator}" is not a valid label selector operator')
        requirements.append(Requirement(key, operator, tuple(values)))
    return LabelMatcher(tuple(requirements)) if requirements else EVERYTHING


class NodeTerm(msgspec.Struct, frozen=True):
    """One term: every expression and every field must hold."""

    labels: tuple[Requirement, ...]
    fields: tuple[Requirement, ...]  # only metadata.name exists as a field

    def matches(self, labels: Labels, name: str) -> bool:
        if not self.labels and not self.fields:
            return False  # an empty term selects no node
        if self.fields:
            of_node = {"metadata.name": name}
            if not all(requirement.matches(of_node) for requirement in self.fields):
                return False
        return all(requirement.matches(labels) for requirement in self.labels)


class NodeMatcher(msgspec.Struct, frozen=True):
    """Terms are alternatives; without terms no node matches."""

    terms: tuple[NodeTerm, ...]

    def matches(self, labels: Labels | None, name: str = "") -> bool:
        found = labels or {}
        return any(term.matches(found, name) for term in self.terms)


_NODE_OPERATORS = (*_SELECTOR_OPERATORS, "Gt", "Lt")


def _node_requirements(expressions: Sequence[Any]) -> tuple[Requirement, ...]:
    compiled = []
    for expression in expressions:
        if isinstance(expression, Mapping):
            key, operator = expression.get("key", ""), expression.get("operator", "")
            values = tuple(expression.get("values") or ())
        else:
            key, operator, values = expression.key, expression.operator, tuple(expression.values or ())
        if operator not in _NODE_OPERATORS:
            raise BadSelector(f'"{operator}" is not a valid node selector operator')
        if operator in ("Gt", "Lt") and len(values) != 1:
            raise BadSelector(f"{key}: operator {operator} needs exactly one value")
        compiled.append(Requirement(key, operator, values))
    return tuple(compiled)


def node_term(term: Mapping[str, Any] | NodeSelectorTerm) -> NodeTerm:
    """Compile one nodeSelectorTerm, or the `preference` of a preferred term."""
    if isinstance(term, NodeSelectorTerm):
        return NodeTerm(_node_requirements(term.match_expressions or ()), _node_requirements(term.match_fields or ()))
    return NodeTerm(
        _node_requirements(term.get("matchExpressions") or ()), _node_requirements(term.get("matchFields") or ())
    )


def node_selector(selector: Mapping[str, Any] | NodeSelector) -> NodeMatcher:
    """Compile the required terms of node affinity, of a PersistentVolume or of a ResourceSlice."""
    if isinstance(selector, NodeSelector):
        return NodeMatcher(tuple(node_term(term) for term in selector.node_selector_terms))
    return NodeMatcher(tuple(node_term(term) for term in selector.get("nodeSelectorTerms") or ()))


class FieldTerm(msgspec.Struct, frozen=True):
    path: str
    equal: bool
    value: str


class FieldMatcher(msgspec.Struct, frozen=True):
    """A field selector: every term must hold. `value_of(path)` gives an object's field as text."""

    terms: tuple[FieldTerm, ...]

    def matches(self, value_of: Callable[[str], str]) -> bool:
        return all((value_of(term.path) == term.value) == term.equal for term in self.terms)

    def exact(self, path: str) -> str | None:
        """Return the one value this selector requires of a field, if any: a list then reads one object."""
        for term in self.terms:
            if term.equal and term.path == path:
                return term.value
        return None


_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        if match.group(1) not in ("\\", ",", "=") or not match.group(1):
            raise BadSelector(f"invalid field selector: invalid escape sequence: {match.group(0)}")
        return match.group(1)

    return _ESCAPED.sub(replace, text)


def _split_terms(text: str) -> list[str]:
    parts, current, index = [], "", 0
    while index < len(text):
        char = text[index]
        if char == "\\":
            current += text[index : index + 2]
            index += 2
            continue
        if char == ",":
            parts.append(current)
            current = ""
        else:
            current += char
        index += 1
    parts.append(current)
    return parts


@lru_cache(maxsize=1024)
def parse_fields(text: str) -> FieldMatcher:
    """Parse a `fieldSelector` query parameter; empty text selects everything."""
    terms = []
    for part in _split_terms(text):
        if not part:
            continue
        match = re.match(r"((?:\\.|[^\\=!])*?)(!=|==|=)(.*)", part, re.DOTALL)
        if match is None:
            raise BadSelector(f"invalid selector: '{text}'; can't understand '{part}'")
        path, operator, value = match.groups()
        if re.search(r"(?<!\\)(?:\\\\)*=", value):
            raise BadSelector(f"invalid selector: '{text}'; can't understand '{part}'")
        terms.append(FieldTerm(path.strip(), operator != "!=", _unescape(value)))
        if len(terms) > MAX_TERMS:
            raise BadSelector(f"the field selector has more than {MAX_TERMS} terms")
    return FieldMatcher(tuple(terms))
