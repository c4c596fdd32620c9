"""Background duties of the API server: what clients expect to happen by itself, done through the Client."""

from phalanx.local.duties.bootstrap import bootstrap
from phalanx.local.duties.duties import Duties
from phalanx.local.duties.own_service import Place

__all__ = ["Duties", "Place", "bootstrap"]
