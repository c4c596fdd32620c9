// Login, questions and the live feed. Reconnects by itself and says so; a server that restarted is read again.

export class Problem extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

async function call(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Problem(0, "the server does not answer");
  }
  let body;
  try {
    body = await response.json();
  } catch {
    throw new Problem(response.status, "the server's answer could not be read");
  }
  if (!response.ok) throw new Problem(response.status, body.message ?? `error ${response.status}`);
  return body;
}

const post = (path, body) =>
  call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

const query = (path, values) => call(`${path}?${new URLSearchParams(values)}`);

export const ask = {
  session: () => call("api/session"),
  login: (secret) => post("api/session", secret),
  logout: () => call("api/session", { method: "DELETE" }),
  snapshot: (most) => call("api/snapshot", { signal: AbortSignal.timeout(most) }),
  node: (name) => query("api/node", { name }),
  devices: (key) => query("api/devices", { key }),
  members: (key) => query("api/members", { key }),
  why: (key, relax = true) => query("api/why", { key, relax }),
  plan: (key) => query("api/plan", { key }),
  events: (key) => query("api/events", { key }),
  object: (key) => query("api/object", { key }),
  history: (span) => query("api/history", { span }),
  manifest: (key, change = {}) => query("api/manifest", { key, ...change }),
  whatif: (question) => post("api/whatif", question),
};

// A question that is asked again with every change, but never twice at once: an answer that takes longer than the time
// between two changes would otherwise never be shown. What changes meanwhile is asked after it.
export function oneAtATime(question) {
  let running = false,
    again = false;
  return async () => {
    if (running) return (again = true);
    running = true;
    try {
      do {
        again = false;
        await question();
      } while (again);
    } finally {
      running = false;
    }
  };
}

export class Feed extends EventTarget {
  constructor(cluster) {
    super();
    this.cluster = cluster;
    this.state = "starting";
    this.wait = 500;
    this.heard = 0; // when the last message came
    this.silent = 20_000; // milliseconds without a message, though the server sends one every five seconds
    setInterval(() => this.watch(), 2000);
  }

  // A server that hangs, or a network that is gone, closes no connection: what is shown would seem to be live.
  watch() {
    if (this.state !== "live" || Date.now() - this.heard < this.silent) return;
    this.say("away", "nothing was heard from the server for a while; trying again");
    this.start();
  }

  say(state, text = "") {
    if (state === this.state && !text) return;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, text } }));
  }

  async start() {
    clearTimeout(this.timer);
    this.source?.close();
    try {
      const snapshot = await ask.snapshot(this.silent);
      this.cluster.load(snapshot);
      this.listen(snapshot.id);
    } catch (problem) {
      if (problem.code === 401) return this.say("login", problem.message);
      this.say("away", problem.message);
      this.again();
    }
  }

  // The login ends here and on the server; the page stays, with what it showed last.
  async leave() {
    clearTimeout(this.timer);
    this.source?.close();
    try {
      await ask.logout();
      this.say("login", "you are logged out");
    } catch (problem) {
      this.say(problem.code === 401 ? "login" : "away", problem.message);
    }
  }

  again() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.start(), this.wait);
    this.wait = Math.min(this.wait * 2, 10000);
  }

  listen(after) {
    this.heard = Date.now();
    const source = (this.source = new EventSource(`api/feed?after=${encodeURIComponent(after)}`));
    source.onopen = () => {
      this.wait = 500;
      this.say("live");
    };
    source.onmessage = (event) => {
      this.heard = Date.now();
      this.cluster.apply(JSON.parse(event.data));
    };
    source.addEventListener("reset", () => this.start());
    source.onerror = () => {
      this.say("away", "the server does not answer; trying again");
      // The browser reconnects by itself and names the last change it saw, unless it was refused.
      if (source.readyState === EventSource.CLOSED) this.again();
    };
  }
}
