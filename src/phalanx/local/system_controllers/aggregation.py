"""Aggregated ClusterRoles: write the rules of the selected ClusterRoles into the `rules` of the aggregating one.

The authorizer resolves aggregation itself; the written rules are for users and programs that read the role.
"""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.base.client import Client
from phalanx.base.errors import Conflict, NotFound
from phalanx.base.work import WorkQueue
from phalanx.local.system_controllers.bootstrap_roles import CLUSTER_ROLES
from phalanx.local.system_controllers.metadata_feed import MetadataFeed, MetadataItem
from phalanx.model.kinds import Json
from phalanx.model.selectors import from_selector

_KEY = "clusterroles.rbac.authorization.k8s.io"
_ALL = ""  # single queue key: a change may concern any role, so all are checked


class Aggregation:
    def __init__(self, client: Client, feed: MetadataFeed) -> None:
        self._client, self._feed = client, feed
        self._work: WorkQueue[str] = WorkQueue("role aggregation")
        feed.listen(self._on_change)

    async def run(self) -> None:
        await self._feed.synced.wait()
        self._work.add(_ALL)
        await self._work.run(self._aggregate, workers=1)

    def _on_change(self, before: MetadataItem | None, after: MetadataItem | None) -> None:
        item = after if after is not None else before
        if item is not None and item.kind.key == _KEY:
            self._work.add(_ALL)

    async def _aggregate(self, _: str) -> None:
        roles: list[Json] = msgspec.json.decode(await self._client.list(CLUSTER_ROLES))["items"]
        for role in roles:
            selectors = (role.get("aggregationRule") or {}).get("clusterRoleSelectors")
            if not selectors:
                continue
            wanted = _rules(role, roles, [from_selector(selector) for selector in selectors])
            if wanted == (role.get("rules") or []):
                continue
            try:
                await self._client.patch(CLUSTER_ROLES, role["metadata"]["name"], {"rules": wanted})
            except (NotFound, Conflict):
                continue  # changed meanwhile: the watch queues it again


def _rules(role: Json, roles: list[Json], matchers: list[Any]) -> list[Json]:
    """Collect the rules of the roles that `matchers` select, each rule once.

    A selected role that aggregates others counts with its current rules; when those change, this runs again.
    """
    found: list[Json] = []
    for other in roles:
        labels = other["metadata"].get("labels")
        if other is not role and any(matcher.matches(labels) for matcher in matchers):
            found += [rule for rule in other.get("rules") or () if rule not in found]
    return found
