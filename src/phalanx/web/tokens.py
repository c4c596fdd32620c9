"""Logins with a token of the API server, which reviews it again every minute.

For that the token must be there. It is kept locked, and the key is in the cookie alone: neither this process' memory
nor the browser has the token by itself. A session whose token is no longer valid ends within a minute.
"""

from __future__ import annotations

import hashlib
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from phalanx.base.errors import Forbidden, ServiceUnavailable, TooManyRequests, Unauthorized

AGAIN_SECONDS = 60.0
MOST_KEPT = 512  # logins at one time; the one that was unused longest is dropped first
_NONCE = 12  # bytes

TokenCheck = Callable[[str], Awaitable[str]]  # a bearer token -> what its owner may do; raises ApiProblem


@dataclass(slots=True)
class _Kept:
    locked: bytes
    may: str
    asked: float  # when the API server last confirmed it
    ended: str = ""  # why it no longer lets in


class LoginTokens:
    def __init__(self, check: TokenCheck, now: Callable[[], float]) -> None:
        self._check, self._now = check, now
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()  # by digest of the key

    async def enter(self, token: str) -> tuple[str, str]:
        """Return what the owner of a token may do, and the key for the cookie. Raises ApiProblem."""
        may = await self._check(token)
        key, nonce = AESGCM.generate_key(256), os.urandom(_NONCE)
        locked = nonce + AESGCM(key).encrypt(nonce, token.encode(), None)
        self._kept[_digest(key)] = _Kept(locked, may, self._now())
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return may, urlsafe_b64encode(key).decode().rstrip("=")

    async def may(self, text: str) -> str:
        """Return what the owner of a login may do now.

        Raises Unauthorized if the login has ended or the API server no longer accepts its token.
        """
        key = _key(text)
        kept = self._kept.get(_digest(key))
        if kept is None:
            raise Unauthorized("this login has ended")
        self._kept.move_to_end(_digest(key))
        if kept.ended:
            raise Unauthorized(kept.ended)
        if self._now() - kept.asked < AGAIN_SECONDS:
            return kept.may
        kept.asked = self._now()  # once a minute, however many requests come meanwhile
        try:
            kept.may = await self._check(_unlock(key, kept.locked))
        except (Unauthorized, Forbidden) as problem:
            kept.locked, kept.ended = b"", f"the API server no longer lets you in: {problem.message}"
            raise Unauthorized(kept.ended) from None
        except (ServiceUnavailable, TooManyRequests):
            pass  # it does not answer: its last answer holds until the login ends by itself
        return kept.may

    def leave(self, text: str) -> None:
        self._kept.pop(_digest(_key(text)), None)


def _key(text: str) -> bytes:
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (NotBase64, ValueError):
        return b""


def _unlock(key: bytes, locked: bytes) -> str:
    try:
        return AESGCM(key).decrypt(locked[:_NONCE], locked[_NONCE:], None).decode()
    except (InvalidTag, ValueError):
        raise Unauthorized("this login has ended") from None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
