"""Questions about access and identity. The local cluster has one user, who may do everything."""

from __future__ import annotations

from phalanx.base.errors import NotFound
from phalanx.local.api.body import read_object
from phalanx.local.api.change import Changes
from phalanx.local.api.options import write_options
from phalanx.local.api.request import Answer, Request, User
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
            obj["status"] = {"userInfo": _user(request.user)}
        case "TokenReview":
            token = str((obj.get("spec") or {}).get("token") or "")
            found = changes.ctx.tokens.user(token.encode())
            if found is not None:
                obj["status"] = {"authenticated": True, "user": _user(found)}
            else:
                why = "the token is not one of this server, or no longer good" if token else "no token was given"
                obj["status"] = {"authenticated": False, "error": why}
        case _:
            raise NotFound("the server could not find the requested resource")
    metadata = obj.get("metadata") or {}
    metadata.setdefault("creationTimestamp", None)
    obj["metadata"] = metadata
    return Answer(201, encode(obj), warnings=body.warnings)


def _user(asking: User) -> Json:
    user: Json = {"username": asking.name, "groups": list(asking.groups)}
    if asking.uid:
        user["uid"] = asking.uid
    return user
