// The page is whole without this: it brings into it what has changed, and draws plots of the
// last minutes from what /metrics counts.
"use strict";

const every = 2000; // ms between two looks
const most = 150; // looks that the plots reach back
const patience = 10000; // ms that an answer may take

const alive = document.getElementById("alive");
const plots = document.getElementById("plots");

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(patience) });
  const text = await answer.text();
  if (!answer.ok) throw new Error(text.trim() || answer.statusText);
  return text;
}

// replace brings the tables of a new page into this one, unless somebody is selecting text in them.
function replace(text) {
  if (!document.getSelection().isCollapsed) return;
  const page = new DOMParser().parseFromString(text, "text/html");
  const moved = [...document.querySelectorAll(".scroll")].map((e) => e.scrollLeft);
  for (const id of ["top", "tables"]) document.getElementById(id).replaceWith(page.getElementById(id));
  document.querySelectorAll(".scroll").forEach((e, i) => { if (moved[i]) e.scrollLeft = moved[i]; });
  document.title = page.title;
}

// parse reads Prometheus' text format: calls each(name, labels, value) for the samples that begin with prefix.
function parse(text, prefix, each) {
  for (const line of text.split("\n")) {
    if (!line.startsWith(prefix)) continue;
    const brace = line.indexOf("{"), end = line.lastIndexOf("}");
    const labels = {};
    if (brace > 0) {
      for (const m of line.slice(brace + 1, end).matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
        labels[m[1]] = m[2].replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
      }
    }
    const name = brace > 0 ? line.slice(0, brace) : line.split(" ")[0];
    each(name, labels, Number(line.slice((brace > 0 ? end : name.length) + 1).trim().split(" ")[0]));
  }
}

// counters adds the volumes up: what is counted since the target began.
function counters(text) {
  const c = { at: performance.now(), reads: 0, writes: 0, read: 0, written: 0, latency: { read: new Map(), write: new Map() } };
  const sums = {
    iser_target_volume_reads_total: "reads", iser_target_volume_writes_total: "writes",
    iser_target_volume_read_bytes_total: "read", iser_target_volume_written_bytes_total: "written",
  };
  parse(text, "iser_target_volume_", (name, labels, value) => {
    if (sums[name]) c[sums[name]] += value;
    if (name === "iser_target_volume_latency_seconds_bucket") {
      const h = c.latency[labels.kind], le = labels.le === "+Inf" ? Infinity : Number(labels.le);
      if (h) h.set(le, (h.get(le) || 0) + value);
    }
  });
  return c;
}

// quantile of what two cumulative histograms differ by, seconds, interpolated within its bucket as
// Prometheus does; null when nothing was counted.
function quantile(q, now, before) {
  const bounds = [...now.keys()].sort((a, b) => a - b);
  const n = bounds.map((b) => now.get(b) - (before.get(b) || 0));
  const all = n[n.length - 1];
  if (!(all > 0)) return null;
  const rank = q * all;
  const i = n.findIndex((v) => v >= rank);
  const low = i > 0 ? bounds[i - 1] : 0, under = i > 0 ? n[i - 1] : 0;
  if (bounds[i] === Infinity) return low;
  return low + (bounds[i] - low) * (rank - under) / Math.max(n[i] - under, 1);
}

const si = (v) => {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) if (v >= size) return (v / size).toPrecision(3) + " " + unit;
  return v < 10 ? v.toFixed(1) + " " : v.toFixed(0) + " ";
};
const seconds = (v) => (v >= 1 ? v.toPrecision(3) + " s" : v >= 1e-3 ? (v * 1e3).toPrecision(3) + " ms" : (v * 1e6).toFixed(0) + " µs");

const figures = [
  { title: "Throughput", read: (d) => d.read, write: (d) => d.written, text: (v) => si(v) + "B/s", least: 1e6 },
  { title: "Commands", read: (d) => d.reads, write: (d) => d.writes, text: (v) => si(v) + "IOPS", least: 10 },
  { title: "Latency, median", read: (d) => d.p50.read, write: (d) => d.p50.write, text: seconds, least: 100e-6 },
  { title: "Latency, 99th percentile", read: (d) => d.p99.read, write: (d) => d.p99.write, text: seconds, least: 100e-6 },
];

