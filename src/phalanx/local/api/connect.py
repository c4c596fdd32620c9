"""Connections into a pod (exec, attach, port-forward, proxy): admission is asked as elsewhere, then they are refused.

Nothing runs in a simulated pod; missing rights and refusals of webhooks are reported first.
"""

from __future__ import annotations

from typing import NoReturn
from urllib.parse import parse_qsl

from phalanx.base.errors import BadRequest
from phalanx.local.api.change import Changes
from phalanx.local.api.problems import not_found
from phalanx.local.api.request import Request
from phalanx.local.api.route import CONNECTIONS
from phalanx.local.api.rule_matching import Admitted
from phalanx.model.kinds import Json

_FLAGS = ("stdin", "stdout", "stderr", "tty")


async def connect(request: Request, changes: Changes) -> NoReturn:
    """Refuse a connection to a simulated pod: always raises ApiProblem.

    The body of the request is its query: keys may be repeated in it.
    """
    own = ("", "v1", CONNECTIONS[request.subresource])
    if changes.storing.beyond and changes.webhooks.active:
        about = Admitted(request, "CONNECT", _options(own[2], request.body), None, False, own)
        await changes.webhooks.refuse_or_pass(about)
    if changes.latest(request) is None:
        raise not_found(request.kind, request.name)
    what = f'pod "{request.name}" is simulated: nothing runs in its containers'
    raise BadRequest(f"{what}, so there is no {request.subresource}")


def _options(kind: str, query: bytes) -> Json:
    options: Json = {"kind": kind, "apiVersion": "v1"}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name in _FLAGS:
            options[name] = value.lower() in ("true", "1")
        elif name == "command":
            options.setdefault("command", []).append(value)
        elif name == "ports":
            options.setdefault("ports", []).extend(int(port) for port in value.split(",") if port.isdecimal())
        else:
            options[name] = value
    return options
