// Time: the last hour as small plots, and a recording that can be scrubbed decision by decision.

import { $, h, refresh, show } from "./dom.js";
import { plot } from "./plot.js";
import { Recording } from "./recording.js";
import { age, clock, number, parts, percent, plural, resourceName, short } from "./words.js";

const TONES = ["a", "b", "c"];
const LARGEST = 512 << 20;
const QUEUED = 12; // of those that wait at a moment of a recording

export function timeView(app) {
  const { cluster } = app;
  let element,
    plots,
    player,
    recording,
    playing = 0,
    problem = "";
  let span = "hour",
    longer = [],
    read = 0; // samples of the day or the week, and when they were read

  async function lengthen(name) {
    span = name;
    longer = [];
    await refill();
  }

  async function refill() {
    if (span !== "hour") {
      const asked = span;
      read = Date.now();
      try {
        const { samples } = await app.ask.history(asked);
        if (asked === span) longer = samples;
      } catch {
        // the next sample tries again
      }
    }
    update();
  }

  function update() {
    if (!plots?.isConnected) return;
    if (span !== "hour" && Date.now() - read > 60000) refill();
    const samples = span === "hour" ? cluster.samples : longer;
    const shown = cluster.resources.filter((name) => name !== "pods").slice(0, 3);
    refresh(
      plots,
      plot(
        "In use",
        samples,
        shown.map((name, index) => ({
          name: resourceName(name),
          tone: TONES[index],
          of: (sample) => sample.use[name] ?? 0,
        })),
        percent,
        1,
      ),
      plot(
        "Fragmentation",
        samples,
        shown
          .slice(0, 1)
          .map((name) => ({ name: resourceName(name), tone: "a", of: (sample) => sample.fragmentation[name] ?? 0 })),
        percent,
        1,
        "free room on nodes already in use",
      ),
      plot(
        "Queue",
        samples,
        [
          { name: "entries", tone: "a", of: (sample) => sample.roots },
          { name: "pods", tone: "b", of: (sample) => sample.pods },
        ],
        number,
        1,
      ),
      plot(
        "Waits for a place",
        samples,
        [
          { name: "median", tone: "a", of: (sample) => sample.wait },
          { name: "longest", tone: "b", of: (sample) => sample.longest },
        ],
        age,
        1,
        "of those placed just then",
      ),
      plot(
        "Oldest in the queue",
        samples,
        [{ name: "for", tone: "a", of: (sample) => (sample.roots ? sample.oldest : 0) }],
        age,
        1,
      ),
      plot("Evicted", samples, [{ name: "pods", tone: "b", of: (sample) => sample.evicted }], number, 1),
    );
  }

  // ---- a recording

  async function load(chosen) {
    stop();
    const file = chosen,
      name = chosen.name;
    problem = "";
    if (file.size > LARGEST) {
      problem = `${file.name} is larger than ${LARGEST >> 20} MiB; phalanx replay reads it on a terminal`;
      return controls();
    }
    show(player, h("p", { class: "muted", role: "status" }, `reading ${file.name} …`));
    try {
      recording = await Recording.read(file, (share) => {
        player.firstChild.textContent = `reading ${file.name}: ${percent(share)}`;
      });
      recording.cluster.name = name;
      app.map.look(recording.cluster);
      at(0); // as it was before the first decision
      document.body.dataset.recorded = "1";
      $("banner").hidden = false;
      show(
        $("banner"),
        h("span", {}, "You are looking at a recording, not at the live cluster: "),
        h("b", {}, name),
        h("button", { type: "button", onclick: leave }, "Back to live"),
      );
      app.recolour();
    } catch (wrong) {
      recording = null;
      problem =
        wrong.name === "NotReadableError"
          ? `${file.name} was written to while it was read: copy it first, or stop what records it`
          : wrong.message;
    }
    controls();
  }

  function leave() {
    stop();
    recording = null;
    delete document.body.dataset.recorded;
    $("banner").hidden = true;
    app.map.look(cluster);
    app.recolour();
    controls();
  }

  app.backToLive = () => recording && leave();

  function at(index) {
    recording.seek(index);
    app.recolour();
    if (element?.slider?.isConnected) showMoment();
  }

  function stop() {
    clearInterval(playing);
    playing = 0;
  }

  function play() {
    if (playing) {
      stop();
      return controls();
    }
    if (recording.at >= recording.moments.length) at(0);
    playing = setInterval(() => {
      at(Math.min(recording.moments.length, recording.at + Math.max(1, Math.round(recording.moments.length / 300))));
      if (recording.at >= recording.moments.length) {
        stop();
        controls();
      }
    }, 100);
    controls();
  }

  function showMoment() {
    const moment = recording.moment;
    element.slider.value = recording.at;
    element.slider.setAttribute("aria-valuetext", moment ? `${clock(moment.now)}, ${moment.text}` : "the beginning");
    show(
      element.moment,
      h(
        "p",
        {},
        h("b", {}, `${number(recording.at)} of ${number(recording.moments.length)}`),
        moment ? ` · ${clock(moment.now)}` : "",
      ),
      h(
        "p",
        { class: "decision", "data-kind": moment?.kind ?? "" },
        moment ? [h("span", { class: "chip" }, moment.kind), " ", moment.text] : "before anything was decided",
      ),
      moment?.why ? h("p", { class: "muted" }, moment.why) : "",
      h(
        "p",
        { class: "muted small" },
        `${plural(recording.cluster.nodes.size, "node")}, ${plural(recording.placed, "pod")} placed, ${plural(recording.waiting, "pod")} waiting`,
      ),
    );
    const queue = recording.queue();
    show(
      element.queue,
      h(
        "h3",
        {},
        queue.length
          ? `${plural(queue.length, "entry", "entries")} in the queue at this moment`
          : "Nothing was pending at this moment",
      ),
      h(
        "ol",
        { class: "cards" },
        queue
          .slice(0, QUEUED)
          .map((root) =>
            h(
              "li",
              { class: "card waits slim", "data-root": root.key },
              h(
                "p",
                {},
                h("b", { title: parts(root.key).name }, short(parts(root.key).name)),
                h(
                  "span",
                  { class: "muted" },
                  ` ${plural(root.pods, "pod")}${root.priority ? ` · priority ${number(root.priority)}` : ""}`,
                ),
              ),
              h(
                "p",
                { class: "why small", title: root.message },
                root.gated ? "held at a gate" : root.message || "not tried yet",
              ),
            ),
          ),
      ),
      queue.length > QUEUED ? h("p", { class: "muted small" }, `and ${number(queue.length - QUEUED)} more`) : "",
    );
  }

  function controls() {
    if (!player?.isConnected) return;
    element.classList.toggle("recorded", Boolean(recording)); // then the live plots are not shown
    const pick = h(
      "label",
      { class: "button" },
      recording ? "Open another" : "Open a recording",
      h("input", {
        type: "file",
        class: "sr",
        id: "recording",
        accept: ".jsonl,.json",
        onchange: (event) => event.target.files[0] && load(event.target.files[0]),
      }),
    );
    if (!recording)
      return show(
        player,
        problem ? h("p", { class: "problem", role: "alert" }, problem) : "",
        h(
          "p",
          { class: "muted" },
          "Made with ",
          h("code", {}, "phalanx up --record run.jsonl"),
          ". It is read in this browser and sent nowhere.",
        ),
        pick,
      );
    element.slider = h("input", {
      type: "range",
      id: "scrub",
      min: 0,
      max: recording.moments.length,
      value: recording.at,
      "aria-label": "Moment of the recording",
      oninput: (event) => {
        stop();
        at(Number(event.target.value));
      },
    });
    element.moment = h("div", { class: "moment", "aria-live": "polite" });
    element.queue = h("div", {});
    const step = (by) => {
      stop();
      at(Math.max(0, Math.min(recording.moments.length, recording.at + by)));
    };
    show(
      player,
      problem ? h("p", { class: "problem" }, problem) : "",
      element.slider,
      h(
        "div",
        { class: "row" },
        h(
          "button",
          { type: "button", id: "back", "aria-label": "◂ back one decision", onclick: () => step(-1) },
          "◂ back",
        ),
        h("button", { type: "button", class: "primary", id: "play", onclick: play }, playing ? "Pause" : "Play"),
        h("button", { type: "button", id: "on", "aria-label": "on ▸ one decision", onclick: () => step(1) }, "on ▸"),
        h("span", { class: "grow" }),
        pick,
      ),
      element.moment,
      element.queue,
    );
    showMoment();
  }

  return {
    open(view) {
      plots = h("div", { class: "plots" });
      player = h("div", { class: "player" });
      element = h(
        "div",
        { class: "times" },
        h("h2", {}, "Time"),
        h(
          "section",
          { class: "hour" },
          h("h3", {}, "The last"),
          h(
            "fieldset",
            { class: "segments", "aria-label": "How far back" },
            [
              ["hour", "hour"],
              ["day", "day"],
              ["week", "week"],
            ].map(([value, text]) =>
              h(
                "label",
                {},
                h("input", {
                  type: "radio",
                  name: "span",
                  value,
                  checked: value === span,
                  onchange: () => lengthen(value),
                }),
                h("span", {}, text),
              ),
            ),
          ),
          plots,
        ),
        h("section", { class: "played" }, h("h3", {}, "A recording"), player),
      );
      show(view, element);
      update();
      controls();
    },
    change: (change) => (!change || change.sample) && update(),
    close: stop,
  };
}
