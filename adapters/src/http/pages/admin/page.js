// The admin page: reads /metrics every two seconds and keeps nothing when it is closed.

const EVERY_MS = 2_000;
const POINTS_MAX = 150;
// The width of a plot with fewer points.
const POINTS_MIN = 30;
const LINES_MAX = 6;

let paused = false;
let timer = null;
let last = null;
let state = null;

// ---------------------------------------------------------------- reading metrics

/** Every sample by the name of its metric: [{ labels, value }]. */
function parse(text) {
  const found = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-z_]+)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(/([a-z_]+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    if (!found.has(match[1])) found.set(match[1], []);
    found.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return found;
}

const samples = (metrics, name) => metrics.get(name) ?? [];
const value = (metrics, name) => samples(metrics, name)[0]?.value ?? null;

/** Sums by what `by` says about the labels; samples for which it returns nothing do not count. */
function sums(metrics, name, by) {
  const found = new Map();
  for (const { labels, value } of samples(metrics, name)) {
    const group = by(labels);
    if (group !== null) found.set(group, (found.get(group) ?? 0) + value);
  }
  return found;
}

/** How much each sum has grown per second. A smaller sum means that the service was started again. */
function rates(now, before, seconds) {
  return new Map([...now].map(([group, sum]) => [group, Math.max(0, sum - (before.get(group) ?? 0)) / seconds]));
}

/** A quantile of what a histogram has counted in between, as Prometheus interpolates it; `null` if that is nothing. */
function quantile(wanted, name, now, before, chosen = () => true) {
  const bound = ({ le, ...rest }) => (chosen(rest) ? le : null);
  const [ends, starts] = [sums(now, `${name}_bucket`, bound), sums(before, `${name}_bucket`, bound)];
  const buckets = [...ends].map(([le, count]) => [le === "+Inf" ? Infinity : Number(le), count - (starts.get(le) ?? 0)]);
  buckets.sort(([a], [b]) => a - b);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  let [from, under] = [0, 0];
  for (const [to, count] of buckets) {
    if (count >= wanted * total) {
      return to === Infinity ? from : from + ((to - from) * (wanted * total - under)) / (count - under || 1);
    }
    [from, under] = [to, count];
  }
  return from;
}

// ---------------------------------------------------------------- words for numbers

const rounded = (number) => number.toLocaleString("en", { maximumSignificantDigits: 3 });
const count = (number) => (number < 1000 ? rounded(number) : Math.round(number).toLocaleString("en"));
const perSecond = (number) => `${rounded(number)}/s`;
const time = (seconds) => (seconds < 1 ? `${rounded(seconds * 1000)} ms` : `${rounded(seconds)} s`);
function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; number >= 1024 && unit < units.length - 1; unit += 1) number /= 1024;
  return `${rounded(number)} ${units[unit]}`;
}
function age(seconds) {
  const [days, hours, minutes] = [seconds / 86400, seconds / 3600, seconds / 60].map(Math.floor);
  if (days > 0) return `${days} d ${hours % 24} h`;
  return hours > 0 ? `${hours} h ${minutes % 60} min` : `${minutes} min`;
}

const REASONS = {
  starting: "The service is starting.",
  draining: "The service is about to stop.",
  unreachable: "The storage engine does not respond.",
  write_failed: "A write to storage failed.",
  full: "The storage is full.",
  damaged: "The log is damaged.",
  files_missing: "The files of the log were deleted, moved or replaced.",
  diverged: "The history in the log has changed.",
  another_log: "The log lacks commits that this node has applied.",
  foreign: "Another program has written to the log.",
  unsupported_format: "The log was written by a different version of petstore.",
  cannot_open: "The storage cannot be opened.",
  not_durable: "The storage engine promises less durability than required.",
  stopped: "An internal component has stopped: restart the service.",
};

// ---------------------------------------------------------------- plots

/**
 * One plot: its title, how its values are written, and what it shows now: [[name, value or null]]. An optional one is
 * hidden while it has nothing to show, for example the disk of an engine on another machine.
 */
class Plot {
  constructor(title, write, read, { optional = false } = {}) {
    this.write = write;
    this.read = read;
    this.optional = optional;
    this.lines = new Map();
    this.length = 0;
    const card = element("plot").content.cloneNode(true).firstElementChild;
    card.querySelector("h3").textContent = title;
    [this.title, this.card] = [title, card];
    element("plots").append(card);
  }

