"""What a browser must not suffer: markup in messages, a lost login, a day with the page open, a large cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.web.login import SESSION_SECONDS
from support.browser import SHOTS, accessible, chromium, shot, until, watched_page
from support.dashboard import Watched, create
from support.large_engine import NODES, PODS, Standing, large_engine
from support.manifests import gang

MOST_BYTES = 30 << 20
FOCUSED = """() => {
    const at = document.activeElement;
    if (at === document.body) return null;
    const shown = at.matches("input[type=radio]") ? at.nextElementSibling : at.matches(".button input") ? at.parentElement : at;
    const style = getComputedStyle(shown);
    return {
        what: at.id || at.name || at.textContent.trim().slice(0, 20),
        order: [...document.querySelectorAll("*")].indexOf(at),
        ring: parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== "none",
    };
}"""  # noqa: E501


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    cluster = Watched(tmp_path_factory.mktemp("small"), nodes=4)
    cluster.start()
    yield cluster
    cluster.stop()


def test_names_and_messages_are_text_and_logins_that_end_say_so(small: Watched, tmp_path: Path) -> None:
    create(small, gang("harmless", 2, gpus=8))
    uid = small.get("/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/harmless")["metadata"]["uid"]
    evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    small.create(
        "/api/v1/namespaces/default/events",
        {
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": "evil"}, "reason": "Evil<b>", "message": evil,
            "type": "Warning", "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
            "involvedObject": {"kind": "PodGroup", "namespace": "default", "name": "harmless", "uid": uid},
        },
    )  # fmt: skip
    with chromium(tmp_path) as context:
        page = watched_page(context)
        page.goto(small.dashboard.url)  # without a link
        dialog = page.locator("#login")
        dialog.get_by_text("not logged in").wait_for()
        accessible(page, "login")
        page.get_by_label("Login link or token").fill("nonsense")
        page.get_by_role("button", name="Log in").click()
        dialog.get_by_text("not of this server").wait_for()
        shot(page, "login")
        link = small.dashboard.link()
        page.get_by_label("Login link or token").fill(link)
        page.get_by_role("button", name="Log in").click()
        page.locator("#state[data-state=live]").wait_for()
        dialog.wait_for(state="hidden")
        page.evaluate("location.hash = '#/group/podgroup/default/harmless'")
        page.locator(".events").get_by_text("onerror").wait_for()  # there to be read, not run
        assert page.locator(".events img, .events script, .events b b").count() == 0
        page.evaluate("location.hash = '#/why/podgroup/default/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E'")
        page.locator("#view .problem").wait_for()
        assert page.locator("#view img").count() == 0
        assert page.title() == "Phalanx"
        page.get_by_role("button", name="Log out").click()
        page.locator("#login").get_by_text("You are logged out").wait_for()
        page.goto(small.dashboard.link())
        page.locator("#state[data-state=live]").wait_for()
        # A login that ends while the page is open is reported at once.
        login = small.dashboard._login
        real, login._now = login._now, lambda: real() + 2 * SESSION_SECONDS
        small.call(small.dashboard._feed._publish({}))
        dialog.get_by_text("expired").wait_for()
        login._now = real
        # The same link again, in a page that is not logged in.
        page.context.clear_cookies()
        page.goto("about:blank")
        page.goto(link)
        page.locator("#login").get_by_text("used before").wait_for()
        assert not page.problems, page.problems


def test_a_scheduler_that_stands_by_does_not_say_that_nothing_waits(small: Watched, tmp_path: Path) -> None:
    with chromium(tmp_path) as context:
        page = watched_page(context)
        page.goto(small.dashboard.link())
        page.locator("#state[data-state=live]").wait_for()
        announced = "phalanx.cluster.apply({now: phalanx.cluster.now, queue: phalanx.cluster.queue, standby: %s})"
        page.evaluate(announced % "'phalanx-7d4'")
        page.locator("#standby", has_text="phalanx-7d4 leads").wait_for()
        assert "port-forward pod/phalanx-7d4" in page.locator("#standby code").inner_text()
        page.locator("#view", has_text="This scheduler stands by").wait_for()
        assert "nothing waits" not in page.locator("body").inner_text().lower()
        accessible(page, "standing by")
        page.evaluate(announced % "null")
        page.locator("#standby").wait_for(state="hidden")
        assert not page.problems, page.problems


def test_the_page_can_be_walked_with_the_tab_key(small: Watched, tmp_path: Path) -> None:
    with chromium(tmp_path) as context:
        page = watched_page(context)
        page.goto(small.dashboard.link())
        page.locator("#state[data-state=live]").wait_for()
        page.evaluate("location.hash = '#/whatif'")
        page.locator(".outlook .card").wait_for()
        page.evaluate("document.activeElement.blur()")
        seen = []
        for _ in range(40):
            page.keyboard.press("Tab")
            found = page.evaluate(FOCUSED)
            if found is None:
                break
            seen.append(found)
        names = [entry["what"] for entry in seen]
        assert names[0] == "skip"
        assert {"theme", "mode", "zoom-in", "map", "manifest", "run"} <= set(names), names
        orders = [entry["order"] for entry in seen]
        assert orders == sorted(orders), names  # in the order of the page
        assert all(entry["ring"] for entry in seen), [entry for entry in seen if not entry["ring"]]


def test_a_page_left_open_for_a_day_does_not_grow(small: Watched, tmp_path: Path) -> None:
    """A day of samples, of gangs that come and go and of nodes that change, as fast as the page takes them."""
    day = """async (rounds) => {
        const {cluster, map} = phalanx;
        const names = [...cluster.nodes.keys()];
        const node = (name, shares) => {
            const n = cluster.nodes.get(name);
            return [name, n.domains, n.alloc, n.used, 0, 0, shares];
        };
        const sample = (t) => ({t, use: {}, fragmentation: {}, roots: 1, pods: 2, oldest: 3, bound: 1, wait: 1, longest: 2, evicted: 0});
        const group = {parent: "", workload: "w", gang: true, min: 1, known: 1, placed: 1, pending: 0, done: 0, topology: "", settings: [], priority: 0, reason: "Scheduled"};
        for (let round = 0; round < rounds; round++) {
            const t = cluster.now + 5, key = `podgroup/default/day-${round}`, last = `podgroup/default/day-${round - 3}`;
            const root = {key, kind: "PodGroup", namespace: "default", name: `day-${round}`, priority: 0, pods: 1, of: 1, place: "gated", attempts: round, asked: t, until: 0, message: `m ${round}`, workload: "w"};
            cluster.apply({now: t, nodes: {[names[round % names.length]]: node(names[round % names.length], {[key]: [1, 0]})},
                groups: {[key]: group, [last]: null}, queue: {roots: [root], total: 1, pods: 1, counts: {}, oldest: 1}, sample: sample(t)});
            if (round % 40 === 0) await new Promise(requestAnimationFrame);
        }
        await new Promise((done) => setTimeout(done, 200));
        gc();
        await new Promise((done) => setTimeout(done, 50));
        gc();
        return {heap: performance.memory.usedJSHeapSize, elements: document.querySelectorAll("*").length,
            groups: cluster.groups.size, samples: cluster.samples.length, hues: cluster.hues.size, fresh: cluster.fresh.size};
    }"""  # noqa: E501
    with chromium(tmp_path) as context:
        page = watched_page(context)
        page.goto(small.dashboard.link())
        page.locator("#state[data-state=live]").wait_for()
        page.get_by_role("tab", name="Groups").click()
        early = page.evaluate(day, 1000)  # enough to fill what is bounded
        late = page.evaluate(day, 17_280 - 1000)  # a sample every five seconds makes a day
        assert late["samples"] == early["samples"] == 720
        assert late["groups"] <= early["groups"] + 3 and late["hues"] <= late["groups"] + 3
        assert late["elements"] <= early["elements"] * 1.5 + 100
        grown = late["heap"] - early["heap"]
        print(f"heap after an hour and a half and after a day: {early['heap']:,} and {late['heap']:,} bytes")
        assert grown < 3 << 20, f"{early['heap']:,} bytes became {late['heap']:,}"
        assert not page.problems, page.problems


def test_the_first_picture_of_a_large_cluster(tmp_path: Path) -> None:
    """5,000 nodes and 50,000 pods: bytes and heap are asserted, the time is measured and written down."""
    engine = large_engine()
    assert engine.columns.count == NODES
    assert sum(len(row) for row in engine.columns.pods) >= PODS
    standing = Standing(engine)
    try:
        with chromium(tmp_path) as context:
            page = watched_page(context)
            page.goto(standing.link())
            page.locator("#state[data-state=live]").wait_for()
            page.goto("about:blank")
            page.goto(standing.url)
            measured = page.evaluate(
                """async () => {
                    for (let turn = 0; turn < 1500 && !performance.getEntriesByName("map").length; turn++) await new Promise((done) => setTimeout(done, 10));
                    const sum = (of) => performance.getEntriesByType("resource").reduce((total, entry) => total + entry[of], 0);
                    return {first: performance.getEntriesByName("map")[0]?.startTime, sent: sum("transferSize"), read: sum("decodedBodySize")};
                }"""  # noqa: E501
            )
            page.locator("#state[data-state=live]").wait_for()
            shot(page, "large")
            page.evaluate("gc()")
            measured["heap"] = page.evaluate("performance.memory.usedJSHeapSize")
            SHOTS.joinpath("large.json").write_text(json.dumps(measured))
            print(f"first picture of {NODES} nodes after {measured['first']:.0f} ms; {measured}")
            assert measured["first"], "there was no picture"
            assert measured["read"] < MOST_BYTES and measured["heap"] < MOST_BYTES, measured
            assert page.evaluate("phalanx.cluster.nodes.size") == NODES
            explains_many_gangs(page)
            assert not page.problems, page.problems
    finally:
        standing.stop()


def explains_many_gangs(page: Any) -> None:
    """Racks as bars, colours by namespace, and a table that is sorted, searched and walked with the keyboard."""
    gangs = page.evaluate("phalanx.cluster.gangs()")
    assert page.evaluate("phalanx.map.bars") and page.evaluate("phalanx.map.mode") == (
        "namespace" if gangs > 30 else "gang"
    )
    page.evaluate("phalanx.map.zoom(6)")
    # Names and devices are drawn by the size that a node has on the screen, not by that in the whole map.
    assert page.evaluate(
        "() => { const {map} = phalanx, [name, cell] = [...map.layout.cells][0];"
        " return map.pixels().layout.cells.get(name).size / cell.size === map.scale && map.scale > 1 }"
    )
    assert not page.evaluate("phalanx.map.bars")
    page.get_by_role("tab", name="Groups").click()
    rows = page.locator("#view .dense tbody tr")
    rows.first.wait_for()
    inside(page, "#view .dense th:last-child", "#view .scroll")  # the reason needs no scrolling
    page.locator("input[name=mode][value=gang]").check()
    page.locator("#legend .more", has_text="more").wait_for()
    inside(page, "#legend .more", "#legend")
    page.get_by_role("tab", name="What-if").click()  # the map is wider there, and the legend longer
    until(page, "() => document.getElementById('legend').clientWidth > 700", "the map did not get wider")
    page.get_by_role("tab", name="Groups").click()
    rows.first.wait_for()
    inside(page, "#legend .more", "#legend")
    priority = page.locator("#view .dense th", has_text="Priority")
    for order, up in (("descending", False), ("ascending", True)):  # said as it is shown: the largest first, at first
        priority.get_by_role("button").click()
        assert priority.get_attribute("aria-sort") == order
        shown = [int(each.split("\t")[3].replace(",", "")) for each in rows.all_inner_texts()]
        assert shown == sorted(shown, reverse=not up)
    page.locator("#view .dense th button", has_text="Name").first.click()
    assert page.locator("#view .dense th").first.get_attribute("aria-sort") == "ascending"
    name = rows.nth(1).get_attribute("data-row").rpartition("/")[2]
    page.keyboard.press("/")  # from the head that was used, as from anywhere outside a field
    page.keyboard.type(name)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator("#view .tree li.chosen").wait_for()


def inside(page: Any, inner: str, outer: str) -> None:
    """Assert that an element is in sight within a box that scrolls."""
    small, large = page.locator(inner).first.bounding_box(), page.locator(outer).first.bounding_box()
    for side, size in (("x", "width"), ("y", "height")):
        assert large[side] - 1 <= small[side], (inner, small, large)
        assert small[side] + small[size] <= large[side] + large[size] + 1, (inner, small, large)
