"""PodGroups of other schedulers (coscheduling, Volcano, KAI) as groups of the engine.

A user changes `schedulerName` of the pods and nothing else: the scheduler reads the foreign PodGroup, schedules its
pods as a gang and writes the status in the words of that scheduler. Nothing is created in the cluster.
"""

from phalanx.kube.dialects.contract import Dialect, ForeignGroup, GroupProgress, Translation
from phalanx.kube.dialects.coscheduling import CoschedulingDialect
from phalanx.kube.dialects.kai import KaiDialect
from phalanx.kube.dialects.volcano import VolcanoDialect

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect for dialect in (CoschedulingDialect(), VolcanoDialect(), KaiDialect())
}

__all__ = ["DIALECTS", "Dialect", "ForeignGroup", "GroupProgress", "Translation"]
