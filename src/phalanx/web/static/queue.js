// The queue: who waits, in the order in which they will be tried, why, and what would help.

import { h, knowsNothing, refresh, show } from "./dom.js";
import { age, number, PLACES, plural, short } from "./words.js";

const HELPED = 6; // so many rows are asked about without being opened: every question costs the scheduler a few trials
const SHOWN = 100;

export function queueView(app) {
  const { cluster } = app;
  const picked = { namespace: "", workload: "", reason: "" };
  const answers = new Map(); // root -> {state, why}
  let element, list, bar, asking = false, several = false; // several namespaces: then each card names its own

  const stateOf = (root) => `${root.place} ${root.attempts} ${root.message}`;
  const roots = () => cluster.queue.roots.filter((root) =>
    (!picked.namespace || root.namespace === picked.namespace) &&
    (!picked.workload || root.workload === picked.workload) &&
    (!picked.reason || root.words === picked.reason));

  function choice(name, label, values) {
    const many = new Map();
    for (const value of values) if (value) many.set(value, (many.get(value) ?? 0) + 1);
    if (picked[name] && !many.has(picked[name])) many.set(picked[name], 0);
    return h("label", { class: "select" }, h("span", {}, label),
      h("select", { "data-focus": `filter ${name}`, onchange: (event) => ((picked[name] = event.target.value), update()) },
        h("option", { value: "" }, "all"),
        [...many].sort().map(([value, count]) => h("option", { value, selected: value === picked[name] }, `${value} (${number(count)})`))));
  }

  function row(root, index) {
    const answer = answers.get(root.key)?.why;
    const helps = (answer?.relaxations ?? []).filter((relaxation) => relaxation.fits);
    const waits = answer?.queue?.waitsFor ?? [];
    return h("li", { class: "card waits", "data-root": root.key },
      h("a", { class: "card-title", href: `#/why/${root.key}`, "data-focus": root.key },
        h("span", { class: "order", "aria-label": `number ${index + 1}` }, index + 1),
        h("b", { title: root.name }, short(root.name))),
      h("p", { class: "why gist", title: root.message }, root.headline, root.tried ? h("span", { class: "muted" }, ` · tried ${age(cluster.now - root.tried)} ago`) : ""),
      helps.length ? h("p", { class: "help" }, "Would help: ", h("b", {}, helps[0].text), helps.length > 1 ? ` and ${helps.length - 1} more` : "") : "",
      waits.length ? h("p", { class: "muted small" }, "Tried again when ", waits.slice(0, 2).join(", or ")) : "",
      h("p", { class: "chips" },
        h("span", { class: "chip", "data-place": root.place, title: PLACES[root.place] ?? root.place }, root.place === "waiting" ? "waiting" : PLACES[root.place] ?? root.place),
        h("span", { class: "chip" }, plural(root.pods, "pod")),
        several ? h("span", { class: "chip" }, root.namespace) : "",
        root.priority ? h("span", { class: "chip" }, `priority ${number(root.priority)}`) : "",
        root.workload && short(root.workload) !== short(root.name) ? h("span", { class: "chip" }, short(root.workload)) : "",
        h("span", { class: "chip" }, `for ${age(cluster.now - root.asked)}`)));
  }

  function update() {
    const all = cluster.queue.roots, found = roots();
    several = new Set(all.map((root) => root.namespace)).size > 1;
    refresh(bar,
      choice("namespace", "Namespace", all.map((root) => root.namespace)),
      choice("workload", "Workload", all.map((root) => root.workload)),
      choice("reason", "Reason", all.map((root) => root.words)));
    refresh(list, found.slice(0, SHOWN).map(row));
    const more = cluster.queue.total - all.length + Math.max(0, found.length - SHOWN);
    refresh(element.lastChild, cluster.standby !== null ? knowsNothing() : !cluster.queue.total
      ? h("p", { class: "empty" }, h("b", {}, "Nobody waits."), " Everything that asked for a place has one. Try what would happen next in ", h("a", { href: "#/whatif" }, "What-if"), ".")
      : !found.length ? h("p", { class: "empty" }, "Nothing waits that matches these filters.")
      : more > 0 ? h("p", { class: "muted" }, `and ${number(more)} more: choose a filter to see others`) : "");
    help(found.slice(0, HELPED));
  }

  // One question at a time, and only about roots whose state changed since the last answer.
  async function help(first) {
    if (asking) return;
    asking = true;
    try {
      for (const root of first) {
        if (answers.get(root.key)?.state === stateOf(root)) continue;
        let why = null;
        try {
          why = (await app.ask.why(root.key)).items[0];
        } catch {
          // gone meanwhile
        }
        answers.set(root.key, { state: stateOf(root), why });
        if (answers.size > 4 * HELPED) answers.delete(answers.keys().next().value);
        if (element?.isConnected && list.isConnected) refresh(list, roots().slice(0, SHOWN).map(row));
      }
    } finally {
      asking = false;
    }
  }

  return {
    open(view) {
      bar = h("div", { class: "filters" });
      list = h("ol", { class: "cards", "aria-label": "Waiting, in the order in which they will be tried" });
      element = h("div", {}, h("h2", {}, "Queue"), bar, list, h("div", {}));
      show(view, element);
      update();
    },
    change: (change) => (!change || change.queue || change.sample) && list?.isConnected && update(),
  };
}
