// A preemption before it happens: who would go and why each, what it costs part by part, whether that is proved.

import { h, refresh, show } from "./dom.js";
import { age, number, parts, plural, short } from "./words.js";

const RESULTS = {
  plan: "There is a plan", fits: "Fits without evicting anybody", underWay: "Under way", hopeless: "Evictions do not help",
  gaveUp: "The search gave up", none: "No plan",
};
const PARTS = [
  ["budgetViolations", "beyond disruption budgets", number],
  ["highestPriority", "highest priority hurt", (value) => (value === null || value === undefined ? "nobody" : number(value))],
  ["pods", "pods evicted", number],
  ["brokenGangs", "gangs left broken", number],
  ["lostSeconds", "work lost", age],
];

export function planView(app) {
  const { cluster } = app;
  let element = null, body = null, picker = null, key = "", stamp = 0, state = "";

  function cost(plan) {
    if (!plan.cost) return "";
    const bound = plan.lowerBound;
    return [h("h3", {}, "What it costs"),
      h("table", { class: "cost" },
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "in this order"), h("th", { scope: "col" }, "this plan"), bound ? h("th", { scope: "col" }, "no plan below") : "")),
        h("tbody", {}, PARTS.map(([field, text, say]) => h("tr", {}, h("th", { scope: "row" }, text),
          h("td", { class: "num" }, say(plan.cost[field] ?? (field === "highestPriority" ? undefined : 0))),
          bound ? h("td", { class: "num muted" }, say(bound[field] ?? (field === "highestPriority" ? undefined : 0))) : "")))),
      plan.optimal ? h("p", { class: "good" }, "✓ Proved: no cheaper plan exists.")
        : plan.result === "plan" ? h("p", { class: "muted" }, "Not proved to be the cheapest.") : ""];
  }

  function victims(plan) {
    if (!plan.victims?.length) return "";
    return [h("h3", {}, "Who would go"), h("ul", { class: "cards" }, plan.victims.map((victim) => h("li", { class: "card goes" },
      h("p", {}, h("b", {}, victim.name), h("span", { class: "muted" }, ` priority ${number(victim.priority)} · ${plural(victim.pods, "pod")}`)),
      h("p", {}, victim.why),
      victim.nodes.length ? h("p", { class: "muted small" }, "on ", victim.nodes.slice(0, 8).map((share, index) => [index ? ", " : "", h("a", { href: `#/node/${share.node}` }, share.node)]), victim.nodes.length > 8 ? " …" : "") : "")))];
  }

  function marks(plan) {
    const found = new Map();
    for (const share of plan.places ?? []) found.set(share.node, { tone: "good", text: `+${share.pods}`, why: `${plural(share.pods, "pod")} of ${parts(key).name} would come here` });
    for (const victim of plan.victims ?? [])
      for (const share of victim.nodes) {
        const comes = found.get(share.node);
        const gone = (comes?.gone ?? 0) + share.pods;
        found.set(share.node, { tone: "bad", goes: true, gone, text: `−${gone}`, why: `${plural(gone, "pod")} would go: ${victim.why}` });
      }
    return found;
  }

  async function update() {
    if (!key) return show(body, h("p", { class: "empty" }, cluster.queue.total ? "Choose who should get room." : "Nobody waits, so nobody has to go."));
    const asked = ++stamp;
    let plan = null, problem = "";
    try {
      plan = await app.ask.plan(key);
    } catch (wrong) {
      problem = wrong.message;
    }
    if (asked !== stamp || !element?.isConnected) return;
    if (!plan) {
      app.map.lay(null);
      return show(body, h("p", { class: "problem" }, problem));
    }
    app.map.lay(marks(plan));
    show(body,
      h("p", { class: "verdict", "data-ok": ["plan", "fits"].includes(plan.result) ? "1" : "0", "data-result": plan.result }, h("b", {}, RESULTS[plan.result] ?? plan.result), " ", plan.summary),
      h("p", { class: "actions" }, h("a", { class: "button", href: `#/why/${key}` }, "Why it waits")),
      cost(plan), victims(plan),
      plan.places?.length ? [h("h3", {}, "Where it would then go"), h("p", {}, plan.places.slice(0, 24).map((share, index) => [index ? ", " : "", h("a", { href: `#/node/${share.node}` }, share.node), share.pods > 1 ? ` ×${share.pods}` : ""]), plan.places.length > 24 ? " …" : "")] : "");
  }

  function choices() {
    const roots = cluster.queue.roots.slice(0, 200);
    if (key && !roots.some((root) => root.key === key)) roots.unshift({ key, ...parts(key), priority: 0 });
    refresh(picker, h("option", { value: "" }, roots.length ? "choose …" : "nobody waits"),
      roots.map((root) => h("option", { value: root.key, selected: root.key === key }, `${short(root.name)} (${root.namespace}${root.priority ? `, priority ${root.priority}` : ""})`)));
  }

  return {
    open(view, argument) {
      key = argument || cluster.queue.roots[0]?.key || "";
      state = "";
      body = h("div", { "aria-live": "polite" });
      picker = h("select", { id: "plan-for", onchange: (event) => app.go("plan", event.target.value) });
      element = h("div", { class: "planning" }, h("h2", {}, "Plan"),
        h("p", { class: "muted" }, "Who would be evicted to make room, computed by the scheduler and not carried out. What is gated can be planned before it is let go."),
        h("label", { class: "wide" }, h("span", { class: "muted" }, "Make room for"), picker), body);
      show(view, element);
      choices();
      app.light(null);
      update();
    },
    change(change) {
      if (!element?.isConnected || !change?.queue) return;
      if (document.activeElement !== picker) choices();
      if (!key && cluster.queue.roots[0]) key = cluster.queue.roots[0].key;
      const root = cluster.queue.roots.find((entry) => entry.key === key);
      const now = root ? `${root.place} ${root.attempts} ${root.pods}` : "gone";
      if (now !== state) update();
      state = now;
    },
    close: () => app.map.lay(null),
  };
}
