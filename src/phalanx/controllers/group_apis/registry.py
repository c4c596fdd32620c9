"""Which scheduler a workload's groups are written for: an annotation of the workload, native unless given."""

from __future__ import annotations

from typing import Any

from phalanx.controllers.group_apis.contract import SchedulerProvider
from phalanx.controllers.group_apis.coscheduling import Coscheduling
from phalanx.controllers.group_apis.native import Native
from phalanx.controllers.group_apis.volcano import Volcano
from phalanx.controllers.group_apis.yunikorn import YuniKorn
from phalanx.controllers.grouping.core import GroupingRefused

PROVIDER = "scheduling.phalanx.dev/provider"
PROVIDERS: dict[str, SchedulerProvider] = {
    provider.name: provider for provider in (Native(), Volcano(), Coscheduling(), YuniKorn())
}


def provider_of(workload: dict[str, Any]) -> SchedulerProvider:
    """Return the provider of a workload. Raises Refused for an unknown name."""
    name = str((workload["metadata"].get("annotations") or {}).get(PROVIDER) or "native")
    if name not in PROVIDERS:
        raise GroupingRefused(f"annotation {PROVIDER}: {name!r} is not one of {', '.join(sorted(PROVIDERS))}")
    return PROVIDERS[name]
