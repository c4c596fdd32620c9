"""Names and uids. Randomness comes from a generator that is passed in, so that simulations repeat exactly."""

from __future__ import annotations

import random
import uuid

# The alphabet Kubernetes uses for generated names: no vowels, so that no words appear.
SAFE_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def generate_suffix(rng: random.Random, length: int = 5) -> str:
    return "".join(rng.choices(SAFE_ALPHABET, k=length))


def new_uid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))
