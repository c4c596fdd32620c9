"""Devices of resource claims on the dashboard, in a real browser on a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.browser import Up, accessible, chromium, shot, until, watched_page

pytestmark = pytest.mark.timeout(240)
DEVICES = "gpu.example.com:8,nvlink=4"
GPU = "deviceclass.resource.kubernetes.io/gpu"


def template(name: str, count: int) -> dict[str, Any]:
    request = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "count": count}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def job(name: str, pods: int, claims: str) -> dict[str, Any]:
    spec = {
        "restartPolicy": "Never",
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": claims}],
        "containers": [{"name": "main", "image": "example:1", "resources": {"claims": [{"name": "gpus"}]}}],
    }
    meta = {"annotations": {"simulation.phalanx.dev/run-seconds": "3600"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "scheduling": {"schedulingPolicy": {"gang": {}}},
            "template": {"metadata": meta, "spec": spec},
        },
    }


def test_devices_in_a_browser(tmp_path: Path) -> None:
    up = Up(tmp_path, "--nodes", "4", "--topology", "racks=2", "--devices", DEVICES)
    link = up.start()
    try:
        with chromium(tmp_path) as context:
            page = watched_page(context)
            page.goto(link)
            page.locator("#state[data-state=live]").wait_for()
            for body in (template("two", 2), template("eight", 8), job("linked", 2, "two")):
                up.kube.create(body)
            until(page, "(c) => [...c.nodes.values()].reduce((n, each) => n + each.used[0], 0) === 4", "four in use")
            assert page.evaluate("phalanx.cluster.resources[0]") == GPU
            assert page.evaluate("[...phalanx.cluster.nodes.values()].map((n) => n.alloc[0])") == [8, 8, 8, 8]
            page.locator("#sums").get_by_text("4 of 32 gpu devices").wait_for()
            up.kube.create(job("big", 5, "eight"))
            until(page, "(c) => c.queue.total === 1", "nothing waits")
            sees_the_devices_of_a_node(page)
            sees_what_is_free(page, up)
            taints_a_device(page, up)
            assert page.problems == []
    finally:
        up.stop()


def sees_the_devices_of_a_node(page: Any) -> None:
    used = "[...phalanx.cluster.nodes.values()].find((n) => n.used[0]).name"
    name = page.evaluate(used)
    page.evaluate(f"location.hash = '#/node/' + {used}")
    page.locator("#view h2", has_text=name).wait_for()
    page.locator("#view caption", has_text=f"gpu.example.com, pool {name}").wait_for()
    assert page.locator("tr[data-device]").count() == 8
    first = page.locator("tr[data-device=gpu-0]")
    assert first.get_attribute("data-state") == "in use"
    first.locator("td", has_text="linked-").locator("a", has_text="linked-").wait_for()  # its claim, and its pod
    first.get_by_text("nvlink 0").wait_for()
    free = page.locator("tr[data-device][data-state=free]").count()
    page.locator("#view h3", has_text=f"8 devices, {free} free").wait_for()
    accessible(page, "devices of a node")
    shot(page, "devices-node")
    first.locator("a").first.click()
    page.locator(".object .facts").get_by_text(name).wait_for()


def sees_what_is_free(page: Any, up: Up) -> None:
    key = page.evaluate("phalanx.cluster.queue.roots[0].key")
    page.evaluate(f"location.hash = '#/why/{key}'")
    page.locator(".verdict", has_text="short of devices").wait_for()
    page.locator(".hints li", has_text="needs 8 devices").wait_for()
    shown = [row.inner_text().split() for row in page.locator(".free-devices tbody tr").all()]
    command = [
        sys.executable,
        "-m",
        "phalanx",
        "top",
        "-o",
        "json",
        "--kubeconfig",
        str(up.directory / "data" / "kubeconfig"),
    ]
    top = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["devices"]
    fields = ("devices", "inUse", "tainted", "free", "mostOnNode")
    assert shown == [[each["deviceClass"], *each["path"], *(str(each[name]) for name in fields)] for each in top]
    until(page, "(c, map) => phalanx.room.inputs[0].value === '8'", "the room is not of pods with eight devices")
    accessible(page, "devices that a gang asks for")
    shot(page, "devices-why")
    page.evaluate(f"location.hash = '#/group/{key}'")
    page.locator(".tree li.chosen .free-devices tbody tr").nth(1).wait_for()
    page.evaluate(f"location.hash = '#/why/{key}'")
    page.get_by_role("button", name="Try it in what-if").click()
    card = page.locator(".outlook .card[data-fits='0']")  # asked with its claims, so it finds no room there, either
    card.get_by_text("there is room for 3 (short of devices)").wait_for()
    card.locator(".hints li", has_text="needs 8 devices").wait_for()


def taints_a_device(page: Any, up: Up) -> None:
    taint = {"key": "example.com/broken", "effect": "NoSchedule"}
    selector = {"driver": "gpu.example.com", "pool": "node-00003", "device": "gpu-7"}
    up.kube.ask(
        "POST",
        "/apis/resource.k8s.io/v1/devicetaintrules",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceTaintRule",
            "metadata": {"name": "broken"},
            "spec": {"deviceSelector": selector, "taint": taint},
        },
    )
    until(page, "(c) => c.nodes.get('node-00003').alloc[0] === 7", "the tainted device is still room")
    page.evaluate("location.hash = '#/node/node-00003'")
    page.locator("tr[data-device=gpu-7][data-state=tainted]", has_text="example.com/broken:NoSchedule").wait_for()
