// A dense table that is sorted, searched and walked through with the keyboard; the chosen row opens its details.

import { h, refresh } from "./dom.js";
import { number } from "./words.js";

const SHOWN = 200; // rows drawn; a search finds the others
const STEP = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: 10, PageUp: -10, Home: -1e9, End: 1e9 };

// columns: [{name, head, cell(row) -> node or text, by(row) -> what it is sorted by, largest, wide, roomy}]; a roomy one is
// left out on phones, and `largest` says that the first click shows the largest values first. `key(row)` names a row.
export class Table {
  /** @param {any} settings */
  constructor({ label, columns, key, text, open, sort, placeholder, filters = () => /** @type {any[]} */ ([]) }) {
    this.columns = columns;
    this.key = key;
    this.text = text;
    this.open = open;
    this.filters = filters;
    this.sort = sort ?? { name: "", down: true }; // "": the order in which rows come
    this.usual = this.sort;
    this.sought = "";
    this.chosen = "";
    this.rows = [];
    this.input = h("input", {
      type: "search",
      placeholder,
      "aria-label": "Search",
      oninput: (event) => this.search(event.target.value),
    });
    this.input.addEventListener(
      "keydown",
      (event) => event.key === "ArrowDown" && (this.step(0), event.preventDefault()),
    );
    this.bar = h("div", { class: "filters" });
    this.head = h("thead", {});
    this.body = h("tbody", {});
    this.more = h("p", { class: "muted small" });
    this.table = h("table", { class: "dense", role: "grid", "aria-label": label }, this.head, this.body);
    this.table.addEventListener("keydown", (event) => this.press(event));
    this.element = h(
      "div",
      { class: "listing" },
      h("div", { class: "search" }, this.input),
      this.bar,
      h("div", { class: "scroll" }, this.table),
      this.more,
    );
  }

  search(text) {
    this.sought = text.toLowerCase();
    this.update(this.rows);
  }

  order(name) {
    if (this.sort.name === name) this.sort = this.sort.down ? { name, down: false } : this.usual;
    else this.sort = { name, down: true };
    this.update(this.rows);
  }

  found() {
    const words = this.sought.split(/\s+/).filter(Boolean);
    const left = this.rows.filter((row) => words.every((word) => this.text(row).toLowerCase().includes(word)));
    const column = this.columns.find(({ name }) => name === this.sort.name);
    if (!column) return left;
    const sign = this.sort.down === !column.largest ? 1 : -1;
    return left
      .map((row, index) => [column.by(row), index, row])
      .sort((a, b) => sign * (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0) || a[1] - b[1])
      .map(([, , row]) => row);
  }

  update(rows) {
    this.rows = rows;
    const shown = this.found();
    refresh(this.bar, this.filters());
    refresh(
      this.head,
      h(
        "tr",
        {},
        this.columns.map(({ name, head, largest, wide, roomy }) => {
          const on = this.sort.name === name;
          const rises = this.sort.down === !largest;
          return h(
            "th",
            {
              scope: "col",
              class: `${wide ? "wide" : ""}${roomy ? " roomy" : ""}`,
              "aria-sort": on ? (rises ? "ascending" : "descending") : "none",
            },
            h(
              "button",
              { type: "button", "data-focus": `sort ${name}`, onclick: () => this.order(name) },
              head,
              h("span", { class: "arrow", "aria-hidden": "true" }, on ? (rises ? "▴" : "▾") : ""),
            ),
          );
        }),
      ),
    );
    // One row takes the tab key; the arrows move from there.
    const focus = shown.find((row) => this.key(row) === this.chosen) ?? shown[0];
    refresh(
      this.body,
      shown.slice(0, SHOWN).map((row) => {
        const key = this.key(row);
        return h(
          "tr",
          {
            "data-row": key,
            "aria-label": this.text(row).slice(0, 200),
            "data-focus": `row ${key}`,
            tabindex: row === focus ? "0" : "-1",
            "aria-selected": key === this.chosen,
            class: key === this.chosen ? "chosen" : "",
            onclick: (event) => this.clicked(event, key),
          },
          this.columns.map(({ cell, wide, num, roomy }) =>
            h("td", { class: `${wide ? "wide" : ""}${num ? " num" : ""}${roomy ? " roomy" : ""}` }, cell(row)),
          ),
        );
      }),
    );
    const hidden = shown.length - SHOWN;
    this.more.textContent =
      hidden > 0
        ? `+${number(hidden)} more: search, filter or sort to see others`
        : this.sought && !shown.length
          ? `Nothing matches “${this.sought}”.`
          : "";
    this.count = shown.length;
  }

  clicked(event, key) {
    if (event.target.closest("a, button")) return;
    this.choose(key);
  }

  choose(key) {
    this.chosen = key;
    this.update(this.rows);
    this.open(key);
  }

  step(by) {
    const rows = [...this.body.children];
    if (!rows.length) return;
    const at = rows.indexOf(document.activeElement?.closest("tr"));
    const next = rows[Math.max(0, Math.min(rows.length - 1, (at < 0 ? 0 : at) + by))];
    for (const row of rows) row.tabIndex = row === next ? 0 : -1;
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  press(event) {
    const row = event.target.closest("tbody tr");
    if (!row && event.key === "ArrowDown") this.step(0);
    else if (!row) return;
    else if (event.key in STEP) this.step(STEP[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.choose(row.dataset.row);
    else return;
    event.preventDefault();
  }
}

// A choice among the values of a column, with how often each occurs.
export function choice(label, values, picked, change) {
  const many = new Map();
  for (const value of values) if (value) many.set(value, (many.get(value) ?? 0) + 1);
  if (picked && !many.has(picked)) many.set(picked, 0);
  return h(
    "label",
    { class: "select" },
    h("span", {}, label),
    h(
      "select",
      { "data-focus": `filter ${label}`, onchange: (event) => change(event.target.value) },
      h("option", { value: "" }, "all"),
      [...many]
        .sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1))
        .map(([value, count]) => h("option", { value, selected: value === picked }, `${value} (${number(count)})`)),
    ),
  );
}
