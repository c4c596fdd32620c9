"""Create names, uids and short stable hashes for names, in an alphabet without vowels; find a name that was meant.

The random generator is passed in, so that simulations repeat exactly.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import msgspec

# The alphabet Kubernetes uses for generated names: no vowels, so that no words appear.
SAFE_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def generate_suffix(rng: random.Random, length: int = 5) -> str:
    return "".join(rng.choices(SAFE_ALPHABET, k=length))


_FREE = ~(0xF << 76 | 0x3 << 62)  # bits of a version 4 UUID that are random
_FIXED = 0x4 << 76 | 0x2 << 62  # its version and variant


def new_uid(rng: random.Random) -> str:
    """Make a version 4 UUID.

    It is not made by `uuid`, which takes several times as long, and every create needs one.
    """
    text = f"{rng.getrandbits(128) & _FREE | _FIXED:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


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


def meant(name: str, known: Collection[str]) -> str:
    """Return " (did you mean …?)" with the known name that begins with this one or is most like it, or ""."""
    from difflib import get_close_matches

    near = [other for other in sorted(known) if other.startswith(name)] or get_close_matches(
        name, known, n=1, cutoff=0.7
    )
    return f" (did you mean {near[0]}?)" if near else ""
