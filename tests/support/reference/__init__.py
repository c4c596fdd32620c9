"""The default scheduling profile, written to be read: one node at a time, plain lists, no numpy and no caches.

It is the oracle of the differential tests: for any cluster and pod the engine's masks, reasons and scores must equal
what these functions say. Nothing here may be made faster at the price of being less obvious, and nothing here may share
code with the engine.

`schedule(pod, cluster)` runs a whole attempt; `PLUGINS` is the default profile in order, for tests of one plugin.
"""

from support.reference.cluster import Cluster
from support.reference.plugin import Plugin, Rejection
from support.reference.schedule import PLUGINS, Outcome, fit_error, schedule

__all__ = ["PLUGINS", "Cluster", "Outcome", "Plugin", "Rejection", "fit_error", "schedule"]
