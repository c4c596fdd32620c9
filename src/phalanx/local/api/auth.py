"""Who is asking: the administrator's token, made once per data directory, or one of a service account. Never logged."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from phalanx.base.errors import Forbidden, Unauthorized
from phalanx.local.api.files import write_private
from phalanx.local.api.request import User
from phalanx.local.api.tokens import Tokens

_SCHEME = b"bearer "
_LOOPBACK_HOST = re.compile(rb"(localhost|127(\.\d+){3}|\[::1\])(:\d+)?")
OPEN_PATHS = frozenset(("/livez", "/readyz", "/healthz", "/version"))


def is_open(path: str) -> bool:
    """Return True if a path needs no authentication.

    Health and version tell nothing that a port scan would not.
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
