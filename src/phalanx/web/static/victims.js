// What a preemption would do, wherever a plan is shown: who goes and why each, what it costs, what of that is proved.

import { COST_PARTS } from "./constants.js";
import { h } from "./dom.js";
import { age, number, parts, plural, short } from "./words.js";

// How the parts of a cost are said, by the engine's word for each.
const WORDS = {
  budgets: ["beyond disruption budgets", number],
  priority: ["highest priority evicted", (value) => (value === null || value === undefined ? "none" : number(value))],
  stopped: ["pods stopped", number],
  pods: ["pods evicted", number],
  gangs: ["gangs left broken", number],
  workloads: ["workloads hit", number],
  work: ["work lost", age],
};
const PARTS = COST_PARTS.map(([name, field]) => [field, name, ...WORDS[name]]);

export function cost(plan) {
  if (!plan.cost) return "";
  const bound = plan.lowerBound,
    proved = new Set(plan.proved ?? []);
  const say = (price, field, words) => words(price[field] ?? (words === number || words === age ? 0 : undefined));
  return [
    h("h3", {}, "What it costs"),
    h(
      "table",
      { class: "cost" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "what counts most first"),
          h("th", { scope: "col" }, "this plan"),
          bound ? h("th", { scope: "col" }, "no plan below") : "",
        ),
      ),
      h(
        "tbody",
        {},
        PARTS.map(([field, name, text, words]) =>
          h(
            "tr",
            {},
            h("th", { scope: "row" }, text),
            h("td", { class: "num" }, say(plan.cost, field, words)),
            bound
              ? h(
                  "td",
                  { class: "num muted" },
                  say(bound, field, words),
                  proved.has(name) ? h("b", { class: "good" }, " ✓ proved") : "",
                )
              : "",
          ),
        ),
      ),
    ),
    plan.optimal
      ? h("p", { class: "good small" }, "✓ Proved: no cheaper plan exists (work lost is not part of the proof).")
      : plan.result === "plan"
        ? h("p", { class: "muted small" }, "Not proved to be the cheapest in every part.")
        : "",
  ];
}

// One card for each group that loses pods, and for each pod or group that is evicted alone or as a whole.
export function victims(plan, cluster) {
  if (!plan.victims?.length) return "";
  const cards = new Map();
  for (const victim of plan.victims) {
    const of = victim.group || victim.name;
    if (!cards.has(of)) cards.set(of, []);
    cards.get(of).push(victim);
  }
  return [
    h("h3", {}, "Who would go"),
    h(
      "ul",
      { class: "cards" },
      [...cards].map(([of, gone]) => {
        const group = cluster.groups.get(of),
          [first] = gone;
        const pods = gone.reduce((sum, victim) => sum + victim.pods, 0);
        const [kind, name] = group
          ? [parts(of).kind, parts(of).name]
          : [first.name.split(" ")[0], first.name.replace(/^\S+ [^/]*\//, "")];
        return h(
          "li",
          { class: "card goes" },
          h(
            "p",
            {},
            h("span", { class: "kind" }, kind),
            " ",
            group ? h("a", { href: `#/group/${of}`, title: name }, h("b", {}, short(name))) : h("b", {}, name),
            h(
              "span",
              { class: "muted" },
              ` priority ${number(first.priority)} · ${plural(pods, "pod")}${group ? ` of ${number(group.placed)}` : ""}`,
            ),
          ),
          group?.gang && group.placed >= group.min && group.placed - pods < group.min
            ? h("p", { class: "wait small" }, `left below its minimum of ${number(group.min)}`)
            : "",
          h(
            "ul",
            { class: "plain small" },
            gone.slice(0, 12).map((victim) =>
              h(
                "li",
                {},
                group && victim.group ? [h("b", {}, victim.name.replace(/^\S+ [^/]*\//, "")), ": "] : "",
                victim.why,
                victim.nodes?.length && !victim.nodes.every((share) => victim.why.includes(share.node))
                  ? h(
                      "span",
                      { class: "muted" },
                      " · ",
                      victim.nodes
                        .slice(0, 8)
                        .map((share, index) => [
                          index ? ", " : "",
                          h("a", { href: `#/node/${share.node}` }, share.node),
                        ]),
                      victim.nodes.length > 8 ? " …" : "",
                    )
                  : "",
              ),
            ),
            gone.length > 12
              ? h("li", { class: "muted" }, `and ${number(gone.length - 12)} more, marked on the map`)
              : "",
          ),
        );
      }),
    ),
  ];
}

// For the map: green where members would come, red and hatched where pods would be evicted first.
export function marks(plan, key) {
  const found = new Map();
  for (const share of plan.places ?? [])
    found.set(share.node, {
      tone: "good",
      text: `+${share.pods}`,
      why: `${plural(share.pods, "pod")} of ${short(parts(key).name)} would come here`,
    });
  for (const victim of plan.victims ?? [])
    for (const share of victim.nodes ?? []) {
      const gone = (found.get(share.node)?.gone ?? 0) + share.pods;
      found.set(share.node, {
        tone: "bad",
        goes: true,
        gone,
        text: `−${gone}`,
        why: `${plural(gone, "pod")} would go: ${victim.why}`,
      });
    }
  return found;
}

export const mapKey = () =>
  h(
    "p",
    { class: "chips small" },
    h("span", { class: "key" }, h("i", { class: "mark-comes" }), "comes here"),
    h("span", { class: "key" }, h("i", { class: "mark-goes" }), "goes first"),
  );
