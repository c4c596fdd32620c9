// The guided story: a gang that waits, why, what helps, the command that frees it, and a preemption before it happens.
// It opens by itself where the demo runs, and by the button in the header anywhere; it changes nothing in the cluster.

import { $, h, refresh } from "./dom.js";
import { copyable } from "./object.js";
import { URGENT } from "./examples.js";
import { parts, plural, short } from "./words.js";

const KEPT = "guide";
const MOST = 100; // groups: where there are more it is no demo, and looking through them with every change would cost
const DEMO = { running: "training", waiting: "evaluation", urgent: "incident" };

export class Guide {
  constructor(app) {
    this.app = app;
    this.element = $("guide");
    this.step = 0;
    this.demo = false; // the demo runs here
    this.asked = false; // opened or closed by hand in this page
    this.seen = {}; // what the steps speak of, by role: it keeps its name after it is gone
    try {
      Object.assign(this, JSON.parse(localStorage.getItem(KEPT) ?? "{}"));
    } catch {
      // a browser that keeps nothing: fine
    }
    $("guide-open").addEventListener("click", () => this.toggle());
  }

  toggle() {
    this.asked = true;
    if (this.element.hidden) return this.open();
    this.close();
  }

  open() {
    this.element.hidden = this.closed = false;
    $("guide-open").setAttribute("aria-expanded", "true");
    this.keep();
    this.update();
    this.element.querySelector(".guide-title")?.focus({ preventScroll: true });
  }

  close() {
    this.element.hidden = this.closed = true;
    $("guide-open").setAttribute("aria-expanded", "false");
    this.keep();
    $("guide-open").focus({ preventScroll: true });
  }

  keep() {
    try {
      localStorage.setItem(KEPT, JSON.stringify({ step: this.step, closed: this.closed }));
    } catch {
      // as above
    }
  }

  // ---- what the cluster has for it

  find() {
    const { groups, queue } = this.app.cluster;
    const named = (name) =>
      [...groups.keys()].find((key) => key.startsWith("podgroup/default/") && short(parts(key).name) === name);
    const demo = Object.fromEntries(Object.entries(DEMO).map(([role, name]) => [role, named(name)]));
    // In the demo its names; elsewhere the largest gang, and the first that waits. A user's own gang may be called evaluation.
    this.demo ||= Boolean(named("inference-0")) && groups.get(demo.waiting)?.min === 24;
    if (!groups.get(demo.running)?.placed) demo.running = undefined;
    if (!this.demo) demo.waiting = queue.roots.find((root) => groups.has(root.key))?.key;
    let most = 0;
    if (!demo.running)
      for (const [key, group] of groups)
        if (group.gang && group.placed > most) [demo.running, most] = [key, group.placed];
    for (const [role, key] of Object.entries(demo)) if (key) this.seen[role] = key;
    return demo;
  }

  // Called with every change of the cluster: opens by itself once, ticks off what has happened.
  change() {
    if (!this.element.hidden) return this.update();
    const { groups, live } = this.app.cluster;
    if (!live || this.closed || this.asked || groups.size > MOST) return;
    if (this.find().waiting && this.demo) this.open();
  }

  // ---- the steps

