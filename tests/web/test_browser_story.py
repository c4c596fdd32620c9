"""A browser before a running `phalanx up`: gangs arrive, one waits, why, what-if, a preemption, a restart, a recording.

One story in one test, because every view is about the same cluster; each step is what a person would do and see.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.model.names import without_hash
from phalanx.serve.demo import workloads
from support.browser import Up, accessible, chromium, shot, until, watched_page

RACK = "topology.phalanx.dev/rack"
EXAMPLES = Path(__file__).parents[2] / "examples"
DROP = """(text) => {
    const dataTransfer = new DataTransfer();
    dataTransfer.items.add(new File([text], "dropped.yaml"));
    const dropped = new DragEvent("drop", {dataTransfer, bubbles: true, cancelable: true});
    document.getElementById("manifest").dispatchEvent(dropped);
}"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    process = Up(tmp_path_factory.mktemp("up"), "--nodes", "32", "--topology", "blocks=2,racks=4")
    yield process
    process.stop()


def test_every_view_in_a_browser(up: Up, tmp_path: Path) -> None:
    with chromium(tmp_path) as context:
        page = watched_page(context)
        logs_in(page, up)
        sees_gangs_arrive(page, up)
        opens_a_gang(page)
        reads_an_object(page)
        root = reads_the_queue(page)
        asks_why(page, root)
        reads_why_in_the_group(page, root)
        tries_a_remedy(page, up)
        tries_another_manifest(page, up)
        watches_a_preemption(page, up)
        survives_a_restart(page, up)
        scrubs_a_recording(page, up)
        reads_on_a_phone(page)
        assert not page.problems, page.problems


def live(page: Any) -> None:
    page.locator("#state[data-state=live]").wait_for()


def logs_in(page: Any, up: Up) -> None:
    link = up.start()
    page.goto(link)
    live(page)
    assert "login" not in page.url  # the secret does not stay in the address bar
    page.locator("#sums").get_by_text("32 nodes").wait_for()
    page.get_by_text("Nothing is pending.").wait_for()
    accessible(page, "an empty cluster")


def sees_gangs_arrive(page: Any, up: Up) -> None:
    (_, training), (_, inference), (_, evaluation) = workloads()
    up.kube.create(training)
    up.kube.create(inference)
    held = (
        "(c) => [...c.nodes.values()].filter((n) => Object.keys(n.shares).some((k) => k.includes('/{}'))).length === {}"
    )
    until(page, held.format("training", 8), "the training gang is not on the map")
    until(page, held.format("inference", 4), "the inference gangs are not on the map")
    racks = page.evaluate(
        "[...new Set([...phalanx.cluster.nodes.values()]"
        ".filter((n) => Object.keys(n.shares).some((k) => k.includes('training'))).map((n) => n.domains.at(-1)))]"
    )
    assert len(racks) == 1, racks
    up.kube.create(evaluation)
    page.get_by_role("button", name="Close the guide").click()  # the guide has a test of its own
    up.kube.apply((EXAMPLES / "podgroup-topology.yaml").read_text())
    until(page, "(c) => c.groups.get('podgroup/default/podgroup-topology')?.placed === 3", "the example is not placed")
    page.locator("#legend").get_by_text("podgroup-topology").wait_for()
    # Hovering tells, clicking opens.
    box = page.locator("#map").bounding_box()
    x, y = page.evaluate("phalanx.map.at('node-00000')")
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.locator(".tip").get_by_text("node-00000").wait_for()
    for mode in ("use", "priority", "state", "gang"):
        page.locator(f"input[name=mode][value={mode}]").check()
        page.locator("#legend .key").first.wait_for()
        shot(page, f"map-by-{mode}")
    page.mouse.click(box["x"] + x, box["y"] + y)
    page.locator("#view h2", has_text="node-00000").wait_for()
    page.locator("#view table").get_by_text("podgroup-topology").or_(page.locator("#view table a")).first.wait_for()
    accessible(page, "a node")
    # The same with keys alone.
    page.locator("#map").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    page.locator("#said", has_text="node-00005").wait_for(state="attached")  # the first, its right, the one below
    page.keyboard.press("Enter")
    page.locator("#view h2", has_text="node-00005").wait_for()
    page.keyboard.press("Escape")
    bars = page.locator("#room")
    largest = bars.get_by_text("in rack-")
    assert largest.count() == 1  # the largest gang of whole nodes in one rack
    many = int(largest.inner_text().split()[0])
    largest.click()  # and the scheduler says the same of it
    page.locator(".outlook .card[data-fits='1']", has_text="largest").wait_for()
    until(page, f"(c, map) => map.overlay?.marks.size === {many}", "the largest gang is not marked")


