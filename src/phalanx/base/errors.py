"""API problems: one class per Status reason, used by the server that returns them and the client that receives them.

"Does not fit" is not an error and has no class here; the engine returns values for that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class Problem(Exception):
    """Base class of every exception that Phalanx raises on purpose."""


class ConfigProblem(Problem):
    """A setting the user gave is wrong; `path` is the field, in Kubernetes notation."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path
        self.message = message


class ApiProblem(Problem):
    """A failed API call; converted to and from a Kubernetes Status object."""

    reason: ClassVar[str] = ""
    code: ClassVar[int] = 500

    def __init__(
        self,
        message: str,
        *,
        name: str = "",
        group: str = "",
        kind: str = "",
        uid: str = "",
        causes: Sequence[Mapping[str, str]] = (),
        retry_after: int = 0,
        http_code: int = 0,
        status_reason: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reported = False  # an Event about it was recorded
        self.name = name
        self.group = group
        self.kind = kind  # the plural resource or the Kind, depending on the reason (as in kube-apiserver)
        self.uid = uid
        self.causes = tuple(causes)
        self.retry_after = retry_after
        self.http_code = http_code or self.code
        self.status_reason = status_reason or self.reason

    def status(self) -> dict[str, Any]:
        details: dict[str, Any] = {}
        for key, value in (("name", self.name), ("group", self.group), ("kind", self.kind), ("uid", self.uid)):
            if value:
                details[key] = value
        if self.causes:
            details["causes"] = [dict(cause) for cause in self.causes]
        if self.retry_after:
            details["retryAfterSeconds"] = self.retry_after
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
        }
        if self.status_reason:
            body["reason"] = self.status_reason
        if details or self.http_code == 404:  # clients read the details of a 404 without checking that they exist
            body["details"] = details
        body["code"] = self.http_code
        return body


class BadRequest(ApiProblem):
    reason, code = "BadRequest", 400


class Unauthorized(ApiProblem):
    reason, code = "Unauthorized", 401


class Forbidden(ApiProblem):
    reason, code = "Forbidden", 403


class NotFound(ApiProblem):
    reason, code = "NotFound", 404


class MethodNotAllowed(ApiProblem):
    reason, code = "MethodNotAllowed", 405


class NotAcceptable(ApiProblem):
    reason, code = "NotAcceptable", 406


class AlreadyExists(ApiProblem):
    reason, code = "AlreadyExists", 409


class Conflict(ApiProblem):
    reason, code = "Conflict", 409


class ResourceExpired(ApiProblem):
    reason, code = "Gone", 410


class Expired(ApiProblem):
    reason, code = "Expired", 410


class RequestEntityTooLarge(ApiProblem):
    reason, code = "RequestEntityTooLarge", 413


class UnsupportedMediaType(ApiProblem):
    reason, code = "UnsupportedMediaType", 415


class Invalid(ApiProblem):
    reason, code = "Invalid", 422


class TooManyRequests(ApiProblem):
    reason, code = "TooManyRequests", 429


class InternalError(ApiProblem):
    reason, code = "InternalError", 500


class ServiceUnavailable(ApiProblem):
    reason, code = "ServiceUnavailable", 503


class Timeout(ApiProblem):
    reason, code = "Timeout", 504


class Unreachable(ApiProblem):
    """No answer came. The call may or may not have taken effect; read the object to find out."""

    reason, code = "Unreachable", 503


_BY_REASON: dict[str, type[ApiProblem]] = {
    cls.reason: cls
    for cls in (
        BadRequest, Unauthorized, Forbidden, NotFound, MethodNotAllowed, NotAcceptable, AlreadyExists, Conflict,
        ResourceExpired, Expired, RequestEntityTooLarge, UnsupportedMediaType, Invalid, TooManyRequests, InternalError,
        ServiceUnavailable, Timeout,
    )
}  # fmt: skip
_BY_CODE: dict[int, type[ApiProblem]] = {
    cls.code: cls
    for cls in (
        BadRequest, Unauthorized, Forbidden, NotFound, MethodNotAllowed, NotAcceptable, Conflict, Expired,
        RequestEntityTooLarge, UnsupportedMediaType, Invalid, TooManyRequests, InternalError, ServiceUnavailable,
        Timeout,
    )
}  # fmt: skip


def problem_from_status(status: Mapping[str, Any], http_code: int = 0) -> ApiProblem:
    """Convert a Status object, or the body of another HTTP error, to its exception class."""
    details = status.get("details") or {}
    code = int(status.get("code") or http_code or 500)
    reason = str(status.get("reason") or "")
    cls = _BY_REASON.get(reason) or _BY_CODE.get(code) or ApiProblem
    return cls(
        str(status.get("message") or f"the server answered HTTP {code}"),
        name=str(details.get("name") or ""),
        group=str(details.get("group") or ""),
        kind=str(details.get("kind") or ""),
        uid=str(details.get("uid") or ""),
        causes=details.get("causes") or (),
        retry_after=int(details.get("retryAfterSeconds") or 0),
        http_code=code,
        status_reason=reason,
    )
