"""Who a token speaks for: the administrator, or a service account.

Tokens of service accounts are signed by this server, good until they expire and only while their account exists. They
say who is asking. The local cluster has no authorization: whoever is let in may do everything, and a service
account's token is as good as the administrator's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phalanx.base.clock import Clock
from phalanx.local.api.request import User
from phalanx.local.api.view import encode
from phalanx.local.store.contract import StoreProtocol

AUDIENCE = "https://kubernetes.default.svc"
_HEAD = {"alg": "HS256", "typ": "JWT"}
_ADMIN = User()
_LONGEST = 8192  # bytes; nobody makes us compute over more


class _Account(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Bound(msgspec.Struct):
    namespace: str = ""
    serviceaccount: _Account = msgspec.field(default_factory=_Account)


class _Claims(msgspec.Struct, rename={"bound": "kubernetes.io"}):
    exp: int
    aud: list[str] = []
    bound: _Bound = msgspec.field(default_factory=_Bound)


class _Meta(msgspec.Struct):
    uid: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta


_claims = msgspec.json.Decoder(_Claims).decode
_object = msgspec.json.Decoder(_Object).decode


@dataclass(slots=True)
class Tokens:
    store: StoreProtocol
    clock: Clock
    _admin: bytes = field(default=b"", repr=False)
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def accept(self, admin: str) -> None:
        """The administrator's token. Service accounts' are signed with a key made of it: they live as long."""
        self._admin = admin.encode()
        self._key = hmac.digest(self._admin, b"phalanx service account tokens", hashlib.sha256)

    def issue(self, namespace: str, name: str, uid: str, audiences: list[str], seconds: int) -> str:
        now = int(self.clock.now())
        claims: dict[str, Any] = {
            "iss": AUDIENCE,
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "aud": audiences,
            "iat": now,
            "nbf": now,
            "exp": now + seconds,
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}},
        }
        text = f"{_text(encode(_HEAD))}.{_text(encode(claims))}"
        return f"{text}.{_text(self._sign(text.encode()))}"

    def user(self, token: bytes) -> User | None:
        """Who the token speaks for; None when it is not ours, or no longer good."""
        if len(token) > _LONGEST:
            return None
        if self._admin and hmac.compare_digest(token, self._admin):
            return _ADMIN
        text, _, signature = token.rpartition(b".")
        if not hmac.compare_digest(signature, _text(self._sign(text)).encode()):
            return None
        try:
            claims = _claims(_bytes(text.partition(b".")[2]))
        except (msgspec.DecodeError, binascii.Error):
            return None
        account, namespace = claims.bound.serviceaccount, claims.bound.namespace
        entry = self.store.get(("serviceaccounts", namespace, account.name))
        if claims.exp <= self.clock.now() or AUDIENCE not in claims.aud:
            return None
        if entry is None or _object(entry.value).metadata.uid != account.uid:
            return None  # the account is gone; another of its name is somebody else
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return User(f"system:serviceaccount:{namespace}:{account.name}", account.uid, groups)

    def _sign(self, text: bytes) -> bytes:
        return hmac.digest(self._key, text, hashlib.sha256)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
