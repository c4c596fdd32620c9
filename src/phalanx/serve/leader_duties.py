"""What a scheduler does besides deciding, while it leads: ProvisioningRequests, and admission checks of Kueue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from phalanx.base.tasks import end, kept

Duty = tuple[str, Callable[[], Coroutine[Any, Any, None]]]  # name for logs, and what runs without end


async def with_duties(decide: Callable[[], Coroutine[Any, Any, None]], duties: Sequence[Duty]) -> None:
    """Run `decide` to its end, and the duties as long as that."""
    others = [asyncio.create_task(kept(name, run), name=name) for name, run in duties]
    try:
        await decide()
    finally:
        await end(others)
