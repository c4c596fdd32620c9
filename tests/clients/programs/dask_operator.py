"""dask-kubernetes: its operator runs a cluster, which is scaled and deleted. Arguments: KUBECONFIG NAMESPACE.

KubeCluster itself is not used: it waits for an answer of the Dask scheduler, and the pods are simulated.
"""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask_kubernetes
import kr8s
import yaml
from dask_kubernetes.operator import make_cluster_spec
from dask_kubernetes.operator._objects import DaskCluster, DaskWorkerGroup


async def install(api: Any) -> None:
    for path in sorted(Path(dask_kubernetes.__file__).parent.glob("operator/deployment/**/crds/*.yaml")):
        for definition in yaml.safe_load_all(path.read_text()):
            found = await kr8s.asyncio.objects.CustomResourceDefinition(definition, api=api)
            if not await found.exists():
                await found.create()


async def until(what: str, check: Callable[[], Any]) -> None:
    for _ in range(240):
        if await check():
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"it never happened: {what}")


async def running(api: Any, namespace: str, component: str) -> int:
    selector = {"dask.org/cluster-name": "sample", "dask.org/component": component}
    found = [pod async for pod in api.get("pods", namespace=namespace, label_selector=selector)]
    return sum(pod.status.get("phase") == "Running" for pod in found)


async def main(kubeconfig: str, namespace: str) -> None:
    api = await kr8s.asyncio.api(kubeconfig=kubeconfig, namespace=namespace)
    await install(api)
    command = [sys.executable, "-m", "kopf", "run", "-m", "dask_kubernetes.operator.controller", "-n", namespace]
    operator = await asyncio.create_subprocess_exec(*command)
    try:
        spec = make_cluster_spec(name="sample", image="example/dask", n_workers=3, resources={"requests": {"cpu": "1"}})
        cluster = await DaskCluster(spec, namespace=namespace, api=api)
        await cluster.create()
        await until("the scheduler runs", lambda: running(api, namespace, "scheduler"))

        async def workers(count: int) -> bool:
            return await running(api, namespace, "worker") == count

        await until("three workers run", lambda: workers(3))
        group = await DaskWorkerGroup.get("sample-default", namespace=namespace, api=api)
        await group.scale(5)
        await until("five workers run", lambda: workers(5))
        await cluster.delete()
        await until("nothing is left", lambda: workers(0))
    finally:
        operator.terminate()
        await operator.wait()


asyncio.run(main(*sys.argv[1:]))
