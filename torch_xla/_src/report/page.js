"use strict";
(() => {
for (const e of document.querySelectorAll(".js")) e.hidden = false;

// Tables: a click on a title sorts.
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((th, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...th.childNodes);
    th.append(button);
    button.onclick = () => {
      const letters = th.classList.contains("name") || th.classList.contains("text");
      const down = th.getAttribute("aria-sort") ? th.getAttribute("aria-sort") === "ascending"
                                                : !letters;
      for (const other of table.querySelectorAll("[aria-sort]")) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = row => row.cells[column].dataset.v;
      const compare = letters ? (a, b) => value(a).localeCompare(value(b))
                              : (a, b) => value(a) - value(b);
      const shown = [...body.rows].filter(row => !row.classList.contains("more")).length;
      const rows = [...body.rows].sort((a, b) => down ? compare(b, a) : compare(a, b));
      rows.forEach((row, i) => row.classList.toggle("more", i >= shown));
      body.append(...rows);
    };
  });
}

// The timeline.
const stored = document.getElementById("spans");
if (!stored) return;
const data = JSON.parse(stored.textContent);
const chart = document.querySelector(".timeline");
const plots = [...chart.querySelectorAll(".lane-plot")];
const ruler = chart.querySelector(".ruler");
const tip = document.getElementById("tip");
const told = document.querySelector(".controls output");
const WIDE = 10000, ROW = 20, WORD = "&nbsp;";
let from = 0, to = data.length;
const escape = s => s.replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;",
                                                 '"': "&quot;"})[c]);
const digits = v => v >= 99.95 ? Math.round(v).toLocaleString("en") :
                    v >= 9.995 ? v.toFixed(1) : v.toFixed(2);
const time = units => {
  const s = units / 1e7;
  if (s >= 120) return Math.floor(s / 60) + WORD + "min " + Math.floor(s % 60) + WORD + "s";
  for (const [unit, scale] of [["s", 1], ["ms", 1e-3]])
    if (s >= scale * 0.9995) return digits(s / scale) + WORD + unit;
  return units <= 0 ? "0" : digits(s / 1e-6) + WORD + "\u00b5s";
};

for (const lane of data.lanes) {  // numbers become spans, once
  const flat = lane.spans, spans = [];
  let at = 0;
  for (let i = 0; i < flat.length; i += 6) {
    at += flat[i];
    spans.push({b: at, e: at + flat[i + 1], k: data.kinds[flat[i + 2]], r: flat[i + 3],
                n: flat[i + 4], d: flat[i + 5]});
  }
  lane.spans = spans;
}

// Wide spans by themselves; of those too narrow to be told apart the kind that takes most.
function drawLane(lane, plot) {
  const scale = WIDE / (to - from), pixels = Math.max(plot.clientWidth, 100), pixel = WIDE / pixels;
  const boxes = [], labels = [], cells = [];
  if (lane.base >= 0)
    boxes.push(`<rect class="k-python" y="${lane.base * ROW}" width="${WIDE}"
      height="${(lane.rows - lane.base) * ROW}"/>`);
  const add = (kind, row, left, right, i, count) => boxes.push(
    `<rect class="k-${kind}${right - left < 10 * pixel ? " thin" : ""}" data-i="${i}"
      data-c="${count}" x="${left.toFixed(1)}" y="${row * ROW + 1}"
      width="${(right - left).toFixed(1)}" height="${ROW - 2}"/>`);
  lane.spans.forEach((s, i) => {
    if (s.e < from || s.b > to) return;
    const left = (s.b - from) * scale, right = (s.e - from) * scale;
    if (right - left < 3 * pixel) {
      const row = cells[s.r] = cells[s.r] || new Map();
      const cell = Math.floor((left + right) / 2 / pixel);
      const kinds = row.get(cell) || row.set(cell, {}).get(cell);
      const sum = kinds[s.k] = kinds[s.k] || {length: 0, i, count: 0};
      sum.length += s.e - s.b;
      sum.count++;
      return;
    }
    const a = Math.max(left, -100), b = Math.min(right, WIDE + 100);
    add(s.k, s.r, a, b, i, 1);
    const start = Math.max(a, 0) / WIDE, part = Math.min(b / WIDE, 1) - start;
    const words = `${escape(data.names[s.n])} ${time(s.e - s.b)}`;
    if (part * pixels > 44 && labels.length < 300)
      labels.push(`<span class="label on-${s.k}" style="left:${start * 100}%;
        width:${part * 100}%;top:${s.r * ROW}px">${words}</span>`);
  });
  cells.forEach((row, number) => {
    let run = null;
    const end = () => run && add(run.kind, number, run.a * pixel, run.b * pixel, run.i, run.count);
    for (const [cell, kinds] of [...row].sort((x, y) => x[0] - y[0])) {
      const kind = Object.keys(kinds).reduce((x, y) => kinds[x].length < kinds[y].length ? y : x);
      if (run && run.kind === kind && run.b === cell) {
        run.b++;
        run.count += kinds[kind].count;
        continue;
      }
      end();
      run = {kind, a: cell, b: cell + 1, i: kinds[kind].i, count: kinds[kind].count};
    }
    end();
  });
  const seen = data.steps.filter(s => s[0] >= from && s[0] <= to);
  let last = -WIDE;
  if (seen.length < pixels / 24) for (const [end] of seen) {
    const x = (end - from) * scale;
    if (x - last < 4 * pixel) continue;
    boxes.push(`<path class="step" d="M${x.toFixed(1)} 0V${lane.rows * ROW}"/>`);
    last = x;
  }
  plot.querySelector("svg").innerHTML = boxes.join("");
  for (const old of plot.querySelectorAll(".label")) old.remove();
  plot.insertAdjacentHTML("beforeend", labels.join(""));
}

