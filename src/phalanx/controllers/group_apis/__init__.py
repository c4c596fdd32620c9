"""Support the gang APIs of other schedulers (KEP-407): the objects they need, and how a pod names its group."""

from phalanx.controllers.group_apis.contract import (
    Replica,
    ReplicaPart,
    SchedulerProvider,
    create_pod_group_if_not_exists,
)
from phalanx.controllers.group_apis.registry import PROVIDER, provider_of

__all__ = ["PROVIDER", "Replica", "ReplicaPart", "SchedulerProvider", "create_pod_group_if_not_exists", "provider_of"]
