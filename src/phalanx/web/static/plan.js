// A preemption before it happens: which pods would go and why each, what it costs part by part, whether that is proved.

import { h, knowsNothing, refresh, show } from "./dom.js";
import { oneAtATime } from "./feed.js";
import { cost, mapKey, marks, victims } from "./victims.js";
import { number, parts, plural, short } from "./words.js";

const RESULTS = {
  plan: "There is a plan",
  fits: "Fits without an eviction",
  underWay: "Under way",
  hopeless: "Evictions do not help",
  gaveUp: "The search gave up",
  none: "No plan",
};

// Only pods of lower priority are ever evicted: said in numbers where no plan was found.
function lower(cluster, key) {
  const priority =
    cluster.queue.roots.find((root) => root.key === key)?.priority ?? cluster.groups.get(key)?.priority ?? 0;
  const below = [...cluster.groups.values()].filter((group) => group.placed && group.priority < priority).length;
  return below
    ? `${plural(below, "group")} of lower priority run; without them it still would not fit.`
    : `Only pods of lower priority are evicted, and its priority is ${number(priority)}: no group that runs has less.`;
}

export function planView(app) {
  const { cluster } = app;
  let element,
    body,
    picker,
    key = "",
    update,
    state = "";

  async function question(asked) {
    if (cluster.standby !== null) return show(body, knowsNothing());
    if (!key)
      return show(
        body,
        h(
          "p",
          { class: "empty" },
          cluster.queue.total
            ? "Choose what should get room."
            : [
                h("b", {}, "Nothing is pending, so nothing has to be evicted."),
                " Plan for what is not there yet: choose the urgent example in ",
                h("a", { href: "#/whatif" }, "What-if"),
                ".",
              ],
        ),
      );
    if (!body.childElementCount) show(body, h("p", { class: "muted" }, "asking the scheduler …"));
    let plan,
      problem = "";
    try {
      plan = await app.ask.plan(key);
    } catch (wrong) {
      problem = wrong.message;
    }
    if (asked !== element || !asked.isConnected) return;
    if (!plan) {
      app.map.lay(null);
      return show(body, h("p", { class: "problem" }, problem));
    }
    app.map.lay(marks(plan, key));
    show(
      body,
      h(
        "p",
        { class: "verdict", "data-ok": ["plan", "fits"].includes(plan.result) ? "1" : "0", "data-result": plan.result },
        h("b", {}, RESULTS[plan.result] ?? plan.result),
        " ",
        plan.result === "plan" && plan.victims?.length
          ? `${plural(plan.cost?.pods ?? plan.victims.length, "pod")} would be evicted`
          : plan.summary,
      ),
      plan.result === "hopeless" ? h("p", { class: "muted" }, lower(cluster, key)) : "",
      h("p", { class: "actions" }, h("a", { class: "button", href: `#/why/${key}` }, "Why it waits")),
      plan.victims?.length ? mapKey() : "",
      victims(plan, cluster),
      cost(plan),
      plan.places?.length
        ? [
            h("h3", {}, "Where it would then go"),
            h(
              "p",
              {},
              plan.places
                .slice(0, 24)
                .map((share, index) => [
                  index ? ", " : "",
                  h("a", { href: `#/node/${share.node}` }, share.node),
                  share.pods > 1 ? ` ×${share.pods}` : "",
                ]),
              plan.places.length > 24 ? " …" : "",
            ),
          ]
        : "",
    );
  }

  function choices() {
    const roots = cluster.queue.roots.slice(0, 200);
    if (key && !roots.some((root) => root.key === key)) roots.unshift({ key, ...parts(key), priority: 0 });
    refresh(
      picker,
      h("option", { value: "" }, roots.length ? "choose …" : "nothing is pending"),
      roots.map((root) =>
        h(
          "option",
          { value: root.key, selected: root.key === key },
          `${short(root.name)} (${root.namespace}${root.priority ? `, priority ${root.priority}` : ""})`,
        ),
      ),
    );
  }

  return {
    open(view, argument) {
      key = argument || cluster.queue.roots[0]?.key || "";
      state = "";
      body = h("div", { "aria-live": "polite" });
      picker = h("select", { id: "plan-for", onchange: (event) => app.go("plan", event.target.value) });
      element = h(
        "div",
        { class: "planning" },
        h("h2", {}, "Plan"),
        h(
          "p",
          { class: "muted" },
          "The pods that would be evicted to make room. The scheduler computes this now and evicts nothing. It works for units that are held at a gate, too.",
        ),
        h("label", { class: "wide" }, h("span", { class: "muted" }, "Make room for"), picker),
        body,
      );
      show(view, element);
      choices();
      app.light(null);
      const opened = element;
      update = oneAtATime(() => question(opened));
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
