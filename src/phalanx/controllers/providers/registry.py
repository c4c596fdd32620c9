"""Which scheduler a workload's groups are written for: an annotation of the workload, native unless given."""

from __future__ import annotations

from typing import Any

from phalanx.controllers.grouping.core import Refused
from phalanx.controllers.providers.contract import SchedulerProvider
from phalanx.controllers.providers.coscheduling import Coscheduling
from phalanx.controllers.providers.native import Native
from phalanx.controllers.providers.volcano import Volcano
from phalanx.controllers.providers.yunikorn import YuniKorn

PROVIDER = "scheduling.phalanx.dev/provider"
PROVIDERS: dict[str, SchedulerProvider] = {
    provider.name: provider for provider in (Native(), Volcano(), Coscheduling(), YuniKorn())
}


def provider_of(workload: dict[str, Any]) -> SchedulerProvider:
    """Raises Refused for a name nobody knows."""
    name = str((workload["metadata"].get("annotations") or {}).get(PROVIDER) or "native")
    if name not in PROVIDERS:
        raise Refused(f"annotation {PROVIDER}: {name!r} is not one of {', '.join(sorted(PROVIDERS))}")
    return PROVIDERS[name]