def opens_a_gang(page: Any) -> None:
    page.locator("#legend button", has_text="training").click()
    page.locator(".tree li.chosen", has_text="training").wait_for()
    page.locator(".tree li.chosen table tbody tr").nth(7).wait_for()
    until(page, "(c, map) => map.members.length === 8 && map.chosen?.size === 8", "the gang is not lit")
    assert page.evaluate("phalanx.map.members.map((m) => m.rank)") == list(range(8))
    page.locator(".tree .events").get_by_text("Scheduled").first.wait_for()
    page.locator(".tree .condition", has_text="PodGroupInitiallyScheduled=True").wait_for()
    page.locator(".tree .story li").first.wait_for()  # its story is shown
    accessible(page, "groups")
    page.mouse.move(5, 5)
    shot(page, "groups")


def reads_an_object(page: Any) -> None:
    page.locator(".tree li.chosen table tbody a").first.click()
    page.locator(".object .yaml").get_by_text("schedulerName").wait_for()
    page.locator(".object .command code", has_text="kubectl get pod training-").first.wait_for()
    page.locator(".object .facts").get_by_text("Job training").wait_for()
    accessible(page, "an object")
    page.go_back()
    page.locator(".tree li.chosen").wait_for()


def reads_the_queue(page: Any) -> str:
    page.get_by_role("tab", name="Queue").click()
    row = page.locator("#view li.card", has_text="evaluation")
    row.get_by_text("would help").wait_for()
    assert "24" in row.locator(".why").inner_text()
    row.get_by_text("24 pods", exact=True).wait_for()
    page.locator("#view").get_by_label("Reason").select_option(index=1)
    row.wait_for()
    page.locator("#view").get_by_label("Namespace").select_option("default")
    for name in (
        "eval-1-5c9f7b6d8f-eval-1-pgt-0-7887bf9bd8",
        "eval-5c-eval-pgt-2-7",
        "web-6d4cf56db6",
        "node-affinity",
    ):
        assert page.evaluate("async (text) => (await import('./words.js')).short(text)", name) == without_hash(name)
    accessible(page, "the queue")
    shot(page, "queue")
    return str(row.get_attribute("data-root"))


def asks_why(page: Any, root: str) -> None:
    row = page.locator(f"#view tr[data-row='{root}']")
    row.focus()
    page.keyboard.press("Enter")
    page.locator(".verdict", has_text="minCount").wait_for()
    assert page.evaluate("document.activeElement.id") == "view"  # the keyboard goes on in the answer, and back
    page.keyboard.press("Escape")
    row.wait_for()
    assert page.evaluate("document.activeElement.dataset.row") == root
    page.locator(f"#view li[data-root='{root}'] a").click()
    page.locator(".verdict", has_text="minCount").wait_for()
    page.locator(".funnel").get_by_text("nodes in the cluster").first.wait_for()
    assert page.locator(".pips .out").count() >= 1
    page.locator(".remedy.fits").first.wait_for()
    page.locator(".story li").nth(1).wait_for()  # how it got here is shown, step by step
    accessible(page, "why")
    shot(page, "why")


def reads_why_in_the_group(page: Any, root: str) -> None:
    page.evaluate(f"location.hash = '#/group/{root}'")
    page.locator(".tree .gist", has_text="Needs 24 pods at once").wait_for()  # before the text of the condition
    page.go_back()
    page.locator(".verdict").wait_for()


def tries_a_remedy(page: Any, up: Up) -> None:
    page.locator(".remedy.fits", has_text="minCount").click()
    page.locator(".compare").wait_for()
    cells = page.locator(".compare tbody tr").first.locator("td").all_inner_texts()
    assert cells == ["no", "in part"]  # as it waits, and with the smaller minimum
    until(page, "(c, map) => map.overlay?.marks.size > 0", "nothing is marked on the map")
    accessible(page, "what-if")
    shot(page, "whatif-compare")
    # One that changes the cluster is asked about another cluster.
    page.go_back()
    page.locator(".remedy.fits", has_text="more free nodes").click()
    page.locator(".outlook .card[data-fits='1']", has_text="of them added").wait_for()
    cells = page.locator(".compare tbody tr").first.locator("td").all_inner_texts()
    assert cells == ["no", "yes"]
    count, like = page.locator("#more-nodes").input_value(), page.locator("#more-like").input_value()
    assert int(count) > 0 and like.startswith("node-")
    accessible(page, "what-if of another cluster")
    shot(page, "whatif-cluster")
    page.locator("#more-nodes").fill("1")  # one is too few: said, with the number that is enough as a button
    page.locator("#more-nodes").press("Tab")
    page.locator(".outlook .card[data-fits='0'] .remedy.fits", has_text="more free node").click()
    page.locator(".outlook .card[data-fits='1']", has_text="of them added").wait_for()
    page.locator("#more-like").fill("ghost")
    page.locator("#more-like").press("Tab")
    page.locator(".problem").get_by_text("there is no node 'ghost'").wait_for()
    assert len(up.kube.ask("GET", "/api/v1/nodes")["items"]) == 32  # none was made


