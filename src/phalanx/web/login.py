"""Logins: links that work once, and the signed cookie they are exchanged for.

A cookie holds the time at which it expires and the rights of its owner, signed with a secret key. The server keeps no
sessions, only logouts (`web.logouts`), so open pages continue after a restart with the same key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from pathlib import Path

from phalanx.base.errors import Unauthorized
from phalanx.web.logouts import Logouts

LINK_SECONDS = 24 * 3600.0
SESSION_SECONDS = 7 * 24 * 3600.0  # a page on a second screen; loopback only
MOST_LINKS = 32  # unused links at one time; the oldest goes first
ASK = "ask"  # may also ask what-if
LOOK = "look"


class Login:
    def __init__(
        self,
        key: bytes,
        now: Callable[[], float],
        session_seconds: float = SESSION_SECONDS,
        logouts: Path | None = None,
    ) -> None:
        """`logouts`: where logouts are kept; None: in memory, until this process ends."""
        self._key, self._now = key, now
        self.session_seconds = session_seconds
        self._links: dict[str, float] = {}  # digest of the secret -> valid until
        self._logouts = Logouts(now, logouts, session_seconds)

    @classmethod
    def keyed(cls, secret: str, now: Callable[[], float], logouts: Path | None = None) -> Login:
        """Make a Login with a key derived from a secret that outlives the process.

        Without a secret the key is random, so logins end with this process.
        """
        made = (
            hmac.digest(secret.encode(), b"phalanx dashboard session", "sha256") if secret else secrets.token_bytes(32)
        )
        return cls(made, now, logouts=logouts)

    def link(self) -> str:
        """Make the secret of a link that works once."""
        secret = secrets.token_urlsafe(24)
        self._links[_digest(secret)] = self._now() + LINK_SECONDS
        while len(self._links) > MOST_LINKS:
            del self._links[next(iter(self._links))]
        return secret

    def redeem(self, secret: str) -> str:
        """Return the cookie for the secret of a link. Raises Unauthorized with the reason."""
        until = self._links.pop(_digest(secret), None)
        if until is None:
            raise Unauthorized("this login link was used before or is not of this server")
        if until < self._now():
            raise Unauthorized("this login link has expired")
        return self.cookie(ASK)

    def cookie(self, may: str, key: str = "") -> str:
        """Return a signed cookie with the rights `may`.

        `key`: a secret that only the owner has; without one, a random name identifies this login.
        """
        body = f"{int(self._now() + self.session_seconds)}.{may}.{key or secrets.token_hex(8)}"
        return f"{body}.{self._sign(body)}"

    def key(self, cookie: str) -> str:
        """Return the key in a cookie that `may` has accepted."""
        return cookie.split(".")[2]

    def leave(self, cookie: str) -> None:
        """Make a cookie invalid, also if a copy of it exists elsewhere."""
        self._logouts.add(self.key(cookie), float(cookie.partition(".")[0]))

    def may(self, cookie: str) -> str:
        """Return what the owner of a cookie may do. Raises Unauthorized with the reason."""
        body, _, signature = cookie.rpartition(".")
        if not body or not hmac.compare_digest(signature.encode(), self._sign(body).encode()):
            raise Unauthorized("you are not logged in here" if not cookie else "this login is of another server")
        until, may, name = body.split(".")
        if float(until) < self._now():
            raise Unauthorized("this login has expired")
        if self._logouts.has(name, float(until)):
            raise Unauthorized("you are logged out")
        return may

    def _sign(self, body: str) -> str:
        return hmac.new(self._key, body.encode(), "sha256").hexdigest()


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
