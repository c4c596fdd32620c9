"""Authenticate a request: by the administrator's token, made once per data directory, or by a service account's token.

Users with the verb `impersonate` may act as another user through the Impersonate-… headers. Tokens are never logged.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import unquote

from phalanx.base.errors import BadRequest, Forbidden, Unauthorized
from phalanx.local.api.files import write_private
from phalanx.local.api.request import User
from phalanx.local.api.rights import Attributes
from phalanx.local.api.tokens import Tokens

_SCHEME = b"bearer "
_LOOPBACK_HOST = re.compile(rb"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
OPEN_PATHS = frozenset(("/livez", "/readyz", "/healthz", "/version"))


def is_open(path: str) -> bool:
    """Return True if a path needs no authentication.

    Health and version show nothing that a port scan would not show.
    """
    return path in OPEN_PATHS or path == "/version/" or path.startswith(("/livez/", "/readyz/", "/healthz/"))


class Authenticator:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def user(self, headers: Iterable[tuple[bytes, bytes]], certificate: str = "") -> User:
        """Return the user that a request authenticates as. Raises Unauthorized.

        certificate: the serial number of the client certificate that our authority signed, if the client showed one.
        """
        if certificate and (known := self._tokens.users.by_certificate(certificate)) is not None:
            return known
        for name, value in headers:
            if name == b"authorization" and value[: len(_SCHEME)].lower() == _SCHEME:
                found = self._tokens.user(value[len(_SCHEME) :].strip())
                if found is not None:
                    return found
                break
        raise Unauthorized("Unauthorized")


class Anonymous:
    """Plain HTTP on loopback without credentials: only when asked for explicitly.

    A web page in a browser on this machine could reach such a server, under its own name or a borrowed one; browsers
    always say so in Origin or Host.
    """

    def user(self, headers: Iterable[tuple[bytes, bytes]], certificate: str = "") -> User:
        for name, value in headers:
            if name == b"origin" or (name == b"host" and not _LOOPBACK_HOST.fullmatch(value)):
                raise Forbidden("without a token this server answers only clients of this machine, and no web pages")
        return User()


def load_token(path: Path | None) -> str:
    """Return the token of a data directory; it is made on first use."""
    if path is not None and path.exists():
        token = path.read_text().strip()
        if token:
            return token
    token = secrets.token_urlsafe(32)
    if path is not None:
        write_private(path, token.encode())
    return token


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
