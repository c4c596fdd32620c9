"""Values that all parts of the API server share. One instance per server; passed, never global."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field

from phalanx.base.clock import Clock, SystemClock
from phalanx.local.api.conversion import Conversions
from phalanx.local.api.rights import Rights
from phalanx.local.api.tokens import Tokens
from phalanx.local.store.contract import StoreProtocol
from phalanx.model.gates import Gates
from phalanx.model.kinds import Registry


@dataclass(slots=True)
class Context:
    store: StoreProtocol
    registry: Registry
    gates: Gates = field(default_factory=Gates)
    clock: Clock = field(default_factory=SystemClock)
    # Names and uids must not repeat but need not be secret: no system call for each.
    rng: random.Random = field(default_factory=lambda: random.Random(secrets.randbits(256)))
    rights: Rights | None = None  # None: every authenticated user may do everything
    tokens: Tokens = field(init=False)
    conversions: Conversions = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = Tokens(self.store, self.clock)
        self.conversions = Conversions(self.store, self.rng)
