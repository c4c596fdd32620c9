"""Questions about access and identity. The local cluster has one user, who may do everything."""

from __future__ import annotations

from phalanx.base.errors import NotFound
from phalanx.local.api.body import read_object
from phalanx.local.api.change import Changes
from phalanx.local.api.options import write_options
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.view import encode
from phalanx.model.kinds import Json


def review(request: Request, changes: Changes) -> Answer:
    body = read_object(request, write_options(request))
    obj = body.obj
    match request.kind.kind:
        case "SelfSubjectAccessReview" | "SubjectAccessReview" | "LocalSubjectAccessReview":
            obj["status"] = {"allowed": True, "reason": "the local cluster allows its user everything"}
        case "SelfSubjectRulesReview":
            everything: Json = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}
            obj["status"] = {
                "resourceRules": [everything],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "incomplete": False,
            }
        case "SelfSubjectReview":
            obj["status"] = {"userInfo": _user(request)}
        case "TokenReview":
            token = (obj.get("spec") or {}).get("token") or ""
            if token:
                obj["status"] = {"authenticated": True, "user": _user(request)}
            else:
                obj["status"] = {"authenticated": False, "error": "no token was given"}
        case _:
            raise NotFound("the server could not find the requested resource")
    metadata = obj.get("metadata") or {}
    metadata.setdefault("creationTimestamp", None)
    obj["metadata"] = metadata
    return Answer(201, encode(obj), warnings=body.warnings)


def _user(request: Request) -> Json:
    user: Json = {"username": request.user.name, "groups": list(request.user.groups)}
    if request.user.uid:
        user["uid"] = request.user.uid
    return user
