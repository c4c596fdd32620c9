"""Find the user of a token: the administrator, a user of the file of users, or a service account.

Tokens of service accounts are signed by this server. They are valid until they expire, while their account exists, and
the pod or secret that they are bound to. They identify the user; what the user may do is decided by `rights`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from phalanx.base.clock import Clock
from phalanx.local.api.request import User
from phalanx.local.api.signing import ALGORITHM, SigningKey
from phalanx.local.api.users import Users
from phalanx.local.api.view import encode
from phalanx.local.store.contract import StoreProtocol

AUDIENCE = "https://kubernetes.default.svc"
DISCOVERY_PATH = "/.well-known/openid-configuration"
KEYS_PATH = "/openid/v1/jwks"
_ADMIN = User()
_LONGEST = 8192  # bytes; longer tokens are refused before any computation


class _Account(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Bound(msgspec.Struct):
    namespace: str = ""
    serviceaccount: _Account = msgspec.field(default_factory=_Account)
    pod: _Account | None = None
    secret: _Account | None = None
    node: _Account | None = None

    def held_by(self) -> list[tuple[str, str, _Account]]:
        """Return the objects that the token is bound to: (resource, namespace, object)."""
        found = [("serviceaccounts", self.namespace, self.serviceaccount)]
        for resource, namespace, bound in (
            ("pods", self.namespace, self.pod),
            ("secrets", self.namespace, self.secret),
            ("nodes", "", self.node),
        ):
            if bound is not None:
                found.append((resource, namespace, bound))
        return found


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
    users: Users = field(default_factory=Users)
    _admin: bytes = field(default=b"", repr=False)
    key: SigningKey = field(default_factory=lambda: SigningKey(secrets.token_bytes(32)), repr=False)

    def accept(self, admin: str) -> None:
        """Accept this administrator's token.

        Tokens of service accounts are signed with a key derived from it: they are valid as long as it is.
        """
        self._admin = admin.encode()
        self.key = SigningKey(hmac.digest(self._admin, b"phalanx service account tokens", hashlib.sha256))

    def issue(
        self,
        namespace: str,
        name: str,
        uid: str,
        audiences: list[str],
        seconds: int,
        bound: dict[str, dict[str, str]] | None = None,
    ) -> str:
        """Issue a token of a service account.

        bound: the pod, secret or node that the token shall not outlive, `{"pod": {"name": …, "uid": …}}`.
        """
        now = int(self.clock.now())
        claims: dict[str, Any] = {
            "iss": AUDIENCE,
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "aud": audiences,
            "iat": now,
            "nbf": now,
            "exp": now + seconds,
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}, **(bound or {})},
        }
        head = {"alg": ALGORITHM, "kid": self.key.jwk["kid"], "typ": "JWT"}
        text = f"{_text(encode(head))}.{_text(encode(claims))}"
        return f"{text}.{_text(self.key.sign(text.encode()))}"

    def discovery(self, address: str) -> bytes:
        """Return the OpenID configuration: where others find the key that verifies tokens of service accounts."""
        return encode({
            "issuer": AUDIENCE,
            "jwks_uri": f"https://{address}{KEYS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        })  # fmt: skip

    def keys(self) -> bytes:
        """Return the JSON Web Key Set of this server."""
        return encode({"keys": [self.key.jwk]})

    def user(self, token: bytes) -> User | None:
        """Return the user of a token; None if it is not ours, not for this server, or no longer valid."""
        found = self.reviewed(token, ())
        return found[0] if found is not None else None

    def reviewed(self, token: bytes, audiences: Sequence[str]) -> tuple[User, list[str]] | None:
        """Return the user of a token and those of these audiences that it is valid for; None if not valid.

        Without audiences: this server.
        """
        if not token or len(token) > _LONGEST:
            return None
        wanted = list(audiences) or [AUDIENCE]
        if self._admin and hmac.compare_digest(token, self._admin):
            return (_ADMIN, [AUDIENCE]) if AUDIENCE in wanted else None
        text, _, signature = token.rpartition(b".")
        if not self.key.verify(text, _signature(signature)):
            known = self.users.user(token)
            return (known, [AUDIENCE]) if known is not None and AUDIENCE in wanted else None
        try:
            claims = _claims(_bytes(text.partition(b".")[2]))
        except (msgspec.DecodeError, binascii.Error):
            return None
        account, namespace = claims.bound.serviceaccount, claims.bound.namespace
        shared = [audience for audience in wanted if audience in claims.aud]
        if claims.exp <= self.clock.now() or not shared:
            return None
        for resource, home, held in claims.bound.held_by():
            entry = self.store.get((resource, home, held.name))
            if entry is None or _object(entry.value).metadata.uid != held.uid:
                return None  # it is gone; a new object of its name is another identity
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        extra: dict[str, tuple[str, ...]] = {}
        if claims.bound.pod is not None:
            extra["authentication.kubernetes.io/pod-name"] = (claims.bound.pod.name,)
            extra["authentication.kubernetes.io/pod-uid"] = (claims.bound.pod.uid,)
        name = f"system:serviceaccount:{namespace}:{account.name}"
        return User(name, account.uid, groups, extra), shared


def _signature(text: bytes) -> bytes:
    """Return the bytes of a signature; b"" where the text is none."""
    try:
        return _bytes(text)
    except (binascii.Error, ValueError):
        return b""


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: bytes) -> bytes:
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))
