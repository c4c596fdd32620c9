"""Admit pods of LeaderWorkerSets: default them like upstream's webhook, and link them to their group.

The StatefulSet controller calls this for every pod. A leader gets the groups requested now, its workers those of the
leader, so that a replica is never partly in a group. Raises Conflict while the group does not exist; the pod is
retried.
"""

from __future__ import annotations

from phalanx.base import resources as r
from phalanx.base.errors import Conflict
from phalanx.controllers.group_apis import provider_of
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Link
from phalanx.controllers.runtime.controller import Cache, Json
from phalanx.controllers.runtime.groups import Groups, has_group
from phalanx.controllers.runtime.ownership import controller_of, deleting
from phalanx.controllers.runtime.pods import index_by_group
from phalanx.controllers.runtime.revisions import Revisions
from phalanx.controllers.workloads.leaderworkerset import grouping
from phalanx.controllers.workloads.leaderworkerset.revision import at_revision
from phalanx.controllers.workloads.leaderworkerset.rules import outdated
from phalanx.model.annotation_values import MAX_INT32, BadValue, whole_number
from phalanx.model.leaderworkerset import names as n
from phalanx.model.leaderworkerset.pods import complete_pod, is_grouped, is_leader, is_ours, mark_grouped


def grouped_now(lws: Json, groups: Groups | None) -> bool:
    """Return True if new replicas get groups. Raises Refused."""
    return grouping.asked(lws) and (groups is not None or provider_of(lws).name != grouping.NATIVE)


class PodAdmission:
    def __init__(self, owners: Cache, pods: Cache, revisions: Revisions, groups: Groups | None) -> None:
        self._owners, self._pods, self._revisions, self._groups = owners, pods, revisions, groups
        pods.index("group", index_by_group)

    async def admit(self, pod: Json, owner: Json) -> None:
        """Default a pod of a LeaderWorkerSet; raises Conflict while its group does not exist."""
        if not is_ours(pod):
            return
        namespace = owner["metadata"]["namespace"]
        lws = self._owners.get(namespace, n.label(pod, n.NAME))
        try:
            if is_leader(pod):
                if lws is None and (controller_of(owner) or {}).get("kind") == r.LEADER_WORKER_SETS.kind:
                    raise Conflict(f"LeaderWorkerSet {n.label(pod, n.NAME)} is not known yet, or gone")
                grouped = lws is not None and grouped_now(lws, self._groups)
            else:
                grouped = is_grouped(self._leader_of(owner))
            mark_grouped(pod, grouped)
            complete_pod(pod, namespace)
            if grouped and lws is not None:
                self._link(pod, namespace, lws)
        except (GroupingRefused, BadValue) as refusal:
            raise Conflict(f"no group for this pod: {refusal}") from refusal

    def _link(self, pod: Json, namespace: str, lws: Json) -> None:
        revision, index = n.label(pod, n.REVISION), whole_number(n.label(pod, n.GROUP_INDEX), 0, MAX_INT32)
        found = next((rev for rev in self._revisions.of(lws) if n.label(rev, n.REVISION) == revision), None)
        then = at_revision(lws, found) if found is not None else lws
        provider = provider_of(lws)
        if provider.name != grouping.NATIVE:
            part = "leader" if is_leader(pod) else "worker"
            provider.inject_pod_group_metadata(pod, grouping.replica_of(then, index, revision, {}), part)
            return
        if not is_leader(pod) and self._join_kept(pod, namespace, n.group_name(lws, index, revision)):
            return
        related = self._groups.related(lws) if self._groups is not None else ()
        wanted = grouping.grouping(lws, [(index, revision, then)], related)
        link = next((wanted.links[part] for part in grouping.part_of(pod) if part in wanted.links), None)
        if link is None:
            return
        if is_leader(pod) and outdated(wanted, self._known(wanted), [pod]):
            # A recreated replica uses the current policy: its group is replaced before its leader is created.
            raise Conflict(
                f"the group of replica {n.label(pod, n.GROUP_INDEX)} has earlier rules and is being replaced"
            )
        if link.pod_group and not self._has_group(namespace, link.pod_group, staying=is_leader(pod)):
            raise Conflict(f"PodGroup {link.pod_group} does not exist yet")
        link.put_on(pod["spec"])

    def _known(self, wanted: Grouping) -> list[Json]:
        found = [self._groups.known(obj) for obj in wanted.objects] if self._groups is not None else []
        return [obj for obj in found if obj is not None]

    def _join_kept(self, pod: Json, namespace: str, name: str) -> bool:
        """Link a worker to the groups its replica has, including groups of an earlier policy."""
        for candidate in (f"{name}-{n.label(pod, n.SUBGROUP_INDEX) or 'leader'}", name):
            if self._has_group(namespace, candidate, staying=False):
                Link(pod_group=candidate).put_on(pod["spec"])
                return True
        return False

    def _leader_of(self, workers: Json) -> Json:
        """Return the leader of a worker. Workers of a terminating leader are not created."""
        reference = controller_of(workers) or {}
        leader = self._pods.get(workers["metadata"]["namespace"], str(reference.get("name")))
        if leader is None or deleting(leader) or leader["metadata"]["uid"] != reference.get("uid"):
            raise Conflict(f"the leader of StatefulSet {workers['metadata']['name']} is gone")
        return leader

    def _has_group(self, namespace: str, name: str, *, staying: bool) -> bool:
        return self._groups is not None and has_group(self._groups, self._pods, namespace, name, staying=staying)
