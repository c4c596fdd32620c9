"""Create a provider's PodGroup once. If the API server does not serve the kind, report it and do not retry."""

from __future__ import annotations

from phalanx.base.client import Client
from phalanx.base.errors import AlreadyExists, NotFound
from phalanx.controllers.group_apis.contract import Replica, SchedulerProvider
from phalanx.controllers.grouping.core import GroupingRefused


async def create_pod_group_if_not_exists(client: Client, provider: SchedulerProvider, replica: Replica) -> None:
    """Create the PodGroup unless it exists. Raises Refused when the kind is not installed."""
    wanted = provider.pod_group(replica)
    if wanted is None or provider.resource is None:
        return
    try:
        await client.get(provider.resource, replica.name, replica.namespace)
        return
    except NotFound:
        pass
    try:
        await client.create(provider.resource, wanted, replica.namespace)
    except AlreadyExists:
        return
    except NotFound as problem:
        kind = f"{provider.resource.kind} of {provider.resource.api_version}"
        raise GroupingRefused(
            f"{kind} is not installed in this cluster; install {provider.name} or choose another provider",
            "APINotAvailable",
        ) from problem
