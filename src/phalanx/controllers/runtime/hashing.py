"""Short stable hashes in names, in the alphabet Kubernetes uses so that no words appear."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.base.ids import SAFE_ALPHABET


def fnv1a_32(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def fnv1_32(data: bytes) -> int:
    value = 0x811C9DC5
    for byte in data:
        value = (value * 0x01000193 & 0xFFFFFFFF) ^ byte
    return value


def safe_encode(text: str) -> str:
    return "".join(SAFE_ALPHABET[ord(char) % len(SAFE_ALPHABET)] for char in text)


def hash_of(value: Any, collisions: int = 0) -> str:
    """Hash any JSON value; equal values give equal hashes whatever the order of their keys."""
    data = msgspec.json.encode(value, order="sorted")
    if collisions:
        data += collisions.to_bytes(4, "little")
    return safe_encode(str(fnv1a_32(data)))
