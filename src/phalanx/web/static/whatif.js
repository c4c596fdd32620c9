// What if: manifests are placed on the map without being created. Two variants beside each other, counts by slider.

import { compare } from "./compare.js";
import { FILTERS, MOST_ADDED_NODES, MOST_MANIFEST_BYTES } from "./constants.js";
import { h, show } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { cost, mapKey, marks as planned, victims } from "./victims.js";
import { clusterOf, verdict } from "./why.js";
import { levelName, parts, plural, short } from "./words.js";

/** @type {() => ClusterChange} */
const asIs = () => ({ addNodes: [], withoutFilters: [] });
const differs = (cluster) => cluster.addNodes.length + cluster.withoutFilters.length > 0;
function joined(before, more) {
  const addNodes = structuredClone(before.addNodes);
  for (const { count, like } of more.addNodes) {
    const same = addNodes.find((each) => like === each.like || like.startsWith(`${each.like}-more-`));
    if (same) same.count += count;
    else addNodes.push({ count, like });
  }
  return { addNodes, withoutFilters: [...new Set([...before.withoutFilters, ...more.withoutFilters])] };
}
const isNew = (cluster, node) => cluster.addNodes.some(({ like }) => node.startsWith(`${like}-more-`));

export function whatifView(app) {
  const variants = {
    a: { text: EXAMPLES[0].text, counts: [], set: new Map(), cluster: asIs(), answer: null, problem: "", note: "" },
    b: { text: "", counts: [], set: new Map(), cluster: asIs(), answer: null, problem: "", note: "" },
  };
  let shown = "a",
    element,
    timer = 0,
    namespace = "default";

  const key = (path) => path.join(".");

  // Opened by a remedy of a why card: the waiting root as it is, and beside it with the change.
  app.try = async (root, { change = "", group = "", to = "", text = "" }) => {
    try {
      const plain = await app.ask.manifest(root);
      put("a", plain.text, `${parts(root).name} as it waits`);
      namespace = parts(root).namespace;
      const cluster = clusterOf({ change, to });
      if (change === "topology" || change === "members") {
        const changed = await app.ask.manifest(root, { change, group, to });
        put("b", changed.text, text);
        shown = "b";
      } else if (cluster) {
        put("b", plain.text, text, cluster);
        shown = "b";
      } else {
        put("b", "", "");
        shown = "a";
        if (change) variants.a.note = `“${text}”: free room on these nodes and ask again`;
      }
    } catch (problem) {
      put("a", variants.a.text, "");
      variants.a.problem = problem.message;
    }
    app.go("whatif");
    await run("a");
    if (variants.b.text) await run("b");
    reveal();
  };

  // Opened by the bars of free room: so many pods of a shape, asked of the scheduler itself.
  app.tryGang = async (text, note) => {
    put("a", text, note);
    put("b", "", "");
    shown = "a";
    app.go("whatif");
    if (element?.isConnected) build();
    await run("a");
    reveal();
  };

  // Opened by the guide.
  app.tryExample = async (name) => {
    const example = EXAMPLES.find((each) => each.name === name) ?? EXAMPLES[0];
    put("a", example.text, "");
    put("b", "", "");
    shown = "a";
    namespace = "default";
    app.go("whatif");
    if (element?.isConnected) build();
    await run("a");
    reveal();
  };

  // Who came by a button came for the answer, not for the manifest above it.
  const reveal = () =>
    element?.results?.isConnected &&
    element.results.scrollIntoView({ block: "start", behavior: app.map.still ? "auto" : "smooth" });

  function put(name, text, note, cluster = asIs()) {
    Object.assign(variants[name], { text, note, cluster, counts: [], set: new Map(), answer: null, problem: "" });
  }

  // A remedy of an answer here: the same manifest in variant B, on a cluster with the remedy besides what it had.
  async function remedy(relaxation) {
    const { text, set, cluster } = variants[shown];
    put("b", text, relaxation.text, joined(cluster, clusterOf(relaxation)));
    variants.b.set = new Map(set);
    shown = "b";
    build();
    await run("b");
    reveal();
  }

  async function run(name) {
    const variant = variants[name];
    if (!variant.text.trim()) {
      Object.assign(variant, { answer: null, problem: "", counts: [] });
      return update();
    }
    const asked = (variant.asked = (variant.asked ?? 0) + 1);
    variant.running = true;
    try {
      const counts = [...variant.set.values()];
      const found = await app.ask.whatif({ text: variant.text, namespace, counts, cluster: variant.cluster });
      if (asked !== variant.asked) return;
      Object.assign(variant, { counts: found.counts, answer: found.outlook, problem: "" });
    } catch (problem) {
      if (asked !== variant.asked) return;
      Object.assign(variant, { answer: null, problem: problem.message });
    }
    variant.running = false;
    update();
  }

  const soon = (name, wait = 350) => {
    clearTimeout(timer);
    timer = setTimeout(() => run(name), wait);
  };

  function marks() {
    const variant = variants[shown];
    const found = new Map();
    for (const item of variant.answer?.items ?? []) {
      for (const [node, mark] of item.plan ? planned(item.plan, item.root) : []) found.set(node, mark);
      for (const place of item.places ?? [])
        for (const share of place.nodes ?? []) {
          const before = found.get(share.node)?.pods ?? 0;
          const pods = before + share.pods;
          found.set(share.node, {
            tone: shown,
            text: `+${pods}`,
            pods,
            why: `${place.group} would have ${plural(pods, "pod")} here`,
          });
        }
    }
    return found;
  }

  function sliders(name) {
    const variant = variants[name];
    return variant.counts.map(({ path, value, text, of, name: field }) => {
      const now = variant.set.get(key(path))?.value ?? value;
      const output = h("output", {}, now);
      const id = `slider-${name}-${key(path)}`;
      return h(
        "div",
        { class: "slider" },
        h("label", { for: id }, h("b", {}, field), h("span", { class: "muted" }, ` ${text} of ${of}`)),
        h("input", {
          id,
          type: "range",
          min: field.startsWith("min") ? 1 : 0,
          max: Math.max(16, value * 4),
          value: now,
          "data-focus": id,
          oninput: (event) => {
            output.textContent = event.target.value;
            variant.set.set(key(path), { path, value: Number(event.target.value) });
            soon(name, 150);
          },
        }),
        output,
      );
    });
  }

  // More nodes, a filter left out: what a manifest cannot say.
  function surroundings() {
    const variant = variants[shown],
      { cluster } = variant;
    const [more = { count: 0, like: "" }] = cluster.addNodes;
    const change = (count, like) => {
      like ||= app.cluster.nodes.keys().next().value ?? "";
      cluster.addNodes = count > 0 ? [{ count: Math.min(count, MOST_ADDED_NODES), like }] : [];
      variant.note = "";
      run(shown);
    };
    const count = h("input", {
      type: "number",
      id: "more-nodes",
      min: 0,
      max: MOST_ADDED_NODES,
      value: more.count,
      onchange: () => change(Number(count.value) || 0, like.value.trim()),
    });
    const like = h("input", {
      type: "text",
      id: "more-like",
      size: 16,
      value: more.like,
      placeholder: app.cluster.nodes.keys().next().value ?? "",
      spellcheck: "false",
      autocomplete: "off",
      onchange: () => change(Number(count.value) || 0, like.value.trim()),
    });
    const known = Object.keys(FILTERS);
    const filters = [
      ...Object.entries(FILTERS),
      ...cluster.withoutFilters.filter((name) => !known.includes(name)).map((name) => [name, name]),
    ];
    return h(
      "details",
      { class: "surroundings", open: differs(cluster) },
      h("summary", {}, "Change the cluster, too"),
      h(
        "div",
        { class: "row" },
        h("label", { for: "more-nodes" }, "Add"),
        count,
        h("label", { for: "more-like" }, "empty nodes like"),
        like,
      ),
      h(
        "fieldset",
        { class: "row" },
        h("legend", { class: "sr" }, "Filters left out"),
        h("span", {}, "Ignore"),
        filters.map(([name, words]) =>
          h(
            "label",
            { class: "check", title: name },
            h("input", {
              type: "checkbox",
              value: name,
              checked: cluster.withoutFilters.includes(name),
              onchange: (event) => {
                cluster.withoutFilters = event.target.checked
                  ? [...cluster.withoutFilters, name]
                  : cluster.withoutFilters.filter((each) => each !== name);
                variant.note = "";
                run(shown);
              },
            }),
            ` ${words}`,
          ),
        ),
      ),
    );
  }

  function outcome(name) {
    const { answer, problem, note, cluster } = variants[name];
    if (problem) return h("p", { class: "problem", role: "alert" }, problem);
    if (!answer)
      return h(
        "p",
        { class: "muted" },
        name === "b" ? "Empty. Copy variant A here and change it, or paste another manifest." : "",
      );
    return h(
      "div",
      { class: "outlook" },
      note ? h("p", { class: "muted" }, note) : "",
      (answer.notes ?? []).map((text) => h("p", { class: "muted" }, text)),
      answer.items.map((item) =>
        h(
          "article",
          { class: "card", "data-fits": item.fits ? "1" : "0" },
          h(
            "p",
            { class: "verdict", "data-ok": item.fits ? "1" : "0" },
            h(
              "b",
              {},
              item.fits
                ? item.pods < item.wanted
                  ? "Fits in part"
                  : "Fits"
                : item.plan
                  ? "Fits after evictions"
                  : "Does not fit",
            ),
            " ",
            h("span", { title: parts(item.root).name }, short(parts(item.root).name)),
          ),
          h(
            "p",
            { class: item.plan ? "" : "muted" },
            item.plan
              ? `If it came, ${plural(item.plan.cost?.pods ?? item.evicts.length, "pod")} would be evicted for it. Now nothing is created and nothing is evicted.`
              : item.headline || item.summary,
          ),
          h(
            "ul",
            { class: "plain" },
            (item.places ?? []).map((place) =>
              h(
                "li",
                {},
                h("b", { title: place.group }, short(place.group.replace(/^\S+ /, ""))),
                `: ${plural(place.pods, "pod")}`,
                place.domain ? ` in ${levelName(place.key)} ${place.domain}` : "",
                h("span", { class: "muted" }, ` on ${plural(place.nodes?.length ?? 0, "node")}`, fresh(place, cluster)),
              ),
            ),
          ),
          item.devices?.length ? h("p", { class: "muted small" }, `Devices: ${item.devices.join(", ")}`) : "",
          item.plan ? [mapKey(), victims(item.plan, app.cluster), cost(item.plan)] : "",
          item.fits ? "" : verdict(app, { ...item, now: item.verdict }, null, remedy),
        ),
      ),
    );
  }

  const fresh = (place, cluster) => {
    const count = (place.nodes ?? []).filter((share) => isNew(cluster, share.node)).length;
    return count ? `, ${count === place.nodes.length ? "all" : count} of them added` : "";
  };

  function choose(name) {
    shown = name;
    build();
    if (!variants[name].answer && variants[name].text) run(name);
  }

  function build() {
    const variant = variants[shown];
    const area = h("textarea", {
      id: "manifest",
      rows: 9,
      spellcheck: "false",
      autocomplete: "off",
      "aria-describedby": "manifest-help",
      oninput: (event) => {
        variant.text = event.target.value;
        variant.set.clear();
        variant.note = "";
        soon(shown, 700);
      },
      ondragover: (event) => event.preventDefault(),
      ondrop: async (event) => {
        const file = event.dataTransfer.files[0];
        if (!file) return;
        event.preventDefault();
        load(file);
      },
    });
    area.value = variant.text;
    const other = shown === "a" ? "b" : "a";
    element.results = h("div", { class: "results", "aria-live": "polite" });
    element.knobs = h("div", { class: "sliders" });
    show(
      element,
      h("h2", {}, "What-if"),
      h(
        "p",
        { class: "muted", id: "manifest-help" },
        "Paste or drop YAML. The scheduler tries it on the cluster as it is now and takes it back: nothing is created.",
      ),
      h(
        "div",
        { class: "segments", role: "radiogroup", "aria-label": "Variant" },
        ["a", "b"].map((name) =>
          h(
            "label",
            { class: `tone-${name}` },
            h("input", {
              type: "radio",
              name: "variant",
              value: name,
              checked: name === shown,
              onchange: () => choose(name),
            }),
            h("span", {}, `Variant ${name.toUpperCase()}`),
          ),
        ),
      ),
      h(
        "div",
        { class: "row" },
        h(
          "label",
          { class: "select" },
          h("span", { class: "sr" }, "Example"),
          h(
            "select",
            {
              onchange: (event) => {
                const example = EXAMPLES[event.target.value];
                if (!example) return;
                put(shown, example.text, "");
                build();
                run(shown);
              },
            },
            h("option", { value: "" }, "Example …"),
            EXAMPLES.map((example, index) => h("option", { value: index }, example.name)),
          ),
        ),
        h(
          "label",
          { class: "button" },
          "Open file",
          h("input", {
            type: "file",
            class: "sr",
            accept: ".yaml,.yml,.json",
            onchange: (event) => event.target.files[0] && load(event.target.files[0]),
          }),
        ),
        h(
          "button",
          {
            type: "button",
            onclick: () => {
              put(other, variant.text, "", structuredClone(variant.cluster));
              choose(other);
            },
          },
          `Copy to ${other.toUpperCase()}`,
        ),
      ),
      h("label", { class: "sr", for: "manifest" }, "Manifest"),
      area,
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", class: "primary", id: "run", onclick: () => run(shown) }, "Try it"),
        h(
          "label",
          { class: "select" },
          h("span", {}, "Namespace"),
          h("input", {
            type: "text",
            value: namespace,
            size: 12,
            onchange: (event) => {
              namespace = event.target.value.trim() || "default";
              run(shown);
            },
          }),
        ),
      ),
      surroundings(),
      element.knobs,
      element.results,
    );
    update();
  }

  async function load(file) {
    if (file.size > MOST_MANIFEST_BYTES) {
      variants[shown].problem = `${file.name} is too large for the page; use phalanx whatif -f ${file.name}`;
      return update();
    }
    put(shown, await file.text(), "");
    build();
    run(shown);
  }

  function update() {
    if (!element?.isConnected) return;
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset.focus;
    if (!focused?.startsWith("slider-")) show(element.knobs, sliders(shown));
    show(element.results, compare([variants.a.answer, variants.b.answer]), outcome(shown));
    app.map.lay(marks());
  }

  return {
    open(view) {
      element = h("div", { class: "whatif" });
      show(view, element);
      build();
      if (!variants.a.answer && !variants.a.problem && !variants.a.running) run("a");
    },
    change() {},
    close: () => app.map.lay(null),
  };
}