  add(now, before, seconds) {
    const shown = this.read(now, before, seconds);
    for (const [name] of shown) {
      if (!this.lines.has(name) && this.lines.size < LINES_MAX) {
        this.lines.set(name, Array(this.length).fill(null));
      }
    }
    const values = new Map(shown);
    for (const [name, points] of this.lines) {
      points.push(values.get(name) ?? null);
      if (points.length > POINTS_MAX) points.shift();
    }
    this.length = Math.min(POINTS_MAX, this.length + 1);
    this.draw();
  }

  draw() {
    const largest = Math.max(0, ...[...this.lines.values()].flat().filter((point) => point !== null));
    const top = nice(largest);
    this.card.hidden = this.optional && this.lines.size === 0;
    const [svg, list] = [this.card.querySelector(".frame svg"), this.card.querySelector("ul")];
    svg.querySelectorAll("path:not(.grid)").forEach((path) => path.remove());
    const items = [...this.lines].map(([name, points], index) => {
      svg.append(path(points, top, index));
      return item(name, points.at(-1), index, this.write);
    });
    list.replaceChildren(...items);
    this.card.querySelector(".top").textContent = largest > 0 ? this.write(top) : "";
    const said = [...this.lines].map(([name, points]) => `${name} ${written(points.at(-1), this.write)}`);
    svg.setAttribute("aria-label", `${this.title}, now: ${said.join(", ") || "nothing yet"}`);
  }

  clear() {
    this.lines.clear();
    this.length = 0;
    this.draw();
  }
}

const written = (value, write) => (value === null || value === undefined ? "–" : write(value));

/** The next of 1, 2, 5, 10, 20 … */
function nice(largest) {
  if (largest <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(largest));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= largest * 0.999) ?? largest;
}

