"""Impersonation: the Impersonate-… headers, for users with the verb `impersonate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from urllib.parse import unquote

from phalanx.base.errors import BadRequest
from phalanx.local.api.request import User
from phalanx.local.api.rights import Attributes

PREFIX = b"impersonate-"
_EXTRA = "impersonate-extra-"
_AUTHENTICATION = "authentication.k8s.io"
_ACCOUNT = "system:serviceaccount:"
Check = Callable[[User, Attributes], None]  # raises Forbidden


def account_groups(name: str) -> tuple[str, ...]:
    """Return the groups of a user that is a service account; none for other users."""
    parts = name.removeprefix(_ACCOUNT).split(":")
    if not name.startswith(_ACCOUNT) or len(parts) != 2:
        return ()
    return ("system:serviceaccounts", f"system:serviceaccounts:{parts[0]}")


def impersonated(asking: User, headers: Iterable[tuple[bytes, bytes]], check: Check) -> User:
    """Return the user that the request shall count as.

    Raises BadRequest and whatever `check` raises.
    """
    asked = _asked_for(headers)
    name, groups = asked.name, list(asked.groups)
    if not name:
        raise BadRequest(
            "requested impersonation of groups, a uid or extra values without a user: give Impersonate-User"
        )
    account = name.removeprefix(_ACCOUNT).split(":") if account_groups(name) else None
    if account is not None:
        check(asking, Attributes("impersonate", "", "serviceaccounts", "", account[0], account[1]))
    else:
        check(asking, Attributes("impersonate", "", "users", "", "", name))
    for group in groups:
        check(asking, Attributes("impersonate", "", "groups", "", "", group))
    if asked.uid:
        check(asking, Attributes("impersonate", _AUTHENTICATION, "uids", "", "", asked.uid))
    for key, values in asked.extra.items():
        for value in values:
            check(asking, Attributes("impersonate", _AUTHENTICATION, "userextras", key, "", value))
    if account is not None and not groups:
        groups = list(account_groups(name))
    if "system:authenticated" not in groups and name != "system:anonymous":
        groups.append("system:authenticated")
    return User(name, asked.uid, tuple(groups), asked.extra)


def _asked_for(headers: Iterable[tuple[bytes, bytes]]) -> User:
    """Read the user, groups, uid and extra values from the impersonation headers, unchecked."""
    name, uid = "", ""
    groups: list[str] = []
    extra: dict[str, tuple[str, ...]] = {}
    for raw, value in headers:
        header = raw.decode("latin-1")
        text = value.decode("utf-8", "replace")
        if header == "impersonate-user":
            name = text
        elif header == "impersonate-group":
            groups.append(text)
        elif header == "impersonate-uid":
            uid = text
        elif header.startswith(_EXTRA):
            key = unquote(header.removeprefix(_EXTRA))
            extra[key] = (*extra.get(key, ()), text)
    return User(name, uid, tuple(groups), extra)
