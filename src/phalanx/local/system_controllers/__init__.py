"""Controllers that run with the local API server: garbage collection, namespaces, bootstrap objects, protection."""

from phalanx.local.system_controllers.bootstrap import bootstrap
from phalanx.local.system_controllers.own_service import ServiceAddress
from phalanx.local.system_controllers.system_controllers import SystemControllers

__all__ = ["ServiceAddress", "SystemControllers", "bootstrap"]
