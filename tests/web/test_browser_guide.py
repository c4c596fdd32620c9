"""The dashboard's first minute: `phalanx up --demo` opens with a guided story, and following it frees a waiting gang.

Keys alone move through it; each command it shows is typed as shown.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.serve.demo import GUIDE
from support.browser import Up, accessible, chromium, shot, until, watched_page

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    process = Up(tmp_path_factory.mktemp("demo"), "--demo")
    yield process
    process.stop()


def typed(up: Up, command: str) -> str:
    """What a second terminal prints; the first word is found beside this Python, or on PATH."""
    words = shlex.split(command)
    if words[0] == "kubectl" and not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed: the guide's commands need it")
    beside = Path(sys.executable).parent / words[0]
    words[0] = str(beside) if beside.exists() else words[0]
    environment = {**os.environ, "KUBECONFIG": str(up.directory / "data" / "kubeconfig")}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: what-if says that it does not fit as things are
    return done.stdout


def step(page: Any, title: str) -> Any:
    page.locator("#guide .guide-title", has_text=title).wait_for()
    accessible(page, f"the guide at {title!r}")
    return page.locator("#guide .primary")


def test_the_guide_leads_from_a_waiting_gang_to_a_planned_preemption(up: Up, tmp_path: Path) -> None:
    commands = []
    with chromium(tmp_path) as context:
        page = watched_page(context)
        page.goto(up.start())
        next_one = page.locator("#guide").get_by_role("button", name="Next")
        step(page, "All or nothing").click()  # the guide is there by itself
        page.locator(".tree li.chosen", has_text="training").wait_for()
        until(page, "(c, map) => map.members.length === 8", "the ranks are not shown")
        next_one.click()

        step(page, "A gang that waits").click()
        page.locator("li.card", has_text="Needs 24 pods at once; there is room for 20 (short of GPU)").wait_for()
        shot(page, "guide")
        next_one.click()

        # With keys alone: the title has the focus, Tab leads to the button.
        step(page, "Why it waits")
        until(page, "() => document.activeElement.matches('.guide-title')", "the next step has not got the focus")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.locator(".verdict", has_text="Needs 24 pods").wait_for()
        assert page.locator(".pips .out").count() == 4
        assert page.locator(".exact summary").count() == 1  # kube-scheduler's words are there for those who look
        next_one.press("Enter")

        step(page, "What would help").click()
        page.locator(".compare").wait_for()
        assert page.locator(".compare tbody tr").first.locator("td").all_inner_texts() == ["no", "in part"]
        next_one.click()

        step(page, "One command frees it")
        commands.append(page.locator("#guide .command code").inner_text())
        typed(up, commands[-1])
        page.locator(".guide-done", has_text="evaluation got all its 24 places at once").wait_for()
        step(page, "One command frees it").click()
        until(page, "(c, map) => map.chosen?.size === 24", "the gang that was freed is not on the map")
        next_one.click()

        step(page, "before it happens").click()
        page.locator(".card", has_text="Fits after evictions").wait_for()
        page.locator(".card.goes", has_text="24 pods").wait_for()  # the whole gang, not a part of it
        page.locator(".cost").get_by_text("✓ proved").first.wait_for()
        assert page.evaluate("[...phalanx.map.overlay.marks.values()].filter((mark) => mark.goes).length") >= 1
        example = yaml.safe_load_all(page.locator("#manifest").input_value())
        assert list(example) == list(yaml.safe_load_all((ROOT / "examples" / "urgent.yaml").read_text()))
        shot(page, "guide-plan")
        commands.append(page.locator("#guide .command code").inner_text())
        announced = int(re.findall(r"(\d+) pods evicted", typed(up, commands[-1]))[0])
        on_page = page.locator(".cost tr", has_text="pods evicted").locator("td").first.inner_text()
        assert announced == int(on_page)  # the terminal and the page speak of the same plan
        next_one.click()

        step(page, "Apply it")
        commands.append(page.locator("#guide .command code").inner_text())
        typed(up, commands[-1])
        page.locator(".guide-done", has_text="incident has its rack. The evicted gang waits for room again.").wait_for()
        step(page, "Apply it").click()
        until(page, "(c, map) => map.chosen?.size === 8", "the urgent gang is not on the map")
        shot(page, "guide-end")
        assert {*commands} <= {command for _, command in GUIDE}  # the terminal's guide types the same

        # On a phone, then put away for good: a reload does not bring it back, the button does.
        page.set_viewport_size({"width": 375, "height": 760})
        step(page, "Apply it")
        shot(page, "phone-guide")
        page.locator("#guide").get_by_role("button", name="Done", exact=True).click()
        page.locator("#guide").wait_for(state="hidden")
        page.reload()
        page.locator("#state[data-state=live]").wait_for()
        until(page, "(c) => c.groups.size > 0", "no groups")
        assert page.locator("#guide").is_hidden()
        page.locator("#guide-open").press("Enter")
        step(page, "Apply it")
        up.kube.ask("DELETE", "/apis/batch/v1/namespaces/default/jobs/evaluation?propagationPolicy=Background")
        page.locator(".guide-done", has_text=re.compile(r"incident has its rack\.$")).wait_for()  # no gang waits now
        page.get_by_role("button", name="Close the guide").click()
        page.locator("#guide").wait_for(state="hidden")
        assert not page.problems, page.problems
