"""`phalanx dashboard`: a fresh login link to the dashboard of a running local cluster."""

from __future__ import annotations

import click
import msgspec

from phalanx.base.errors import ApiProblem, ConfigProblem
from phalanx.cli.options import asked_cluster
from phalanx.cli.output import notify, output_option
from phalanx.cli.scheduler_client import connection_of, run
from phalanx.kube.client import HttpClient
from phalanx.web.dashboard import LINK


@click.command(short_help="Print a link that opens the dashboard.")
@asked_cluster
@output_option()
def dashboard(kubeconfig: str, context: str, output: str) -> int:
    """Print a link that opens the dashboard of a local cluster (`phalanx up`). It logs in one browser, once.

    A scheduler in a real cluster has its dashboard at /dashboard/ of its health address; log in there with a token.

    \b
    Examples:
      phalanx dashboard --kubeconfig data/kubeconfig
      xdg-open "$(phalanx dashboard)"
    """
    return run(_link(kubeconfig, context, output))


async def _link(kubeconfig: str, context: str, output: str) -> int:
    async with HttpClient(connection_of(kubeconfig, context), user_agent="phalanx-cli") as client:
        try:
            found = await client.request("GET", LINK)
        except ApiProblem as problem:
            if problem.http_code not in (403, 404):
                raise
            text = "this API server has no dashboard: it was started with --dashboard off, or is not `phalanx up`"
            raise ConfigProblem("dashboard", text) from None
    url = msgspec.json.decode(found)["url"]
    notify({"url": url}, url, output)
    return 0