function svgElement(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

function path(points, top, index) {
  let [drawn, pen] = ["", "M"];
  points.forEach((point, number) => {
    if (point === null) {
      pen = "M";
      return;
    }
    const x = 300 - (points.length - 1 - number) * (300 / (Math.max(POINTS_MIN, points.length) - 1));
    drawn += `${pen}${x.toFixed(1)} ${(99 - (98 * point) / top).toFixed(1)}`;
    // A single point would be invisible.
    if (pen === "M") drawn += "h0.5";
    pen = "L";
  });
  return svgElement("path", { class: `s${index}`, d: drawn });
}

function item(name, value, index, write) {
  const [entry, label, number] = ["li", "span", "strong"].map((tag) => document.createElement(tag));
  const swatch = svgElement("svg", { viewBox: "0 0 24 8", "aria-hidden": "true" });
  swatch.append(svgElement("path", { class: `s${index}`, d: "M0 4H24" }));
  label.textContent = label.title = name;
  number.textContent = written(value, write);
  entry.append(swatch, label, number);
  return entry;
}

const isApi = (labels) => labels.route.startsWith("/v1/");
const request = (labels) => `${labels.method} ${labels.route}`;
const grown = (name, by) => (now, before, seconds) => [...rates(sums(now, name, by), sums(before, name, by), seconds)];
const quantiles = (name, prefix, chosen) => (now, before) =>
  [50, 95, 99].map((percent) => [`${prefix}p${percent}`, quantile(percent / 100, name, now, before, chosen)]);
// Of a metric that this service has.
const percentiles = (title, name) => (now, before) =>
  value(now, `${name}_count`) === null ? [] : [50, 99].map((percent) => [`${title} p${percent}`, quantile(percent / 100, name, now, before)]);
const gauges = (pairs) => (now) =>
  pairs.map(([title, name]) => [title, value(now, name)]).filter(([, value]) => value !== null);

const all = (name, title) => (now, before, seconds) =>
  grown(name, () => title)(now, before, seconds);
const together = (...parts) => (now, before, seconds) => parts.flatMap((part) => part(now, before, seconds));
const failed = (labels) => (Number(labels.status) >= 400 ? `${request(labels)} ${labels.status[0]}xx` : null);

const plots = () => [
  new Plot("Requests by route", perSecond, grown("petstore_http_requests_total", request)),
  new Plot("Rejected and failed requests", perSecond, grown("petstore_http_requests_total", failed)),
  new Plot("Latency", time, quantiles("petstore_http_request_duration_seconds", "", isApi)),
  new Plot("Commits", perSecond, together(all("petstore_commit_events_count", "commits"), all("petstore_commit_events_sum", "pets"))),
  new Plot("Append and sync", time, together(
    percentiles("append", "petstore_log_append_duration_seconds"),
    percentiles("sync", "petstore_log_sync_duration_seconds"),
  )),
  new Plot("Writer queue", count, gauges([["waiting", "petstore_writer_queue"]])),
  new Plot("Position", count, gauges([["last commit", "petstore_log_position"]])),
  new Plot("Lag", count, gauges([["commits behind the log", "petstore_replica_lag_commits"]])),
  new Plot("Memory", bytes, gauges([["in use", "process_resident_memory_bytes"]])),
  new Plot("Disk", bytes, gauges([["free", "petstore_disk_free_bytes"], ["log", "petstore_log_bytes"]]), { optional: true }),
  new Plot("Connections", count, (now) =>
    samples(now, "petstore_http_connections").map(({ labels, value }) => [labels.listener, value])),
  new Plot("Requests with an invalid key", perSecond, grown("petstore_authentication_failures_total", (labels) => labels.reason)),
];
let drawn = [];

// ---------------------------------------------------------------- state and table

function showState(metrics) {
  const ready = value(metrics, "petstore_ready") === 1;
  const reason = samples(metrics, "petstore_not_ready").find(({ value }) => value === 1)?.labels.reason;
  const word = ready ? "Ready" : "Not ready";
  const why = ready ? "Reads and writes work." : (REASONS[reason] ?? reason ?? "");
  if (state !== null && state !== word + why) say(`${word}. ${why}`);
  state = word + why;
  element("state").textContent = word;
  element("state").classList.toggle("bad", !ready);
  element("reason").textContent = why;
  const store = samples(metrics, "petstore_store_info")[0]?.labels;
  element("promise").textContent = store ? `Durability: ${store.promise}.` : "";
  // Nothing for a metric that this service does not have.
  const gauge = (name, write) => samples(metrics, name).map(({ value }) => write(value))[0];
  const now = Date.now() / 1000;
  const facts = [
    ["Engine", store && `${store.engine}, ${store.durability}`],
    ["Version", samples(metrics, "petstore_build_info")[0]?.labels.version],
    ["Uptime", gauge("process_start_time_seconds", (at) => age(now - at))],
    ["Pets", gauge("petstore_pets", count)],
    ["Position", gauge("petstore_log_position", count)],
    ["Lag", gauge("petstore_replica_lag_commits", count)],
    ["Free disk space", gauge("petstore_disk_free_bytes", bytes)],
    ["Certificate", gauge("petstore_tls_certificate_expiry_timestamp_seconds", (at) => `${Math.floor((at - now) / 86400)} days left`)],
  ];
  const entry = ([name, text]) => {
    const [group, term, detail] = ["div", "dt", "dd"].map((tag) => document.createElement(tag));
    [term.textContent, detail.textContent] = [name, text];
    group.append(term, detail);
    return group;
  };
  element("facts").replaceChildren(...facts.filter(([, text]) => text).map(entry));
}

function showDeprecated(metrics) {
  const calls = samples(metrics, "petstore_deprecated_calls_total")
    .filter(({ value }) => value > 0)
    .sort((a, b) => b.value - a.value);
  const rows = calls.slice(0, 100).map(({ labels, value }) => {
    const row = document.createElement("tr");
    for (const text of [labels.key, count(value)]) row.insertCell().textContent = text;
    row.lastChild.className = "number";
    return row;
  });
  element("rows").replaceChildren(...rows);
  element("deprecated").hidden = rows.length === 0;
  element("none").hidden = rows.length > 0;
}

// ---------------------------------------------------------------- looking

async function enter() {
  const { text } = await call("metrics");
  show(parse(text));
}

async function look() {
  clearTimeout(timer);
  try {
    await enter();
  } catch (error) {
    if ([401, 403].includes(error.status)) return signOut(key === null ? "" : error.message);
    element("problem").textContent = `${error.message} The figures are out of date.`;
  }
  if (!paused && !document.hidden) start();
}

const start = () => (timer = setTimeout(look, EVERY_MS));

function show(metrics) {
  const now = { at: performance.now(), metrics };
  element("sign-in").hidden = true;
  element("overview").hidden = element("pause").hidden = false;
  element("sign-out").hidden = key === null;
  element("problem").textContent = "";
  if (drawn.length === 0) drawn = plots();
  showState(metrics);
  showDeprecated(metrics);
  if (last) drawn.forEach((plot) => plot.add(metrics, last.metrics, (now.at - last.at) / 1000));
  last = now;
  element("freshness").textContent = `Updated at ${new Date().toLocaleTimeString()}`;
}

function stop() {
  clearTimeout(timer);
  [last, state] = [null, null];
  drawn.forEach((plot) => plot.clear());
  element("overview").hidden = element("pause").hidden = true;
}

element("pause").addEventListener("click", () => {
  paused = !paused;
  element("pause").textContent = paused ? "Resume" : "Pause";
  if (paused) clearTimeout(timer);
  else look();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !paused && element("sign-in").hidden) look();
});

key = remembered();
look();
