"""Who is asking: one bearer token, made once per data directory, compared in constant time. Never logged."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from phalanx.base.errors import Forbidden, Unauthorized
from phalanx.local.api.files import write_private
from phalanx.local.api.request import User

_SCHEME = b"bearer "
_LOOPBACK_HOST = re.compile(rb"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
OPEN_PATHS = frozenset(("/livez", "/readyz", "/healthz", "/version"))


def is_open(path: str) -> bool:
    """Health and version tell nothing that a port scan would not."""
    return path in OPEN_PATHS or path.startswith(("/livez/", "/readyz/", "/healthz/"))


class Authenticator:
    def __init__(self, token: str, user: User | None = None) -> None:
        self._token = token.encode()
        self._user = user or User()

    def user(self, headers: Iterable[tuple[bytes, bytes]]) -> User:
        for name, value in headers:
            if name == b"authorization" and value[: len(_SCHEME)].lower() == _SCHEME:
                if hmac.compare_digest(value[len(_SCHEME) :].strip(), self._token):
                    return self._user
                break
        raise Unauthorized("Unauthorized")


class Anonymous:
    """Plain HTTP on loopback without credentials: only when asked for explicitly.

    A web page in a browser on this machine could reach such a server, under its own name or a borrowed one; browsers
    always say so in Origin or Host.
    """

    def user(self, headers: Iterable[tuple[bytes, bytes]]) -> User:
        for name, value in headers:
            if name == b"origin" or (name == b"host" and not _LOOPBACK_HOST.fullmatch(value)):
                raise Forbidden("without a token this server answers only clients of this machine, and no web pages")
        return User()


def load_token(path: Path | None) -> str:
    """The token of a data directory, made on first use."""
    if path is not None and path.exists():
        token = path.read_text().strip()
        if token:
            return token
    token = secrets.token_urlsafe(32)
    if path is not None:
        write_private(path, token.encode())
    return token
