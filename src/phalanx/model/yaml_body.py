"""Reads one YAML document as Kubernetes does: JSON's types, text keys, no dates, nothing that grows when expanded."""

from __future__ import annotations

import re
from typing import Any

import yaml

from phalanx.base.errors import BadRequest

MAX_DEPTH = 200  # levels of nesting; recursion in every later step stays far from Python's limit
_MAX_ALIASES = 100
_MAX_NODES = 500_000  # values after aliases are expanded

if not yaml.__with_libyaml__:  # pragma: no cover - wheels of PyYAML always bring it
    raise ImportError("PyYAML was built without libyaml, which Phalanx needs")


class _Loader(yaml.CSafeLoader):
    """Mappings stay lists of pairs, so that repeated keys can be seen."""


def _pairs(loader: _Loader, node: yaml.MappingNode) -> list[tuple[Any, Any]]:
    loader.flatten_mapping(node)
    return _Pairs(
        (loader.construct_object(key, True), loader.construct_object(value, True)) for key, value in node.value
    )


class _Pairs(list[tuple[Any, Any]]):
    """A mapping as written."""


_Loader.add_constructor("tag:yaml.org,2002:map", _pairs)
# Dates are text in Kubernetes; base 60 numbers were never meant ("1:30" in a port map).
_Loader.yaml_implicit_resolvers = {
    first: [(tag, shape) for tag, shape in shapes if not tag.endswith((":timestamp", ":int", ":float"))]
    for first, shapes in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def _resolver(tag: str, shape: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(shape), list(first))


_resolver("int", r"^(?:[-+]?0b[01]+|[-+]?0[0-7]+|[-+]?(?:0|[1-9][0-9]*)|[-+]?0x[0-9a-fA-F]+)$", "-+0123456789")
_resolver(
    "float",
    r"^(?:[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
    "-+0123456789.",
)


def read(body: bytes, duplicates: list[str] | None = None) -> Any:
    """The document as JSON values. Repeated keys: the last wins, and `duplicates` gets a text for each."""
    try:
        _survey(body)
        loader = _Loader(body)
        try:
            found = loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.YAMLError as problem:
        raise BadRequest(f"error parsing YAML: {_one_line(problem)}") from None
    except (ValueError, OverflowError, RecursionError, UnicodeError, TypeError) as problem:
        raise BadRequest(f"error parsing YAML: {problem}") from None
    return _Plain(duplicates).value(found, "")


def _survey(body: bytes) -> None:
    """Looks at the events before anything is built: the C loader recurses without a limit."""
    depth = aliases = documents = 0
    for event in yaml.parse(body, Loader=yaml.CSafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise BadRequest(f"error parsing YAML: nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        elif isinstance(event, yaml.AliasEvent):
            aliases += 1
            if aliases > _MAX_ALIASES:
                raise BadRequest(f"error parsing YAML: more than {_MAX_ALIASES} aliases")
        elif isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise BadRequest("error parsing YAML: one document expected, found more")


def _one_line(problem: yaml.YAMLError) -> str:
    mark = getattr(problem, "problem_mark", None)
    text = getattr(problem, "problem", None) or str(problem).split("\n", 1)[0]
    return f"line {mark.line + 1}: {text}" if mark is not None else text


class _Plain:
    """Copies loaded values into plain JSON; aliases become copies, within a budget."""

    def __init__(self, duplicates: list[str] | None) -> None:
        self._duplicates = duplicates
        self._nodes = 0

    def value(self, found: Any, path: str, depth: int = 0) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES or depth > MAX_DEPTH:
            raise BadRequest("error parsing YAML: the document grows too large when its aliases are expanded")
        if isinstance(found, _Pairs):
            plain: dict[str, Any] = {}
            for raw, inner in found:
                key = _key(raw)
                at = f"{path}.{key}" if path else key
                if key in plain and self._duplicates is not None:
                    self._duplicates.append(f'duplicate field "{at}"')
                plain[key] = self.value(inner, at, depth + 1)
            return plain
        if isinstance(found, list):
            return [self.value(inner, f"{path}[{index}]", depth + 1) for index, inner in enumerate(found)]
        if isinstance(found, float) and found - found != 0:
            raise BadRequest("error parsing YAML: .inf and .nan have no place in an object")
        if found is None or isinstance(found, str | int | float):
            return found
        raise BadRequest(f"error parsing YAML: a {type(found).__name__} has no place in an object")


def _key(raw: Any) -> str:
    if isinstance(raw, str):
        return raw
    if raw is True or raw is False:
        return "true" if raw else "false"
    if isinstance(raw, int | float):
        return str(raw)
    raise BadRequest("error parsing YAML: keys must be text")
