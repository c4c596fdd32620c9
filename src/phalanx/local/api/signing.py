"""The key that signs service account tokens, and its public part for verification: ES256 and JSON Web Key.

The key is derived from a secret, so that nothing else has to be stored: the same secret gives the same key. Verifying
costs about 100 µs, and a client sends the same token with every request: signatures found good are remembered.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cached_property
from typing import TYPE_CHECKING

from phalanx.local.api.view import encode

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

ALGORITHM = "ES256"
_BYTES = 32  # of a coordinate, and of each half of a signature
_MOST_REMEMBERED = 10_000


class SigningKey:
    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._good: dict[bytes, None] = {}  # digests of signed texts whose signature was verified

    @cached_property
    def _key(self) -> EllipticCurvePrivateKey:
        # Imported on first use: most clusters never sign a token.
        from cryptography.hazmat.primitives.asymmetric import ec

        order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551  # of P-256
        number = int.from_bytes(hashlib.sha512(self._secret).digest())
        return ec.derive_private_key(number % (order - 1) + 1, ec.SECP256R1())

    @cached_property
    def jwk(self) -> dict[str, str]:
        """Return the public key as a JSON Web Key; `kid` is its thumbprint (RFC 7638)."""
        numbers = self._key.public_key().public_numbers()
        key = {"crv": "P-256", "kty": "EC", "x": _text(numbers.x), "y": _text(numbers.y)}
        kid = base64.urlsafe_b64encode(hashlib.sha256(encode(key)).digest()).rstrip(b"=").decode()
        return {"use": "sig", "kid": kid, "alg": ALGORITHM, **key}

    def sign(self, text: bytes) -> bytes:
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, utils

        # Deterministic (RFC 6979): a simulation replays to the byte.
        algorithm = ec.ECDSA(hashes.SHA256(), deterministic_signing=True)
        r, s = utils.decode_dss_signature(self._key.sign(text, algorithm))
        return r.to_bytes(_BYTES) + s.to_bytes(_BYTES)

    def verify(self, text: bytes, signature: bytes) -> bool:
        if len(signature) != 2 * _BYTES:
            return False
        digest = hashlib.sha256(text + b"." + signature).digest()
        if digest in self._good:
            return True
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, utils

        encoded = utils.encode_dss_signature(int.from_bytes(signature[:_BYTES]), int.from_bytes(signature[_BYTES:]))
        try:
            self._key.public_key().verify(encoded, text, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        if len(self._good) >= _MOST_REMEMBERED:
            self._good.clear()
        self._good[digest] = None
        return True


def _text(coordinate: int) -> str:
    return base64.urlsafe_b64encode(coordinate.to_bytes(_BYTES)).rstrip(b"=").decode()
