"""The `authorizer` variable: expressions that check permissions of a user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from ..declarations import STRING_FACTOR, function, member
from ..types import BOOL, STRING, opaque
from ..values import EvaluationError, register, size_of

AUTHORIZER = opaque("kubernetes.authorization.Authorizer")
PATH_CHECK = opaque("kubernetes.authorization.PathCheck")
GROUP_CHECK = opaque("kubernetes.authorization.GroupCheck")
RESOURCE_CHECK = opaque("kubernetes.authorization.ResourceCheck")
DECISION = opaque("kubernetes.authorization.Decision")
CHECK_COST = 350_000  # allows two checks per expression


@dataclass(frozen=True, slots=True)
class AccessQuestion:
    """An access check. An empty `service_account` means the user of the request."""

    verb: str = ""
    path: str = ""
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    service_account: tuple[str, str] | None = None  # (namespace, name)


Decide = Callable[[AccessQuestion], tuple[bool, str]]
"""Question → (allowed, reason)."""


@dataclass(frozen=True, slots=True)
class AuthorizerValue:
    """The authorizer, for the user of the request or for a service account."""

    decide: Decide
    service_account: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Check:
    decide: Decide
    question: AccessQuestion


class PathCheck(_Check):
    """A check of a non-resource path."""

    __slots__ = ()


class GroupCheck(_Check):
    """A check with only an API group so far."""

    __slots__ = ()


class ResourceCheck(_Check):
    """A check of a resource."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class DecisionValue:
    """The result of a check."""

    allowed: bool
    reason: str


for _class, _type in (
    (AuthorizerValue, AUTHORIZER),
    (PathCheck, PATH_CHECK),
    (GroupCheck, GROUP_CHECK),
    (ResourceCheck, RESOURCE_CHECK),
    (DecisionValue, DECISION),
):
    register(_class, _type.name)


def _path(authorizer: AuthorizerValue, path: str) -> PathCheck:
    if not path:
        raise EvaluationError("path must not be empty")
    return PathCheck(authorizer.decide, AccessQuestion(path=path, service_account=authorizer.service_account))


def _group(authorizer: AuthorizerValue, group: str) -> GroupCheck:
    return GroupCheck(authorizer.decide, AccessQuestion(group=group, service_account=authorizer.service_account))


def _resource(check: GroupCheck, resource: str) -> ResourceCheck:
    if not resource:
        raise EvaluationError("resource must not be empty")
    return ResourceCheck(check.decide, replace(check.question, resource=resource))


def _with(field: str) -> Any:
    def run(check: ResourceCheck, value: str) -> ResourceCheck:
        named: dict[str, Any] = {field: value}
        return ResourceCheck(check.decide, replace(check.question, **named))

    return run


def _check(check: _Check, verb: str) -> DecisionValue:
    return DecisionValue(*check.decide(replace(check.question, verb=verb)))


def _check_cost(_: tuple[Any, ...], __: Any) -> int:
    return CHECK_COST


def _selector_cost(args: tuple[Any, ...], _: Any) -> int:
    size = size_of(args[1])
    return 10 + ceil(size * STRING_FACTOR) + ceil(ceil(size * 0.5) * 50)


AUTHORIZERS = (
    function("path", member("authorizer_path", (AUTHORIZER, STRING), PATH_CHECK, _path)),
    function("group", member("authorizer_group", (AUTHORIZER, STRING), GROUP_CHECK, _group)),
    function(
        "serviceAccount",
        member(
            "authorizer_serviceaccount",
            (AUTHORIZER, STRING, STRING),
            AUTHORIZER,
            lambda a, namespace, name: AuthorizerValue(a.decide, (namespace, name)),
        ),
    ),
    function("resource", member("groupcheck_resource", (GROUP_CHECK, STRING), RESOURCE_CHECK, _resource)),
    *(
        function(name, member(f"resourcecheck_{name}", (RESOURCE_CHECK, STRING), RESOURCE_CHECK, _with(name)))
        for name in ("subresource", "namespace", "name")
    ),
    *(
        function(
            name,
            member(
                f"authorizer_{name}", (RESOURCE_CHECK, STRING), RESOURCE_CHECK, lambda check, _: check, _selector_cost
            ),
        )
        for name in ("fieldSelector", "labelSelector")
    ),
    function(
        "check",
        member("pathcheck_check", (PATH_CHECK, STRING), DECISION, _check, _check_cost),
        member("resourcecheck_check", (RESOURCE_CHECK, STRING), DECISION, _check, _check_cost),
    ),
    function("allowed", member("decision_allowed", (DECISION,), BOOL, lambda d: d.allowed)),
    function("reason", member("decision_reason", (DECISION,), STRING, lambda d: d.reason)),
    function("errored", member("decision_errored", (DECISION,), BOOL, lambda d: False)),
    function("error", member("decision_error", (DECISION,), STRING, lambda d: "")),
)