// Between marks: from two minutes on, whole parts of a minute or hour.
function timeStep(length, most) {
  const nice = rough => {
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map(f => f * power).find(s => s >= rough * 0.999999);
  };
  if (length < 120e7) return nice(length / most);
  const steps = [15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600];
  const found = steps.find(s => s * 1e7 * most >= length);
  return found ? found * 1e7 : nice(length / most / 3600e7) * 3600e7;
}

function draw() {
  const length = to - from;
  data.lanes.forEach((lane, i) => drawLane(lane, plots[i]));
  const most = Math.max(2, Math.min(8, Math.floor(ruler.clientWidth / 90)));
  const step = timeStep(length, most);
  const marks = [], unit = to >= 1e7 ? 1e7 : to >= 1e4 ? 1e4 : 10;
  const places = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  const clock = (whole, word) => Math.floor(whole / 60) + ":" +
    String(whole % 60).padStart(2, "0") + WORD + word;
  const minutes = to >= 120e7 && step >= 1e7, hours = to >= 7200e7 && step >= 60e7;
  const label = at => !at ? 0 : hours ? clock(Math.round(at / 60e7), "h") :
    minutes ? clock(Math.round(at / 1e7), "min") :
    (at / unit).toFixed(places) + WORD + {1e7: "s", 1e4: "ms", 10: "\u00b5s"}[unit];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step)
    if ((at - from) / length * ruler.clientWidth < ruler.clientWidth - 64)
      marks.push(`<span style="left:${(at - from) / length * 100}%">
        ${label(at)}</span>`);
  ruler.innerHTML = marks.join("");
  told.innerHTML = length >= data.length ? "" : `${time(length)} from ${time(from)}`;
}

function show(a, b) {
  const length = Math.min(Math.max(b - a, 20), data.length);
  const middle = (a + b) / 2;
  from = Math.max(0, Math.min(middle - length / 2, data.length - length));
  to = from + length;
  draw();
}

function step(which) {
  const steps = data.steps.slice().sort((a, b) => a[1] - b[1]);
  if (!steps.length) return;
  const s = which === "first" ? data.steps[0] : which === "last" ? data.steps.at(-1) :
            which === "longest" ? steps.at(-1) : steps[steps.length >> 1];
  show(s[0] - s[1] * 1.08, s[0] + s[1] * 0.08);
}

const acts = {
  in: () => show(from + (to - from) / 4, to - (to - from) / 4),
  out: () => show(from - (to - from) / 2, to + (to - from) / 2),
  left: () => show(from - (to - from) / 4, to - (to - from) / 4),
  right: () => show(from + (to - from) / 4, to + (to - from) / 4),
  all: () => show(0, data.length),
};
for (const button of document.querySelectorAll(".controls button")) {
  const name = button.dataset.do;
  button.onclick = acts[name] || (() => step(name));
  if (!acts[name] && !data.steps.length) button.remove();
}
chart.onkeydown = event => {
  const name = {"+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right",
                0: "all"}[event.key];
  if (name && !event.ctrlKey && !event.metaKey) { acts[name](); event.preventDefault(); }
};

// Drag to zoom; point at a span for its name.
let start = null, box = null;
const part = (plot, event) => {
  const r = plot.getBoundingClientRect();
  return Math.max(0, Math.min(1, (event.clientX - r.left) / r.width));
};
const point = (plot, event) => {
  const rect = event.target.closest && event.target.closest("rect[data-i]");
  if (!rect) { tip.hidden = true; return; }
  const lane = data.lanes[plots.indexOf(plot)], s = lane.spans[rect.dataset.i];
  const more = rect.dataset.c > 1 ? `<br>and ${rect.dataset.c - 1} more like it` : "";
  const details = data.details[s.d] ? `<br>${escape(data.details[s.d])}` : "";
  tip.innerHTML = `<b>${escape(data.names[s.n])}</b> ${time(s.e - s.b)}, from ${time(s.b)}
    ${details}${more}`;
  tip.hidden = false;
  const left = Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8);
  tip.style.left = Math.max(8, left) + "px";
  const below = event.clientY + 18, above = event.clientY - tip.offsetHeight - 12;
  tip.style.top = (below + tip.offsetHeight < innerHeight ? below : above) + "px";
};
plots.forEach(plot => {
  plot.onpointerdown = event => {
    if (event.button) return;
    point(plot, event);
    if (event.pointerType === "touch") return;
    start = part(plot, event);
    plot.setPointerCapture(event.pointerId);
  };
  plot.onpointermove = event => {
    if (start === null) { if (event.pointerType !== "touch") point(plot, event); return; }
    const now = part(plot, event);
    tip.hidden = true;
    if (!box) { box = document.createElement("div"); box.className = "select"; plot.append(box); }
    box.style.left = Math.min(start, now) * 100 + "%";
    box.style.width = Math.abs(now - start) * 100 + "%";
  };
  plot.onpointerup = event => {
    if (start === null) return;
    const now = part(plot, event), a = Math.min(start, now), b = Math.max(start, now);
    start = null;
    if (box) box.remove();
    box = null;
    if ((b - a) * plot.clientWidth > 4) show(from + a * (to - from), from + b * (to - from));
  };
  plot.onpointerleave = () => { tip.hidden = true; };
  plot.ondblclick = () => show(0, data.length);
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) { width = innerWidth; draw(); }
});
addEventListener("beforeprint", acts.all);
draw();
})();
