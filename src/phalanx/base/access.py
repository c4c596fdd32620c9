"""The rights of a caller, as the code that answers the caller checks them: with RBAC or with another authorizer."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from phalanx.base.errors import Forbidden


class Right(NamedTuple):
    """One verb on one resource; `namespace` "" means all namespaces, `name` "" means any object."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


class Access(Protocol):
    """The rights of one authenticated caller."""

    @property
    def user(self) -> str: ...

    async def may(self, right: Right) -> bool:
        """Return True if the authorizer allows it. Raises ServiceUnavailable if the authorizer does not answer."""
        ...


def forbidden(user: str, right: Right) -> Forbidden:
    """Return the error of a missing right in the words of kube-apiserver."""
    where = f'in the namespace "{right.namespace}"' if right.namespace else "at the cluster scope"
    title = f"{right.resource}.{right.group}" if right.group else right.resource
    named = f' "{right.name}"' if right.name else ""
    text = f'User "{user}" cannot {right.verb} resource "{right.resource}" in API group "{right.group}" {where}'
    return Forbidden(f"{title}{named} is forbidden: {text}", name=right.name, group=right.group, kind=right.resource)
