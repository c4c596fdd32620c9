// A small line plot of a span of time, drawn as SVG, with a table's worth of words for those who cannot see it.

import { h, s } from "./dom.js";
import { age, clock } from "./words.js";

const WIDE = 360,
  HIGH = 76,
  LEFT = 2,
  TOP = 6,
  BOTTOM = 14;

// series: [{name, tone, of: sample -> number|null}]; say: number -> text.
export function plot(title, samples, series, say, most = 0, note = "") {
  const values = series.map(({ of }) => samples.map(of));
  const top = Math.max(most, ...values.flat().filter((value) => value !== null && value !== undefined), 1e-9);
  const from = samples[0]?.t ?? 0,
    until = samples.at(-1)?.t ?? 1;
  const x = (t) => LEFT + ((WIDE - 2 * LEFT) * (t - from)) / Math.max(1, until - from);
  const y = (value) => TOP + (HIGH - TOP - BOTTOM) * (1 - value / top);
  const last = (list) => list.findLast((value) => value !== null && value !== undefined);
  const label = `${title} over the last ${age(Math.max(60, until - from))}: ${series.map(({ name }, index) => `${name} now ${last(values[index]) === undefined ? "unknown" : say(last(values[index]))}`).join(", ")}`;
  const lines = series.flatMap(({ tone }, index) => {
    // Where most samples say nothing (nothing was placed then) what there is are spots, not a line.
    if (values[index].some((value) => value === null || value === undefined)) {
      const spots = samples
        .map((sample, at) => [x(sample.t), values[index][at]])
        .filter(([, value]) => value !== null && value !== undefined);
      return [
        s("path", {
          d: spots.map(([at, value]) => `M${at.toFixed(1)} ${y(value).toFixed(1)}h0.01`).join(""),
          class: `spots tone-${tone}`,
        }),
      ];
    }
    let path = "",
      area = "",
      open = false;
    samples.forEach((sample, at) => {
      const value = values[index][at];
      if (value === null || value === undefined) return;
      path += `${open ? "L" : "M"}${x(sample.t).toFixed(1)} ${y(value).toFixed(1)}`;
      open = true;
    });
    if (index === 0 && path) area = `${path}L${x(until).toFixed(1)} ${y(0)}L${x(from).toFixed(1)} ${y(0)}Z`;
    return [
      area ? s("path", { d: area, class: `area tone-${tone}` }) : "",
      s("path", { d: path, class: `curve tone-${tone}` }),
    ];
  });
  return h(
    "figure",
    { class: "plot" },
    h(
      "figcaption",
      {},
      h("b", {}, title),
      note ? h("small", { class: "muted plot-note" }, note) : "",
      series.map(({ name, tone }, index) =>
        h(
          "span",
          { class: `key tone-${tone}` },
          h("i", {}),
          name,
          " ",
          h("b", {}, last(values[index]) === undefined ? "–" : say(last(values[index]))),
        ),
      ),
    ),
    s(
      "svg",
      { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": label, preserveAspectRatio: "none" },
      s("line", { x1: 0, x2: WIDE, y1: y(0), y2: y(0), class: "axis" }),
      s("line", { x1: 0, x2: WIDE, y1: y(top), y2: y(top), class: "axis faint" }),
      lines,
    ),
    h(
      "div",
      { class: "plot-feet muted" },
      h("span", {}, samples.length ? clock(from).slice(0, 5) : ""),
      h("span", {}, `up to ${say(top)}`),
      h("span", {}, samples.length ? clock(until).slice(0, 5) : ""),
    ),
  );
}
