"""CEL in admission: variables of policies and match conditions, their types, and lazily evaluated variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import types as t
from .declarations import merge
from .environment import FOR_NEW, KUBERNETES, Environment
from .functions.authorizer import AUTHORIZER, RESOURCE_CHECK
from .functions.texts import JSON_PATCH
from .program import Program
from .syntax import CompileError
from .values import EvaluationError, FieldMap, ObjectValue

CALL_LIMIT = 1_000_000  # cost units of one expression
POLICY_BUDGET = 10_000_000  # cost units of one binding of a policy
CONDITIONS_BUDGET = 2_500_000  # cost units of all match conditions of a webhook or a binding
MESSAGE_BYTES = 5 * 1024  # size limit of the result of a messageExpression
JSON_PATCH_TYPE = t.object_type("JSONPatch")
APPLY_TYPE = t.object_type("Object")

_TEXTS = t.list_of(t.STRING)


def _fields(type_name: str, /, **types: t.Type) -> t.ObjectFields:
    return t.ObjectFields(type_name, {key: (key, found) for key, found in types.items()})


_OBJECTS: dict[str, t.ObjectFields] = {
    fields.name: fields
    for fields in (
        _fields("kubernetes.GroupVersionKind", group=t.STRING, version=t.STRING, kind=t.STRING),
        _fields("kubernetes.GroupVersionResource", group=t.STRING, version=t.STRING, resource=t.STRING),
        _fields(
            "kubernetes.UserInfo",
            username=t.STRING,
            uid=t.STRING,
            groups=_TEXTS,
            extra=t.map_of(t.STRING, _TEXTS),
        ),
        _fields(
            "kubernetes.AdmissionRequest",
            kind=t.object_type("kubernetes.GroupVersionKind"),
            resource=t.object_type("kubernetes.GroupVersionResource"),
            subResource=t.STRING,
            requestKind=t.object_type("kubernetes.GroupVersionKind"),
            requestResource=t.object_type("kubernetes.GroupVersionResource"),
            requestSubResource=t.STRING,
            name=t.STRING,
            namespace=t.STRING,
            operation=t.STRING,
            userInfo=t.object_type("kubernetes.UserInfo"),
            dryRun=t.BOOL,
            options=t.DYN,
        ),
        _fields("kubernetes.NamespaceSpec", finalizers=_TEXTS),
        _fields(
            "kubernetes.NamespaceCondition",
            status=t.STRING,
            type=t.STRING,
            lastTransitionTime=t.TIMESTAMP,
            message=t.STRING,
            reason=t.STRING,
        ),
        _fields(
            "kubernetes.NamespaceStatus",
            conditions=t.list_of(t.object_type("kubernetes.NamespaceCondition")),
            phase=t.STRING,
        ),
        _fields(
            "kubernetes.NamespaceMetadata",
            name=t.STRING,
            generateName=t.STRING,
            namespace=t.STRING,
            labels=t.map_of(t.STRING, t.STRING),
            annotations=t.map_of(t.STRING, t.STRING),
            UID=t.STRING,
            creationTimestamp=t.TIMESTAMP,
            deletionGracePeriodSeconds=t.INT,
            deletionTimestamp=t.TIMESTAMP,
            generation=t.INT,
            resourceVersion=t.STRING,
            finalizers=_TEXTS,
        ),
        _fields(
            "kubernetes.Namespace",
            metadata=t.object_type("kubernetes.NamespaceMetadata"),
            spec=t.object_type("kubernetes.NamespaceSpec"),
            status=t.object_type("kubernetes.NamespaceStatus"),
        ),
    )
}


class AdmissionEnvironment(Environment):
    """Compiles the expressions of one policy; variables become fields of `variables` as they are added."""

    def __init__(
        self,
        *,
        params: bool = False,
        patch: bool = False,
        composed: bool = True,
        new: bool = False,
        types: Mapping[str, t.Type] | None = None,
        objects: Mapping[str, t.ObjectFields] | None = None,
    ) -> None:
        """`new`: for an expression that is about to be stored, which may use fewer functions than a stored one."""
        known: dict[str, t.Type] = {
            "object": t.DYN,
            "oldObject": t.DYN,
            "namespaceObject": t.object_type("kubernetes.Namespace"),
            "request": t.object_type("kubernetes.AdmissionRequest"),
            "authorizer": AUTHORIZER,
            "authorizer.requestResource": RESOURCE_CHECK,
        }
        if params:
            known["params"] = t.DYN
        if composed:
            known["variables"] = t.object_type("kubernetes.variables")
        functions = FOR_NEW if new else KUBERNETES
        super().__init__(
            {**known, **(types or {})},
            {**_OBJECTS, **(objects or {})},
            merge(functions.items(), JSON_PATCH) if patch else functions,
        )
        self._patch = patch
        self._variables: dict[str, tuple[str, t.Type]] = {}
        self.objects["kubernetes.variables"] = t.ObjectFields("kubernetes.variables", self._variables)

    def declare(self, name: str, found: t.Type) -> None:
        """Declare `variables.name` for expressions compiled from now on."""
        self._variables[name] = (name, found)

    def find_object(self, name: str) -> t.ObjectFields | None:
        if self._patch and (name == "Object" or name.startswith("Object.")):
            return t.ObjectFields(name, {}, open=True)
        if self._patch and name == "JSONPatch":
            return _JSON_PATCH_FIELDS
        return super().find_object(name)

    def compile_to(self, expression: str, *wanted: t.Type) -> Program | CompileError:
        """Compile an expression that must have one of the wanted types; no types: any."""
        program = self.compile(expression)
        if isinstance(program, CompileError):
            return CompileError(program.full, program.problems)
        if wanted and program.type not in wanted:
            shown = str(wanted[0]) if len(wanted) == 1 else f"one of [{' '.join(map(str, wanted))}]"
            return CompileError(f"must evaluate to {shown} but got {program.type}")
        return program


_JSON_PATCH_FIELDS = t.ObjectFields(
    "JSONPatch",
    {"op": ("op", t.STRING), "path": ("path", t.STRING), "from": ("from", t.STRING), "value": ("value", t.DYN)},
)


@dataclass(slots=True)
class BindingEvaluation:
    """Evaluation of one object against one binding: its variables and remaining cost units."""

    variables: dict[str, Any]
    budget: int = POLICY_BUDGET

    def run(self, program: Program | CompileError) -> Any:
        """Return the value of an expression, or raise EvaluationError."""
        if isinstance(program, CompileError):
            raise EvaluationError(f"compilation error: {program.message}")
        if self.budget <= 0:
            raise OutOfBudget
        limit = min(CALL_LIMIT, self.budget)
        try:
            value, cost = program.evaluate(self.variables, limit)
        except OutOfBudget:
            raise
        except EvaluationError as problem:
            raise EvaluationError(f"expression '{program.expression}' resulted in error: {problem}") from None
        self.budget -= cost
        return value


class OutOfBudget(EvaluationError):
    """The cost units of the whole binding are used up."""

    def __init__(self) -> None:
        super().__init__("validation failed due to running out of cost budget, no further validation rules will be run")


@dataclass(slots=True)
class Variables(FieldMap):
    """The field map `variables`: each variable is evaluated at its first use."""

    programs: Mapping[str, Program | CompileError]
    evaluation: BindingEvaluation
    known: dict[str, Any] = field(default_factory=dict)

    def get_field(self, name: Any) -> Any:
        if name not in self.programs:
            raise EvaluationError(f"no such key: {name}")
        if name not in self.known:
            try:
                self.known[name] = self.evaluation.run(self.programs[name])
            except EvaluationError as problem:
                self.known[name] = problem
        found = self.known[name]
        if isinstance(found, EvaluationError):
            raise EvaluationError(f'composited variable "{name}" fails to evaluate: {found}')
        return found

    def has_field(self, name: Any) -> bool:
        return name in self.programs

    def keys(self) -> list[Any]:
        return list(self.programs)


def check_type_names(value: Any, path: str = "Object") -> None:
    """Raise EvaluationError if an object literal's type name does not match its place, such as `Object.spec`."""
    if isinstance(value, ObjectValue):
        if value.type_name != path:
            expected = f'expected "{path}", which matches field name path from root Object type'
            raise EvaluationError(f'type mismatch: unexpected type name "{value.type_name}", {expected}')
        for name, part in value.items():
            check_type_names(part, f"{path}.{name}")
    elif isinstance(value, list):
        for part in value:
            check_type_names(part, path)


def compile_variables(
    environment: AdmissionEnvironment, variables: Iterable[Mapping[str, Any]]
) -> dict[str, Program | CompileError]:
    """Compile variables in order; each may use those before it."""
    programs: dict[str, Program | CompileError] = {}
    for variable in variables:
        name = str(variable.get("name") or "")
        program = environment.compile_to(str(variable.get("expression") or ""))
        programs[name] = program
        environment.declare(name, program.type if isinstance(program, Program) else t.DYN)
    return programs