def tries_another_manifest(page: Any, up: Up) -> None:
    page.get_by_role("radio", name="Variant A").check()
    page.get_by_label("Example").select_option(label="Job: 8 whole nodes in one rack")
    page.locator(".outlook .card[data-fits='1']").wait_for()
    until(page, "(c, map) => map.overlay?.marks.size === 8", "eight nodes should be marked")
    slider = page.locator(".slider input").first
    slider.focus()
    slider.fill("9")
    page.locator(".outlook .card[data-fits='0']").wait_for()  # a rack has eight nodes
    page.locator(".slider output", has_text="9").wait_for()
    slider.fill("6")
    page.locator(".outlook .card[data-fits='1']").wait_for()
    shot(page, "whatif")
    page.locator(".whatif input[type=file]").set_input_files(str(EXAMPLES / "job-gang.yaml"))
    page.locator(".outlook .card[data-fits='1']", has_text="job-gang").wait_for()
    page.evaluate(DROP, (EXAMPLES / "podgroup-topology.yaml").read_text().replace("podgroup-topology", "dropped"))
    page.locator(".outlook .card[data-fits='1']", has_text="dropped").wait_for()
    page.get_by_label("Manifest").fill("a: [1")
    page.get_by_role("button", name="Try it").click()
    page.locator(".problem").get_by_text("error parsing YAML").wait_for()
    names = [item["metadata"]["name"] for item in up.kube.ask("GET", "/apis/batch/v1/jobs")["items"]]
    assert "training" not in names  # nothing was created


