"""Optional values: `optional.of`, `a.?b.orValue(c)`."""

from __future__ import annotations

from typing import Any

from ..declarations import function, member, overload
from ..types import BOOL, INT, list_of, map_of, optional_of
from ..types import param as type_param
from ..values import NONE, Duration, EvaluationError, Optional, Timestamp, Uint, some
from .standard import _never
from .times import MIN_STAMP

K, V = type_param("K"), type_param("V")
_OPTIONAL, _LIST, _MAP = optional_of(V), list_of(V), map_of(K, V)


def _value(optional: Optional) -> Any:
    if optional.present:
        return optional.value
    raise EvaluationError("optional.none() dereference")


def is_zero(value: Any) -> bool:
    """Return whether a value is the zero or empty value of its type."""
    if isinstance(value, Duration):
        return value.nanos == 0
    if isinstance(value, Timestamp):
        return value.nanos == MIN_STAMP
    if value is None or isinstance(value, (bool, int, float, str, bytes, list, dict, Uint)):
        return not value
    return False


def _unwrap(values: list[Any]) -> list[Any]:
    if not all(isinstance(v, Optional) for v in values):
        raise EvaluationError("value is not optional")
    return [v.value for v in values if v.present]


OPTIONALS = (
    function("optional.of", overload("optional_of", (V,), _OPTIONAL, some)),
    function(
        "optional.ofNonZeroValue",
        overload("optional_ofNonZeroValue", (V,), _OPTIONAL, lambda v: NONE if is_zero(v) else some(v)),
    ),
    function("optional.none", overload("optional_none", (), _OPTIONAL, lambda: NONE)),
    function("optional.unwrap", overload("optional_unwrap", (list_of(_OPTIONAL),), _LIST, _unwrap)),
    function("unwrapOpt", member("optional_unwrapOpt", (list_of(_OPTIONAL),), _LIST, _unwrap)),
    function("first", member("list_first", (_LIST,), _OPTIONAL, lambda v: some(v[0]) if v else NONE)),
    function("last", member("list_last", (_LIST,), _OPTIONAL, lambda v: some(v[-1]) if v else NONE)),
    function("value", member("optional_value", (_OPTIONAL,), V, _value)),
    function("hasValue", member("optional_hasValue", (_OPTIONAL,), BOOL, lambda v: v.present)),
    function("or", member("optional_or_optional", (_OPTIONAL, _OPTIONAL), _OPTIONAL, _never)),
    function("orValue", member("optional_orValue_value", (_OPTIONAL, V), V, _never)),
    function(
        "_[?_]",
        overload("list_optindex_optional_int", (_LIST, INT), _OPTIONAL, _never),
        overload("optional_list_optindex_optional_int", (optional_of(_LIST), INT), _OPTIONAL, _never),
        overload("map_optindex_optional_value", (_MAP, K), _OPTIONAL, _never),
        overload("optional_map_optindex_optional_value", (optional_of(_MAP), K), _OPTIONAL, _never),
    ),
    function(
        "_[_]",
        overload("optional_list_index_int", (optional_of(_LIST), INT), _OPTIONAL, _never),
        overload("optional_map_index_value", (optional_of(_MAP), K), _OPTIONAL, _never),
    ),
)
