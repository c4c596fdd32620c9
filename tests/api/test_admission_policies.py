# ruff: noqa: E501 (one expression, one line)
"""ValidatingAdmissionPolicies and MutatingAdmissionPolicies: what they refuse, change, warn about and write into the audit log."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.base.errors import ApiProblem, Forbidden, Invalid
from phalanx.local.api.request import User
from phalanx.local.api.rights import Rights
from support.api_world import CONFIGS, DEPLOYMENTS, MERGE, PODS, World, config, deployment
from support.crontabs import CRONS, DEFINITIONS, cron, definition
from support.manifests import pod

GROUP = "/apis/admissionregistration.k8s.io/v1"
POLICIES, BINDINGS = f"{GROUP}/validatingadmissionpolicies", f"{GROUP}/validatingadmissionpolicybindings"
MUTATING, MUTATING_BINDINGS = f"{GROUP}/mutatingadmissionpolicies", f"{GROUP}/mutatingadmissionpolicybindings"
Json = dict[str, Any]


def rules(resource: str = "configmaps", group: str = "", version: str = "v1", **more: Any) -> Json:
    rule = {"apiGroups": [group], "apiVersions": [version], "operations": ["CREATE", "UPDATE"], "resources": [resource]}
    return {"resourceRules": [{**rule, **more}]}


def policy(*validations: Any, name: str = "p", match: Json | None = None, **spec: Any) -> Json:
    found = [{"expression": v} if isinstance(v, str) else v for v in validations]
    body: Json = {"matchConstraints": match or rules(), **spec}
    if found:
        body["validations"] = found
    return {"metadata": {"name": name}, "spec": body}


def binding(name: str = "b", policy_name: str = "p", actions: tuple[str, ...] = ("Deny",), **spec: Any) -> Json:
    return {"metadata": {"name": name}, "spec": {"policyName": policy_name, "validationActions": list(actions), **spec}}


def bound(world: World, made: Json, **spec: Any) -> None:
    world.create(POLICIES, made)
    world.create(BINDINGS, binding(**spec))


def refusal(world: World, path: str, body: Json) -> ApiProblem:
    with pytest.raises(ApiProblem) as problem:
        world.create(path, body)
    return problem.value


# -- validating --------------------------------------------------------------------------------------------------------


def test_policy_refuses_what_does_not_hold(world: World) -> None:
    bound(world, policy("object.data.size() < 2", name="p"))
    world.create(CONFIGS, config("a", x="1"))
    problem = refusal(world, CONFIGS, config("b", x="1", y="2"))
    text = "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: failed expression: object.data.size() < 2"
    assert str(problem) == f'configmaps "b" is forbidden: {text}'
    assert (problem.http_code, problem.status_reason or problem.reason) == (422, "Invalid")
    assert list(problem.causes) == [{"message": text}]
    with pytest.raises(Invalid):
        world.patch(f"{CONFIGS}/a", {"data": {"y": "2"}})


def test_policy_without_a_binding_does_nothing(world: World) -> None:
    world.create(POLICIES, policy("false"))
    world.create(CONFIGS, config())


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ({"expression": "false", "message": "no"}, "no", 422),
        ({"expression": "true &&\nfalse", "message": "no"}, "no", 422),
        ({"expression": "false", "messageExpression": "'name ' +\nobject.metadata.name"}, "name x", 422),
        ({"expression": "false", "messageExpression": "'name ' + object.metadata.name"}, "name x", 422),
        ({"expression": "false", "message": "no", "messageExpression": "object.nope"}, "no", 422),
        ({"expression": "false", "message": "no", "reason": "Forbidden"}, "no", 403),
        ({"expression": "false", "message": "no", "reason": "Unauthorized"}, "no", 401),
        ({"expression": "object.nope == 1"}, "expression 'object.nope == 1' resulted in error: no such key: nope", 422),
    ],
)
def test_message_and_reason_of_a_refusal(world: World, body: Json, message: str, code: int) -> None:
    made = policy(
        {k: v.replace("object.nope", "string(object.nope)") if k == "messageExpression" else v for k, v in body.items()}
    )
    bound(world, made)
    problem = refusal(world, CONFIGS, config("x"))
    assert str(problem).endswith(f"denied request: {message}")
    assert problem.http_code == code


def test_what_expressions_see(world: World) -> None:
    world.patch("/api/v1/namespaces/ns", {"metadata": {"labels": {"team": "a"}}}, MERGE)
    checks = [
        "request.operation == 'CREATE' && request.kind.kind == 'ConfigMap' && request.resource.resource == 'configmaps'",
        "request.namespace == 'ns' && request.name == 'x' && request.userInfo.username != '' && !request.dryRun",
        "!has(request.subResource) && request.userInfo.groups.exists(g, g == 'system:masters')",
        "oldObject == null && object.metadata.name == 'x' && object.kind == 'ConfigMap'",
        "namespaceObject.metadata.labels['team'] == 'a' && namespaceObject.status.phase == 'Active'",
        "namespaceObject.metadata.creationTimestamp > timestamp('1970-01-01T00:00:00Z')",
        "authorizer.group('').resource('pods').namespace('ns').check('create').allowed()",
        "authorizer.requestResource.check('delete').allowed()",
        "object.data.?x.orValue('') == '1'",
    ]
    bound(world, policy(*checks))
    world.create(CONFIGS, config("x", x="1"))


def test_updates_and_deletions_have_an_old_object(world: World) -> None:
    match = rules(operations=["UPDATE", "DELETE"])
    bound(
        world,
        policy(
            "request.operation == 'DELETE' ? oldObject.data.keep != 'yes' && object == null : object.data.keep == oldObject.data.keep",
            match=match,
        ),
    )
    world.create(CONFIGS, config("a", keep="yes"))
    with pytest.raises(Invalid):
        world.patch(f"{CONFIGS}/a", {"data": {"keep": "no"}})
    with pytest.raises(Invalid):
        world.delete(f"{CONFIGS}/a")
    world.create(CONFIGS, config("b", keep="no"))
    world.delete(f"{CONFIGS}/b")


def test_variables_are_computed_on_demand_and_use_each_other(world: World) -> None:
    variables = [
        {"name": "count", "expression": "size(object.data)"},
        {"name": "double", "expression": "variables.count * 2"},
        {"name": "broken", "expression": "object.nope.nope"},
    ]
    bound(world, policy("variables.double < 4", variables=variables))
    world.create(CONFIGS, config("a", x="1"))
    assert "failed expression: variables.double < 4" in str(refusal(world, CONFIGS, config("b", x="1", y="2")))


def test_match_conditions_limit_a_policy(world: World) -> None:
    conditions = [{"name": "only-x", "expression": "object.metadata.name.startsWith('x')"}]
    bound(world, policy("false", matchConditions=conditions))
    world.create(CONFIGS, config("a"))
    refusal(world, CONFIGS, config("x"))


@pytest.mark.parametrize(("failure", "refused"), [("Fail", True), ("Ignore", False)])
def test_failure_policy_decides_about_errors(world: World, failure: str, refused: bool) -> None:
    bound(world, policy("object.nope.nope == 1", failurePolicy=failure))
    if refused:
        refusal(world, CONFIGS, config())
    else:
        world.create(CONFIGS, config())


def test_selectors_rules_and_exclusions(world: World) -> None:
    match = {
        **rules(),
        "objectSelector": {"matchLabels": {"checked": "yes"}},
        "excludeResourceRules": [{**rules()["resourceRules"][0], "resourceNames": ["free"]}],
    }
    bound(
        world,
        policy("false", match=match),
        matchResources={"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ns"}}},
    )
    world.create(CONFIGS, config("plain"))
    marked = config("marked")
    marked["metadata"]["labels"] = {"checked": "yes"}
    refusal(world, CONFIGS, marked)
    free = config("free")
    free["metadata"]["labels"] = {"checked": "yes"}
    world.create(CONFIGS, free)
    world.create("/api/v1/namespaces/default/configmaps", marked)


def test_parameters_by_name_and_by_selector(world: World) -> None:
    made = policy(
        "object.data.size() <= int(params.data.most)",
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        match=rules("secrets"),
    )
    world.create(CONFIGS, config("limits", most="1"))
    second = config("other", most="2")
    second["metadata"]["labels"] = {"limits": "yes"}
    world.create(CONFIGS, second)
    world.create(POLICIES, made)
    ref: Json = {"name": "limits", "namespace": "ns", "parameterNotFoundAction": "Deny"}
    world.create(BINDINGS, binding(paramRef=ref))
    secrets = "/api/v1/namespaces/ns/secrets"
    world.create(secrets, {"metadata": {"name": "a"}, "data": {"x": "eA=="}})
    refusal(world, secrets, {"metadata": {"name": "b"}, "data": {"x": "eA==", "y": "eA=="}})
    world.delete(f"{BINDINGS}/b")
    by_label: Json = {"selector": {"matchLabels": {"limits": "yes"}}, "parameterNotFoundAction": "Deny"}
    world.create(BINDINGS, binding(paramRef=by_label))
    world.create(secrets, {"metadata": {"name": "b"}, "data": {"x": "eA==", "y": "eA=="}})
    world.delete(f"{CONFIGS}/other")
    problem = refusal(world, secrets, {"metadata": {"name": "c"}, "data": {}})
    assert "failed to configure binding: no params found for policy binding with `Deny`" in str(problem)
    world.delete(f"{BINDINGS}/b")
    world.create(BINDINGS, binding(paramRef={**by_label, "parameterNotFoundAction": "Allow"}))
    world.create(secrets, {"metadata": {"name": "c"}, "data": {"x": "", "y": "", "z": ""}})


def test_actions_warn_and_audit(world: World) -> None:
    audits = [{"key": "size", "valueExpression": "'size ' + string(object.data.size())"}]
    bound(world, policy({"expression": "false", "message": "hm"}, auditAnnotations=audits), actions=("Warn", "Audit"))
    request = world.request("create", CONFIGS, config("a", x="1"))
    world.run(world.writer.handle(request))
    assert request.warnings == ("Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': hm",)
    assert request.annotations["p/size"] == "size 1"
    assert (
        '"message":"hm","policy":"p","binding":"b","expressionIndex":0'
        in request.annotations["validation.policy.admission.k8s.io/validation_failure"]
    )


def test_policy_that_costs_too_much_refuses(world: World) -> None:
    bound(world, policy("lists.range(10000).all(x, lists.range(10000).all(y, x + y >= 0))"))
    assert "operation cancelled: actual cost limit exceeded" in str(refusal(world, CONFIGS, config()))


def test_policies_see_subresources_and_other_versions(world: World) -> None:
    match = rules("deployments/scale", "apps", operations=["UPDATE"])
    bound(world, policy("object.spec.replicas < 5", match=match))
    world.create(DEPLOYMENTS, deployment())
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web", "namespace": "ns"}}
    world.update(f"{DEPLOYMENTS}/web/scale", {**scale, "spec": {"replicas": 4}})
    with pytest.raises(Invalid):
        world.update(f"{DEPLOYMENTS}/web/scale", {**scale, "spec": {"replicas": 5}})


def test_policies_cannot_lock_out_a_user_that_removes_them(world: World) -> None:
    everything = {
        "resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]
    }
    bound(world, policy("false", match=everything))
    refusal(world, CONFIGS, config())
    world.delete(f"{BINDINGS}/b")
    world.create(CONFIGS, config())


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"validations": [{"expression": "object.x +"}]},
            'spec.validations[0].expression: Invalid value: "object.x +": compilation failed: ERROR: <input>:1:11: Syntax error',
        ),
        ({"validations": [{"expression": "1"}]}, "must evaluate to bool but got int"),
        ({"validations": [{"expression": "object.x"}]}, "must evaluate to bool but got dyn"),
        ({"validations": [{"expression": "true", "messageExpression": "1"}]}, "must evaluate to string but got int"),
        (
            {"validations": [{"expression": "true", "reason": "Odd"}]},
            'spec.validations[0].reason: Unsupported value: "Odd"',
        ),
        (
            {"validations": [{"expression": "true", "message": " "}]},
            'spec.validations[0].message: Invalid value: " ": message must be non-empty if specified',
        ),
        ({"validations": [{"expression": "true", "message": "a\nb"}]}, "message must not contain line breaks"),
        (
            {"validations": [{"expression": "true", "messageExpression": " "}]},
            'spec.validations[0].messageExpression: Invalid value: " ": must be non-empty if specified',
        ),
        ({"validations": [{"expression": "params.x == 1"}]}, "undeclared reference to 'params'"),
        ({"validations": [{"expression": "variables.x == 1"}]}, "undefined field 'x'"),
        ({"validations": [{"expression": "request.nope == 1"}]}, "undefined field 'nope'"),
        (
            {"validations": [{"expression": "true"}], "variables": [{"name": "a-b", "expression": "1"}]},
            "must be a valid CEL identifier",
        ),
        (
            {"validations": [{"expression": "true"}], "matchConditions": [{"name": "x", "expression": "1"}]},
            "spec.matchConditions[0].expression",
        ),
        (
            {
                "validations": [{"expression": "true"}],
                "matchConditions": [{"name": "x", "expression": "true"}, {"name": "x", "expression": "true"}],
            },
            "Duplicate value",
        ),
        (
            {"auditAnnotations": [{"key": "a", "valueExpression": "1"}]},
            "must evaluate to one of [string null] but got int",
        ),
        ({"validations": [{"expression": "(" * 50_000}]}, "expression recursion limit exceeded"),
        ({"validations": [{"expression": "x" * 1_000_000}]}, "expression code point size exceeds limit"),
    ],
)
def test_policy_with_a_bad_expression_is_refused(world: World, spec: Json, text: str) -> None:
    with pytest.raises(Invalid) as problem:
        world.create(POLICIES, policy(**spec))
    assert text in str(problem.value)


def test_type_checking_warns_in_the_status(world: World) -> None:
    match = rules("deployments", "apps")
    made = world.create(
        POLICIES, policy("object.spec.replicas > '1'", "object.spec.nope == 1", "object.spec.replicas > 1", match=match)
    )
    status = made["status"]
    assert status["observedGeneration"] == 1
    first, second = status["typeChecking"]["expressionWarnings"]
    assert first["fieldRef"] == "spec.validations[0].expression"
    assert first["warning"].startswith(
        "apps/v1, Kind=Deployment: ERROR: <input>:1:22: found no matching overload for '_>_' applied to '(int, string)'"
    )
    assert second["fieldRef"] == "spec.validations[1].expression" and "undefined field 'nope'" in second["warning"]
    world.create(DEFINITIONS, definition())
    other = policy("object.spec.nope == 1", name="q", match=rules("crontabs", "stable.example.com"))
    assert "undefined field 'nope'" in str(world.create(POLICIES, other)["status"])
    fixed = policy("object.spec.replicas == 1", name="q", match=rules("crontabs", "stable.example.com"))
    assert world.update(f"{POLICIES}/q", fixed)["status"] == {"observedGeneration": 2, "typeChecking": {}}


def test_policies_know_custom_resources(world: World) -> None:
    world.create(DEFINITIONS, definition())
    bound(world, policy("object.spec.replicas < 3", match=rules("crontabs", "stable.example.com")))
    world.create(CRONS, cron(replicas=2))
    refusal(world, CRONS, cron("b", replicas=4))


# -- mutating ----------------------------------------------------------------------------------------------------------


def mutating(*mutations: Json, name: str = "m", match: Json | None = None, **spec: Any) -> Json:
    body = {"matchConstraints": match or rules(), "reinvocationPolicy": "Never", "mutations": list(mutations), **spec}
    return {"metadata": {"name": name}, "spec": body}


def applied(expression: str) -> Json:
    return {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}


def patched(expression: str) -> Json:
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}


def active(world: World, made: Json, **spec: Any) -> None:
    world.create(MUTATING, made)
    world.create(
        MUTATING_BINDINGS, {"metadata": {"name": "mb"}, "spec": {"policyName": made["metadata"]["name"], **spec}}
    )


def test_apply_configuration_is_merged(world: World) -> None:
    expression = """Object{
        metadata: Object.metadata{labels: {"added": "yes"}},
        spec: Object.spec{
            replicas: object.spec.replicas + 1,
            template: Object.spec.template{spec: Object.spec.template.spec{
                containers: object.spec.template.spec.containers.map(c, Object.spec.template.spec.containers{
                    name: c.name,
                    env: [Object.spec.template.spec.containers.env{name: "A", value: "b"}]
                })
            }}
        }
    }"""
    active(world, mutating(applied(expression), match=rules("deployments", "apps", operations=["CREATE"])))
    made = world.create(DEPLOYMENTS, deployment())
    assert made["metadata"]["labels"] == {"added": "yes"}
    assert made["spec"]["replicas"] == 3
    [container] = made["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "nginx" and container["env"] == [{"name": "A", "value": "b"}]


def test_json_patch_changes_the_object(world: World) -> None:
    expression = """[
        JSONPatch{op: "test", path: "/data/x", value: "1"},
        JSONPatch{op: "add", path: "/data/" + jsonpatch.escapeKey("a.b"), value: "2"},
        JSONPatch{op: "add", path: "/metadata/labels", value: {"added": "yes"}},
        JSONPatch{op: "add", path: "/metadata/labels/" + jsonpatch.escapeKey("a/b"), value: "c"}
    ]"""
    active(world, mutating(patched(expression)))
    made = world.create(CONFIGS, config("a", x="1"))
    assert made["data"] == {"x": "1", "a.b": "2"} and made["metadata"]["labels"] == {"added": "yes", "a/b": "c"}
    assert world.create(CONFIGS, config("b", x="2"))["data"] == {"x": "2"}  # its test failed: nothing is changed


def test_mutations_follow_one_another_and_validation_sees_them(world: World) -> None:
    first = patched("[JSONPatch{op: 'add', path: '/data/y', value: object.data.x + '!'}]")
    second = patched("[JSONPatch{op: 'add', path: '/data/z', value: object.data.y + '!'}]")
    active(world, mutating(first, second, variables=[{"name": "unused", "expression": "1"}]))
    bound(world, policy("object.data.z == '1!!'"))
    assert world.create(CONFIGS, config("a", x="1"))["data"] == {"x": "1", "y": "1!", "z": "1!!"}


@pytest.mark.parametrize(("failure", "refused"), [("Fail", True), ("Ignore", False)])
def test_failed_mutation_follows_the_failure_policy(world: World, failure: str, refused: bool) -> None:
    active(world, mutating(patched("[JSONPatch{op: 'remove', path: '/data/nope'}]"), failurePolicy=failure))
    if refused:
        assert "policy 'm' with binding 'mb' denied request: JSON Patch: " in str(
            refusal(world, CONFIGS, config("a", x="1"))
        )
    else:
        assert world.create(CONFIGS, config("a", x="1"))["data"] == {"x": "1"}


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (
            "Object{spec: Object.spec{tolerations: [Object.spec.tolerations{key: 'x'}]}}",
            "may not mutate atomic arrays, maps or structs: .spec.tolerations",
        ),
        ("Object{spec: Object.metadata{}}", 'unexpected type name "Object.metadata", expected "Object.spec"'),
        ("Object{spec: Object.spec{nodeName: string(object.nope)}}", "no such key: nope"),
    ],
)
def test_configuration_that_cannot_be_applied_refuses(world: World, expression: str, text: str) -> None:
    active(world, mutating(applied(expression), match=rules("pods")))
    assert text in str(refusal(world, PODS, pod()))


@pytest.mark.parametrize(
    ("mutation", "text"),
    [
        (applied("{'a': 1}"), "must evaluate to Object but got map(string, int)"),
        (patched("[1]"), "must evaluate to list(JSONPatch) but got list(int)"),
        (patched("[JSONPatch{op: 1}]"), "expected type of field 'op' is 'string' but provided type is 'int'"),
        (applied("Object{"), "Syntax error"),
        (
            {"patchType": "JSONPatch"},
            "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
        ),
    ],
)
def test_mutation_that_does_not_compile_is_refused(world: World, mutation: Json, text: str) -> None:
    with pytest.raises(Invalid) as problem:
        world.create(MUTATING, mutating(mutation))
    assert text in str(problem.value)


def test_mutating_policy_has_conditions_params_and_is_asked_again(world: World) -> None:
    world.create(CONFIGS, config("values", team="blue"))
    made = mutating(
        patched("[JSONPatch{op: 'add', path: '/data/team', value: params.data.team}]"),
        match=rules(operations=["CREATE"]),
        paramKind={"apiVersion": "v1", "kind": "ConfigMap"},
        matchConditions=[{"name": "marked", "expression": "object.metadata.name.startsWith('x')"}],
        reinvocationPolicy="IfNeeded",
    )
    active(world, made, paramRef={"name": "values", "parameterNotFoundAction": "Deny"})
    assert world.create(CONFIGS, config("x", a="1"))["data"] == {"a": "1", "team": "blue"}
    assert world.create(CONFIGS, config("y", a="1"))["data"] == {"a": "1"}


def test_authorizer_knows_what_the_user_may_do(world: World) -> None:
    world.ctx.rights = Rights(world.store)
    allowed = "authorizer.group('').resource('configmaps').namespace('ns').check('delete').allowed()"
    account = "!authorizer.serviceAccount('ns', 'default').group('').resource('pods').check('get').allowed()"
    path = "!authorizer.path('/metrics').check('get').allowed()"
    bound(
        world,
        policy(
            {"expression": allowed, "message": "may not delete"},
            account,
            path,
            "authorizer.requestResource.check('get').reason() == ''",
        ),
    )
    role = {"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]}]}
    world.create("/apis/rbac.authorization.k8s.io/v1/namespaces/ns/roles", role)
    request = world.request("create", CONFIGS, config("a"))
    request.user = User("bob", groups=("system:authenticated",))
    with pytest.raises(Invalid, match="may not delete"):
        world.run(world.writer.handle(request))


def test_deleting_a_collection_asks_about_each_object(world: World) -> None:
    bound(world, policy("oldObject.metadata.name != 'keep'", match=rules(operations=["DELETE"])))
    for name in ("a", "keep"):
        world.create(CONFIGS, config(name))
    with pytest.raises(Invalid):
        world.ask("deletecollection", CONFIGS)
    assert world.get(f"{CONFIGS}/keep") is not None


# -- device selectors --------------------------------------------------------------------------------------------------


def test_device_selectors_are_checked_when_they_are_written(world: World) -> None:
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    body: Json = {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": "device.driver == 'a'"}}]}}
    world.create(classes, body)
    body["metadata"]["name"] = "bad"
    for expression, text in (
        (
            "device.nope",
            "spec.selectors[0].cel.expression: Invalid value: \"device.nope\": compilation failed: ERROR: <input>:1:7: undefined field 'nope'",
        ),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        (
            "lists.range(1000).all(x, lists.range(1001).all(y, x + y >= 0))",
            "spec.selectors[0].cel.expression: Forbidden: too complex, exceeds cost limit",
        ),
        ("x" * 20_000, "spec.selectors[0].cel.expression: Too long: may not be more than 10240 bytes"),
    ):
        body["spec"]["selectors"][0]["cel"]["expression"] = expression
        with pytest.raises(Invalid) as problem:
            world.create(classes, body)
        assert text in str(problem.value)


def test_forbidden_is_a_reason(world: World) -> None:
    bound(world, policy({"expression": "false", "reason": "Forbidden"}))
    with pytest.raises(Forbidden):
        world.create(CONFIGS, config())
