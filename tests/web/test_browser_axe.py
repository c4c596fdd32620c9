"""axe-core on every view in both themes. It comes with the linters (tools/javascript); without it the test skips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phalanx.serve.demo import workloads
from support.browser import ACCESSIBILITY, Up, chromium, until, watched_page

pytestmark = pytest.mark.timeout(300)
AXE = Path(__file__).parents[2] / "tools/javascript/node_modules/axe-core/axe.min.js"
# WCAG 2.2 A and AA, what axe calls best practice, and visible labels that are not part of the name.
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "rules": {"label-content-name-mismatch": {"enabled": True}},
}


def reports(page: Any) -> list[str]:
    found = page.evaluate("(rules) => axe.run(document, rules)", RULES)
    return [
        f"{each['impact']} {each['id']}: {node['target']} {node['html'][:160]} {node['failureSummary'][:200]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def views(page: Any) -> list[tuple[str, str]]:
    root = page.evaluate("phalanx.cluster.queue.roots[0].key")
    runs = page.evaluate("[...phalanx.cluster.groups].find(([, g]) => g.placed >= g.min)[0]")
    pod = page.evaluate(f"phalanx.ask.members('{runs}').then((found) => found.members[0].name)")
    return [
        ("queue", ""), ("groups", ""), (f"group/{runs}", ".tree table"), (f"group/{root}", ".tree table"),
        (f"why/{root}", ".why-card"), (f"why/{runs}", ".why-card"), ("use", ".use table"), ("whatif", ".outlook .card"),
        (f"plan/{root}", ".verdict"), ("time", ".plot"), ("node/node-00000", "#view table"),
        (f"object/pod/default/{pod}", ".yaml"), ("object/node/node-00000", ".yaml"), ("map", "#map"),
    ]  # fmt: skip


PLANT = """() => {
  const button = document.createElement("button");
  button.textContent = "Close it";
  button.setAttribute("aria-label", "Open it");
  button.className = "planted";
  button.style.cssText = "color: #777; background: #888";
  document.getElementById("view").prepend(button);
}"""


def finds_planted_faults(page: Any) -> None:
    """axe, and the script that stands in for it where it is not installed, see what is wrong."""
    page.evaluate(PLANT)
    seen = " ".join(reports(page))
    assert "label-content-name-mismatch" in seen and "color-contrast" in seen
    ours = " ".join(page.evaluate(ACCESSIBILITY))
    assert "reads “Close it” and is called “Open it”" in ours and "contrast" in ours
    page.locator(".planted").evaluate("(button) => button.remove()")


def test_axe_reports_nothing(tmp_path: Path) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: `make lint` installs it where node and npm are")
    up = Up(tmp_path, "--nodes", "32", "--topology", "blocks=2,racks=4")
    link = up.start()
    try:
        with chromium(tmp_path) as context:
            page = watched_page(context)
            page.goto(link)
            page.locator("#state[data-state=live]").wait_for()
            *others, evaluation = [body for _, body in workloads()]
            for body in others:
                up.kube.create(body)
            until(page, "(c) => [...c.groups.values()].filter((g) => g.placed >= g.min).length >= 3", "no gang runs")
            up.kube.create(evaluation)
            until(page, "(c) => c.queue.roots.some((root) => root.attempts)", "no gang waits")
            page.evaluate(AXE.read_text())  # not as a script of the page: its policy allows none but its own
            found: list[str] = []
            for theme in ("dark", "light"):
                page.emulate_media(color_scheme=theme)
                for width in (1360, 375):
                    page.set_viewport_size({"width": width, "height": 820})
                    for view, shown in views(page):
                        page.evaluate(f"location.hash = '#/{view}'")
                        if shown:
                            page.locator(shown).first.wait_for()
                        found += [f"{theme} {width} {view}: {line}" for line in reports(page)]
            page.set_viewport_size({"width": 1360, "height": 820})
            page.locator("#guide-open").click()
            found += [f"the guide: {line}" for line in reports(page)]
            finds_planted_faults(page)
            page.locator("#logout").click()
            page.locator("dialog[open]").wait_for()
            found += [f"the login: {line}" for line in reports(page)]
            assert found == []
    finally:
        up.stop()
