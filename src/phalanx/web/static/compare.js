// The answers to two what-if questions beside each other.

import { h } from "./dom.js";

/** @param {any[]} both The answers; null: not asked. */
export function compare(both) {
  if (!both[0] || !both[1]) return "";
  const sum = (answer, of) => answer.items.reduce((total, item) => total + (of(item) ?? 0), 0);
  const nodes = (answer) =>
    new Set(
      answer.items.flatMap((item) =>
        (item.places ?? []).flatMap((place) => (place.nodes ?? []).map((share) => share.node)),
      ),
    ).size;
  const domains = (answer) => [
    ...new Set(answer.items.flatMap((item) => (item.places ?? []).map((place) => place.domain).filter(Boolean))),
  ];
  /** @type {[string, (answer: any) => any][]} */
  const rows = [
    ["fits", (answer) => (answer.fits ? "yes" : answer.items.some((item) => item.fits) ? "in part" : "no")],
    ["pods placed", (answer) => `${sum(answer, (item) => item.pods)} of ${sum(answer, (item) => item.wanted)}`],
    ["pods evicted", (answer) => sum(answer, (item) => item.evicts?.length)],
    ["nodes used", nodes],
    [
      "domains",
      (answer) =>
        domains(answer).length
          ? domains(answer).slice(0, 3).join(", ") + (domains(answer).length > 3 ? " …" : "")
          : "–",
    ],
  ];
  return h(
    "table",
    { class: "compare" },
    h("caption", {}, "Side by side"),
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col" }, ""),
        h("th", { scope: "col", class: "tone-a" }, "A"),
        h("th", { scope: "col", class: "tone-b" }, "B"),
      ),
    ),
    h(
      "tbody",
      {},
      rows.map(([text, of]) =>
        h(
          "tr",
          {},
          h("th", { scope: "row" }, text),
          both.map((answer) => h("td", {}, of(answer))),
        ),
      ),
    ),
  );
}