  steps() {
    const { app } = this;
    const there = this.find();
    const { groups } = app.cluster;
    const name = (role) => short(parts(this.seen[role] ?? "//").name) || "it";
    const of = (role) => groups.get(there[role]);
    const waiting = of("waiting"),
      runs = waiting && waiting.placed >= waiting.min;
    const root = there.waiting && app.cluster.rootOf(there.waiting);
    const urgent = of("urgent"),
      came = urgent && urgent.placed >= urgent.min;
    // What keeps the waiting gang of the demo from its places: the training at first, the urgent Job after the last step.
    const training = [...groups].some(
      ([key, group]) =>
        key.startsWith("podgroup/default/") && short(parts(key).name).startsWith(DEMO.running) && group.placed,
    );
    const blocker = training ? "kubectl delete jobset training" : came ? "kubectl delete job incident" : "";
    /** @type {any[]} */
    const steps = [
      {
        title: "All or nothing",
        text: [
          "Eight workers of a training are worth nothing as seven. Such pods form a ",
          h("b", {}, "gang"),
          ": all of them start, or none does. On the map every colour is a gang and every small square a device.",
          there.running ? "" : " No gang runs here now.",
        ],
        act: there.running && [`Show ${name("running")} and its ranks`, () => app.go("group", there.running)],
      },
      {
        title: "A gang that waits",
        text: !waiting
          ? "No gang waits at the moment. `phalanx up --demo` starts a cluster in which one does; these steps then describe it."
          : runs
            ? [h("b", {}, name("waiting")), " waited here and has its places now. Step 5 says what made room."]
            : [
                h("b", {}, name("waiting")),
                ` needs ${plural(waiting.min, "place")} at once and there are not enough. It holds none of them meanwhile: other pods may use them.`,
              ],
        act: ["Open the queue", () => app.go("queue")],
      },
      {
        title: "Why it waits",
        text: runs
          ? `${name("waiting")} runs now, so its card says where its pods are. For a pending gang it shows, rule by rule, how many nodes are left.`
          : !waiting
            ? "The card of a pending gang shows, rule by rule, how many nodes are left, and which pods of the gang find no place."
            : "Rule by rule the picture shows how many nodes are left, and which pods of the gang find no place: dashed.",
        act: root && [runs ? "Open its card" : "Open why", () => app.go("why", root)],
      },
      {
        title: "What would help",
        text:
          runs || !waiting
            ? "The card of a pending gang offers changes. Each was tried by the same search that found no place."
            : "Every change below the picture was tried by the same search that found no place. One opens in What-if: A as it waits, B with the change.",
        act: root && !runs && ["Try what helps", () => this.remedy(root)],
      },
    ];
    if (this.demo)
      steps.push({
        title: "One command frees it",
        text: runs
          ? ""
          : blocker
            ? "In a second terminal, with the export lines that `make up` printed. Then watch the map: all 24 start in one moment."
            : waiting
              ? "Nothing that this guide knows of is in its way: the card of step 3 says what it waits for."
              : "No gang waits at the moment, so no command is needed. `phalanx up --demo` starts the demo again.",
        command: blocker || (runs ? "kubectl delete jobset training" : ""),
        done: runs && `${name("waiting")} got all its ${waiting.min} places at once.`,
        act: runs && [`Show ${name("waiting")}`, () => app.go("group", there.waiting)],
      });
    steps.push({
      title: "A preemption, before it happens",
      text: "An urgent Job wants a whole rack. What-if says which pods the scheduler would evict, why each, what that costs and whether it is proved. Nothing is created.",
      command: this.demo ? "phalanx whatif -f examples/urgent.yaml" : "",
      act: ["Plan it on the map", () => app.tryExample(URGENT)],
    });
    if (this.demo)
      steps.push({
        title: "Apply it",
        text: came
          ? ""
          : urgent
            ? "It was applied and waits: its card in the queue says for what."
            : "Only what it needs is evicted, and nothing where a rack is free. Watch the map: victims end first, then all eight start at once.",
        command: "kubectl apply -f examples/urgent.yaml",
        done:
          came && `${name("urgent")} has its rack.${waiting && !runs ? " The evicted gang waits for room again." : ""}`,
        act: came && [`Show ${name("urgent")}`, () => app.go("group", there.urgent)],
      });
    return steps;
  }

  async remedy(root) {
    try {
      const found = (await this.app.ask.why(root)).items[0]?.relaxations ?? [];
      const change =
        found.find((each) => each.fits && ["members", "topology"].includes(each.change)) ??
        found.find((each) => each.fits);
      if (change) return this.app.try(root, change);
    } catch {
      // gone meanwhile: the why card says so
    }
    this.app.go("why", root);
  }

  move(to) {
    this.step = to;
    this.keep();
    this.update();
    this.element.querySelector(".guide-title")?.focus({ preventScroll: true });
  }

  update() {
    const steps = this.steps();
    const at = Math.min(this.step, steps.length - 1);
    const { title, text, command, done, act } = steps[at];
    refresh(
      this.element,
      h(
        "div",
        { class: "guide-head" },
        h(
          "ol",
          { class: "guide-steps", "aria-label": "Steps" },
          steps.map((step, index) =>
            h(
              "li",
              {},
              h(
                "button",
                {
                  type: "button",
                  "data-focus": `step ${index}`,
                  "aria-label": `${step.done ? "✓" : index + 1} ${step.title}${step.done ? ", done" : ""}`,
                  title: step.title,
                  "aria-current": index === at ? "step" : null,
                  "data-done": step.done ? "1" : null,
                  onclick: () => this.move(index),
                },
                step.done ? "✓" : index + 1,
              ),
            ),
          ),
        ),
        h(
          "button",
          {
            type: "button",
            class: "quiet",
            id: "guide-close",
            "aria-label": "Close the guide",
            title: "Close; the ? above opens it again",
            onclick: () => this.close(),
          },
          "✕",
        ),
      ),
      h("h2", { class: "guide-title", tabindex: "-1", "data-focus": "guide title" }, title),
      text?.length ? h("p", {}, ticked(text)) : "",
      command ? copyable(command) : "",
      h("p", { class: "good guide-done", role: "status" }, done ? `✓ ${done}` : ""),
      h(
        "div",
        { class: "row" },
        act ? h("button", { type: "button", class: "primary", "data-focus": "act", onclick: act[1] }, act[0]) : "",
        h("span", { class: "grow" }),
        at ? h("button", { type: "button", "data-focus": "earlier", onclick: () => this.move(at - 1) }, "Back") : "",
        at < steps.length - 1
          ? h("button", { type: "button", "data-focus": "next", onclick: () => this.move(at + 1) }, "Next")
          : h("button", { type: "button", "data-focus": "next", onclick: () => this.close() }, "Done"),
      ),
    );
  }
}

// `like this` is code.
const ticked = (text) =>
  typeof text === "string" ? text.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part)) : text;
