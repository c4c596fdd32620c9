"""Questions about access and identity, answered by the same rights and tokens that requests are held against."""

from __future__ import annotations

from phalanx.base.errors import BadRequest, NotFound
from phalanx.local.api.body import read_object
from phalanx.local.api.change import Changes
from phalanx.local.api.options import write_options
from phalanx.local.api.problems import invalid
from phalanx.local.api.request import Answer, Request, User
from phalanx.local.api.rights import Attributes, Rights
from phalanx.local.api.view import encode
from phalanx.model.fieldpath import invalid as invalid_value
from phalanx.model.kinds import FieldError, Json

_EVERYTHING = "every user of this server may do everything: it runs with --authorization-mode AlwaysAllow"


def review(request: Request, changes: Changes) -> Answer:
    body = read_object(request, write_options(request))
    obj = body.obj
    spec: Json = obj.get("spec") or {}
    rights = changes.ctx.rights
    match request.kind.kind:
        case "SelfSubjectAccessReview":
            _complain(request, _about(spec))
            obj["status"] = _access(rights, request.user, spec)
        case "SubjectAccessReview":
            _complain(request, [*_about(spec), *_subject_errors(spec)])
            obj["status"] = _access(rights, _named(spec), spec)
        case "LocalSubjectAccessReview":
            inside = (spec.get("resourceAttributes") or {}).get("namespace") or ""
            errors = [*_about(spec), *_subject_errors(spec)]
            if inside != request.namespace and not errors:
                errors = [invalid_value("spec.resourceAttributes.namespace", inside, "must match metadata.namespace")]
            _complain(request, errors)
            obj["status"] = _access(rights, _named(spec), spec)
        case "SelfSubjectRulesReview":
            obj["status"] = _rules(rights, request.user, str(spec.get("namespace") or ""))
        case "SelfSubjectReview":
            obj["status"] = {"userInfo": _user(request.user)}
        case "TokenReview":
            obj["status"] = _token(changes, spec)
        case _:
            raise NotFound("the server could not find the requested resource")
    metadata = obj.get("metadata") or {}
    metadata.setdefault("creationTimestamp", None)
    obj["metadata"] = metadata
    return Answer(201, encode(obj), warnings=body.warnings)


def _complain(request: Request, errors: list[FieldError]) -> None:
    if errors:
        raise invalid(request.kind, "", errors)


def _about(spec: Json) -> list[FieldError]:
    if (spec.get("resourceAttributes") is None) != (spec.get("nonResourceAttributes") is None):
        return []
    why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
    return [invalid_value("spec.resourceAttributes", spec.get("resourceAttributes"), why)]


def _subject_errors(spec: Json) -> list[FieldError]:
    if spec.get("user") or spec.get("groups"):
        return []
    return [invalid_value("spec.user", "", "at least one of user or group must be specified")]


def _named(spec: Json) -> User:
    return User(str(spec.get("user") or ""), str(spec.get("uid") or ""), tuple(spec.get("groups") or ()))


def _access(rights: Rights | None, user: User, spec: Json) -> Json:
    about: Json = spec.get("resourceAttributes") or {}
    path: Json = spec.get("nonResourceAttributes") or {}
    if rights is None:
        return {"allowed": True, "reason": _EVERYTHING}
    if path:
        asked = Attributes(str(path.get("verb") or ""), path=str(path.get("path") or ""))
    else:
        names = ("verb", "group", "resource", "subresource", "namespace", "name")
        asked = Attributes(*(str(about.get(name) or "") for name in names))
    allowed, reason = rights.decide(user, asked)
    status: Json = {"allowed": allowed}
    if reason:
        status["reason"] = reason
    return status


def _rules(rights: Rights | None, user: User, namespace: str) -> Json:
    if not namespace:
        raise BadRequest("no namespace on request: give spec.namespace")
    if rights is None:
        rules: list[Json] = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
        rules.append({"verbs": ["*"], "nonResourceURLs": ["*"]})
    else:
        rules = rights.rules(user, namespace)
    fields = ("verbs", "apiGroups", "resources", "resourceNames")
    return {
        "resourceRules": [
            {key: rule[key] for key in fields if rule.get(key)} for rule in rules if rule.get("resources")
        ],
        "nonResourceRules": [
            {"verbs": rule["verbs"], "nonResourceURLs": rule["nonResourceURLs"]}
            for rule in rules
            if rule.get("nonResourceURLs")
        ],
        "incomplete": False,
    }


def _token(changes: Changes, spec: Json) -> Json:
    token, audiences = str(spec.get("token") or ""), spec.get("audiences") or []
    found = changes.ctx.tokens.reviewed(token.encode(), audiences)
    if found is None:
        why = "the token is not one of this server, or no longer good" if token else "no token was given"
        return {"authenticated": False, "error": why}
    status: Json = {"authenticated": True, "user": _user(found[0])}
    if audiences:
        status["audiences"] = found[1]
    return status


def _user(asking: User) -> Json:
    user: Json = {"username": asking.name, "groups": list(asking.groups)}
    if asking.uid:
        user["uid"] = asking.uid
    if asking.extra:
        user["extra"] = {key: list(values) for key, values in asking.extra.items()}
    return user