const element = (name, attributes) => {
  const e = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  return e;
};

function build() {
  for (const f of figures) {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption");
    f.values = {};
    caption.append(f.title);
    for (const kind of ["read", "write"]) {
      f.values[kind] = document.createElement("span");
      f.values[kind].className = kind;
      caption.append(f.values[kind]);
    }
    f.svg = element("svg", { role: "img", "aria-label": f.title + " of reads and writes of all volumes, the last minutes" });
    figure.append(caption, f.svg);
    plots.append(figure);
  }
  plots.hidden = false;
}

// ceiling is the smallest of 1, 2, 5 times a power of ten that is not below v.
function ceiling(v) {
  const p = 10 ** Math.floor(Math.log10(v));
  return p * [1, 2, 5, 10].find((m) => m * p >= v * 0.999);
}

function draw(history) {
  for (const f of figures) {
    const w = f.svg.clientWidth || 300, h = 150, top = 10, bottom = 18;
    const values = history.flatMap((d) => [f.read(d), f.write(d)]).filter((v) => v !== null);
    const high = ceiling(Math.max(f.least, ...values));
    const x = (i) => w - (history.length - 1 - i) * w / (most - 1);
    const y = (v) => top + (h - top - bottom) * (1 - v / high);
    f.svg.setAttribute("viewBox", `0 0 ${w} ${h}`);
    f.svg.replaceChildren();
    for (const v of [0, high / 2, high]) {
      f.svg.append(element("line", { class: "grid", x1: 0, x2: w, y1: y(v), y2: y(v) }));
      if (v > 0) {
        const t = element("text", { x: 2, y: y(v) + 12 });
        t.textContent = f.text(v);
        f.svg.append(t);
      }
    }
    for (const [at, anchor, words] of [[0, "start", `${most * every / 60000} min ago`], [w, "end", "now"]]) {
      const t = element("text", { x: at, y: h - 5, "text-anchor": anchor });
      t.textContent = words;
      f.svg.append(t);
    }
    for (const kind of ["read", "write"]) {
      let run = [];
      const line = () => {
        if (run.length === 1) run.push(run[0].replace(/^[^,]+/, (v) => Number(v) + 1)); // a dot
        if (run.length) f.svg.append(element("polyline", { class: kind, points: run.join(" ") }));
        run = [];
      };
      history.forEach((d, i) => {
        const v = f[kind](d);
        if (v === null) line(); else run.push(`${x(i).toFixed(1)},${y(v).toFixed(1)}`);
      });
      line();
      const last = history.length ? f[kind](history[history.length - 1]) : null;
      f.values[kind].textContent = `${kind} ${last === null ? "–" : f.text(last)}`;
    }
  }
}

let before = null;
const history = [];

function enter(now) {
  if (before) {
    const dt = (now.at - before.at) / 1000, rate = (k) => (now[k] - before[k]) / dt;
    const d = { reads: rate("reads"), writes: rate("writes"), read: rate("read"), written: rate("written"), p50: {}, p99: {} };
    for (const kind of ["read", "write"]) {
      d.p50[kind] = quantile(0.5, now.latency[kind], before.latency[kind]);
      d.p99[kind] = quantile(0.99, now.latency[kind], before.latency[kind]);
    }
    // Counters that have gone down are those of another process, or of a volume that has left.
    if (Math.min(d.reads, d.writes, d.read, d.written) >= 0) history.push(d);
    if (history.length > most) history.shift();
  }
  before = now;
}

async function look(tables) {
  try {
    const [page, metrics] = await Promise.all([tables ? ask("./") : null, ask("metrics")]);
    if (page) replace(page);
    enter(counters(metrics));
    draw(history);
    alive.textContent = "live, every " + every / 1000 + " s";
    alive.className = "";
  } catch (e) {
    alive.textContent = "not up to date: " + e.message;
    alive.className = "lost";
  }
}

build();
(async () => {
  for (let first = true; ; first = false) {
    if (!document.hidden) await look(!first);
    await new Promise((done) => setTimeout(done, every));
  }
})();
addEventListener("resize", () => draw(history));
