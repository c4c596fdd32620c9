"""A simulation as one HTML page without scripts: use, queue by size, waits and promises."""

from __future__ import annotations

import html
from typing import Any

from phalanx.simulate.report import hours, percent, text

WIDTH, HEIGHT, AXIS = 860, 160, 22  # of a chart, and of the times below it
TICKS = 8  # times below a chart, about
COLORS = ("#2b6cb0", "#2f855a", "#b7791f", "#c05621", "#9b2c2c", "#553c9a")

_STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:900px;margin:2rem auto;padding:0 1rem;color:#1a202c}
table{border-collapse:collapse}td,th{padding:.2rem .7rem;text-align:right;border-bottom:1px solid #e2e8f0}
td:first-child,th:first-child{text-align:left}svg{background:#f7fafc;border:1px solid #e2e8f0}
pre{background:#f7fafc;padding:1rem;white-space:pre-wrap}
@media(prefers-color-scheme:dark){body{background:#1a202c;color:#e2e8f0}svg,pre{background:#2d3748}}"""


def page(results: list[tuple[str, dict[str, Any]]], difference: str = "") -> str:
    """Return the page for one simulation, or for several with their names."""
    parts = [
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>phalanx simulate</title><style>{_STYLE}</style>"
    ]
    parts.append("<h1>phalanx simulate</h1>")
    if difference:
        parts.append(f"<h2>Differences</h2><pre>{html.escape(difference)}</pre>")
    for name, result in results:
        parts.append(f"<h2>{html.escape(name)}</h2>")
        parts.append(_use_chart(result) + _queue(result) + _waits(result) + f"<pre>{html.escape(text(result))}</pre>")
    return "\n".join(parts)


def _line(values: list[float], top: float, color: str, label: str) -> str:
    step = WIDTH / max(1, len(values) - 1)
    points = " ".join(f"{i * step:.1f},{HEIGHT - HEIGHT * v / top:.1f}" for i, v in enumerate(values))
    name = html.escape(label)
    return (
        f"<polyline fill='none' stroke='{color}' stroke-width='1.5' points='{points}'><title>{name}</title></polyline>"
    )


def _times(begin: float, end: float) -> str:
    """Draw the hours since the begin below a chart, at round numbers."""
    whole = max((end - begin) / 3600, 1e-9)
    step = next((s for s in (0.1, 0.5, 1, 2, 6, 12, 24, 48, 120, 240, 720) if whole / s <= TICKS), whole / TICKS)
    marks = []
    for i in range(int(whole / step) + 1):
        x = i * step / whole * WIDTH
        text = f"<text x='{min(x, WIDTH - 40):.1f}' y='{HEIGHT + AXIS - 7}' font-size='12'>{i * step:g} h</text>"
        marks.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='0' y2='{HEIGHT}' stroke='#a0aec0' stroke-width='.4'/>{text}")
    return f"<g fill='currentColor'>{''.join(marks)}</g>"


def _chart(title: str, lines: list[tuple[str, list[float]]], top: float, curve: list[tuple[float, float, int]]) -> str:
    """Draw lines over time; `curve`: the points of the report, of which the times are used."""
    marks = [(name, values, COLORS[i % len(COLORS)]) for i, (name, values) in enumerate(lines)]
    drawn = "".join(_line(values, max(top, 1e-9), color, name) for name, values, color in marks)
    legend = " ".join(f"<span style='color:{color}'>&#9632; {html.escape(name)}</span>" for name, _, color in marks)
    label = html.escape(title)
    drawn += _times(curve[0][0], curve[-1][0])
    svg = f"<svg role='img' aria-label='{label}' viewBox='0 0 {WIDTH} {HEIGHT + AXIS}' width='100%'>{drawn}</svg>"
    return f"<h3>{label}</h3>{svg}<p>{legend}</p>"


def _use_chart(result: dict[str, Any]) -> str:
    return _chart(
        f"{result['counted']} used (full height: all)",
        [("used", [point[1] for point in result["curve"]])],
        1.0,
        result["curve"],
    )


def _queue(result: dict[str, Any]) -> str:
    lines = [(f"{name} GPUs", [float(n) for n in counts]) for name, counts in result["queue_by_size"].items()]
    top = max((max(values) for _, values in lines), default=1.0)
    return _chart(f"Waiting jobs by GPUs of the job (full height: {top:.0f})", lines, top, result["curve"])


def _waits(result: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{n['jobs']}</td><td>{hours(n['wait_mean'])}</td><td>{hours(n['wait_p99'])}</td>"
        f"<td>{hours(n['wait_max'])}</td><td>{percent(n['promised_within_60s'])}</td></tr>"
        for name, n in result["by_size"].items()
    )
    head = "<tr><th>GPUs</th><th>jobs</th><th>wait, mean</th><th>p99</th><th>max</th><th>promised in 60 s</th></tr>"
    return f"<h3>Waits by size</h3><table>{head}{rows}</table>"
