"""Names and uids. Randomness comes from a generator that is passed in, so that simulations repeat exactly."""

from __future__ import annotations

import random

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