def watches_a_preemption(page: Any, up: Up) -> None:
    up.kube.create(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    )
    group = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "urgent"}}
    spec = {"schedulingPolicy": {"gang": {"minCount": 24}}, "priorityClassName": "high"}
    up.kube.create({**group, "spec": spec})
    container = {"name": "main", "image": "example:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    for number in range(24):
        pod = {"priorityClassName": "high", "schedulingGroup": {"podGroupName": "urgent"}, "containers": [container]}
        gated = {**pod, "schedulingGates": [{"name": "example.com/wait"}]}
        meta = {"name": f"urgent-{number}", "annotations": {"simulation.phalanx.dev/run-seconds": "3600"}}
        up.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": gated})
    until(page, "(c) => c.queue.roots.length === 2", "the urgent gang is not in the queue")
    page.get_by_role("tab", name="Plan").click()
    page.locator(".verdict").wait_for()
    assert page.get_by_label("Make room for").input_value() == page.evaluate("phalanx.cluster.queue.roots[0].key")
    page.get_by_label("Make room for").select_option(label="urgent (default, priority 1000)")
    page.locator(".verdict[data-result=plan]").wait_for()
    page.locator(".card.goes").first.wait_for()
    assert "room" in page.locator(".card.goes").first.inner_text()
    page.locator(".cost").get_by_text("pods evicted").wait_for()
    until(page, "(c, map) => [...map.overlay?.marks.values() ?? []].some((m) => m.goes)", "no victim is marked")
    accessible(page, "plan")
    shot(page, "plan")
    for number in range(24):
        patch = [{"op": "remove", "path": "/spec/schedulingGates"}]
        path = f"/api/v1/namespaces/default/pods/urgent-{number}"
        up.kube.ask("PATCH", path, patch, kind="application/json-patch+json")
    until(page, "(c) => c.groups.get('podgroup/default/urgent')?.placed === 24", "the urgent gang got no place")
    page.evaluate("location.hash = '#/group/podgroup/default/urgent'")
    until(page, "(c, map) => map.chosen?.size === 24", "the urgent gang is not on the map")
    shot(page, "preempted")


def survives_a_restart(page: Any, up: Up) -> None:
    up.freeze()
    page.evaluate("phalanx.feed.silent = 1000")
    page.locator("#state[data-state=away]").wait_for()  # no connection was closed, but nothing is heard
    up.freeze(signal.SIGCONT)
    page.evaluate("phalanx.feed.silent = 20_000")
    live(page)
    up.stop()
    page.locator("#state[data-state=away]").wait_for()
    page.evaluate("location.hash = '#/why/podgroup/default/urgent'")
    page.locator(".problem", has_text="does not answer").wait_for()
    up.start()
    page.locator(".why-card").wait_for()  # asked again
    live(page)  # without another login: the data are the same
    page.locator("#sums").get_by_text("32 nodes").wait_for()


def scrubs_a_recording(page: Any, up: Up) -> None:
    page.get_by_role("tab", name="Time").click()
    page.locator(".plot").nth(5).wait_for()
    accessible(page, "time")
    recording = up.directory / "copy.jsonl"  # of the life since the restart; browsers refuse a file that still grows
    wrong = up.directory / "wrong.jsonl"
    wrong.write_text("{}\n")
    page.locator("#recording").set_input_files(str(wrong))
    page.locator(".problem").get_by_text("not a recording").wait_for()
    up.kube.ask("DELETE", "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/urgent")
    for number in range(24):
        up.kube.ask("DELETE", f"/api/v1/namespaces/default/pods/urgent-{number}")
    until(page, "(c) => ![...c.groups.keys()].some((k) => k.endsWith('/urgent'))", "the urgent gang did not go")
    up.kube.apply((EXAMPLES / "workload-v1alpha1.yaml").read_text())
    until(
        page, "(c) => [...c.groups].some(([k, g]) => k.startsWith('workload/') && g.placed === 2)", "no implicit group"
    )
    until(page, "(c) => !c.queue.roots.some((r) => r.place === 'active')", "the queue does not come to rest")
    shutil.copy(up.recording, recording)
    page.locator("#recording").set_input_files(str(recording))
    page.locator("#banner").get_by_text("recording").wait_for()
    scrub = page.locator("#scrub")
    most = int(scrub.get_attribute("max"))
    assert most > 10
    page.locator(".moment").get_by_text("before anything was decided").wait_for()  # it opens at its first event
    page.locator(".plots").wait_for(state="hidden")  # those are of the live cluster
    assert page.title().startswith("copy.jsonl")
    scrub.fill(str(most))
    pods = "[...phalanx.map.cluster.nodes.values()].reduce((sum, n) => sum + n.used.at(-1), 0)"
    at_the_end = page.evaluate(pods)
    implicit = (
        "workload/default/workload-v1alpha1/pair/a"  # no object of its own, and its colour on the map all the same
    )
    held = f"[...phalanx.map.cluster.nodes.values()].reduce((sum, n) => sum + (n.shares['{implicit}']?.[0] ?? 0), 0)"
    assert page.evaluate(held) == 2
    page.locator("#legend").get_by_text("workload-v1alpha1/pair/a").wait_for()
    scrub.fill("0")
    page.locator(".moment").get_by_text("before anything was decided").wait_for()
    at_the_start = page.evaluate(pods)
    assert at_the_start != at_the_end
    page.locator("#on").click()
    page.locator(".moment").get_by_text(f"1 of {most}").wait_for()
    scrub.fill(str(most))
    assert page.evaluate(pods) == at_the_end  # there and back again
    scrub.fill(str(most // 2))
    waits = page.locator(".played .card", has_text="evaluation")
    waits.get_by_text("Needs 24 pods at once").wait_for()  # why it waited then
    assert page.evaluate("phalanx.map.cluster.use().reduce((sum, row) => sum + row.pending, 0)") >= 24
    page.locator("#view").evaluate("(view) => view.scrollTo(0, 0)")
    shot(page, "time")
    accessible(page, "a recording")
    page.get_by_role("button", name="Back to live").click()
    page.locator("#banner").wait_for(state="hidden")
    page.locator("#recording").set_input_files(str(recording))
    page.locator("#banner").get_by_text("recording").wait_for()
    page.get_by_role("tab", name="Queue").click()  # the queue is of the live cluster: so is the map then
    page.locator("#banner").wait_for(state="hidden")
    until(page, "(c, map) => map.cluster === c", "the map shows the recording beside the live queue")
    page.get_by_role("tab", name="Time").click()
    page.locator("label", has_text="week").click()
    page.locator(".plots").wait_for()


def reads_on_a_phone(page: Any) -> None:
    page.set_viewport_size({"width": 375, "height": 760})
    for tab in ("Map", "Queue", "Groups", "Use", "What-if", "Plan", "Time"):
        page.get_by_role("tab", name=tab).click()
        accessible(page, f"{tab} at 375 pixels")
        shot(page, f"phone-{tab.lower()}")
    page.locator("#theme").click()
    accessible(page, "the other theme at 375 pixels")
    page.set_viewport_size({"width": 1360, "height": 820})
    for tab in ("Queue", "Groups", "Use", "What-if", "Plan", "Time"):
        page.get_by_role("tab", name=tab).click()
        accessible(page, f"{tab} in the other theme")
    shot(page, "light")
