"""How the page of `torch_xla.debug.report` looks, and what its script does."""

from __future__ import annotations

_COLORS = {
    "compile": ("#b5421d", "#f08a63"),
    "lower": ("#8f6438", "#d9a877"),
    "sync": ("#1f7672", "#5cc0b6"),
    "launch": ("#33698c", "#86bbe0"),
    "upload": ("#6a54a3", "#b3a4ef"),
    "wait": ("#8a6400", "#e2b93f"),
    "host": ("#98407a", "#e594c7"),
    "run": ("#225fa8", "#74aef0"),
    "user": ("#66707d", "#9aa3af"),
    "python": ("#dfe3e8", "#333942"),
    "parameter": ("#225fa8", "#74aef0"),
    "gradient": ("#1f7672", "#5cc0b6"),
    "optimizer-state": ("#6a54a3", "#b3a4ef"),
    "other": ("#b0892e", "#e2b93f"),
    "temporaries": ("#8b929c", "#7d8590"),
    "ink": ("#1b1f24", "#e8eaed"),
}


def _variables(which: int) -> str:
    return "".join(f"--{name}:{colors[which]};" for name, colors in _COLORS.items())


_KINDS = "".join(f".k-{name}{{background:var(--{name});fill:var(--{name})}}" for name in _COLORS)

_LIGHT = (
    ":root{color-scheme:light dark;--paper:#fff;--raised:#f6f7f9;--text:#1b1f24;--dim:#5a6470;"
    f"--rule:#d9dde3;--faint:#e9ecf0;--link:#1a57a0;--on:#fff;{_variables(0)}}}"
)
_DARK = (
    "@media screen and (prefers-color-scheme:dark){:root{--paper:#14171b;--raised:#1c2026;"
    "--text:#e8eaed;--dim:#a2abb6;--rule:#363c45;--faint:#262b32;--link:#8ab8f2;--on:#14171b;"
    f"{_variables(1)}}}}}"
)

_RULES = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;scroll-behavior:smooth}
body{margin:0;background:var(--paper);color:var(--text);
 font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
 font-variant-numeric:tabular-nums}
header,main,footer{max-width:1120px;margin:0 auto;padding:0 24px}
header{padding-top:36px}
footer{padding:28px 24px 40px;font-size:13px}
h1,h2,h3,p,ul,ol,dl,dd,figure,pre{margin:0}
h1{font-size:30px;line-height:1.2;font-weight:650;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{font-size:21px;line-height:1.3;font-weight:650;letter-spacing:-.01em}
h3{font-size:15px;font-weight:600;margin:26px 0 8px}
h3 small{font-size:13px;font-weight:400;margin-left:6px}
a{color:var(--link);text-underline-offset:2px;text-decoration-thickness:1px}
code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,"Liberation Mono",monospace;
 font-size:.88em;overflow-wrap:anywhere}
pre{background:var(--raised);border:1px solid var(--rule);border-radius:6px;padding:10px 14px;
 margin:10px 0;white-space:pre-wrap}
code.whole{white-space:nowrap}
.dim{color:var(--dim)}
.kicker{font-size:13px;color:var(--dim);margin-bottom:4px}
.facts{list-style:none;padding:0;margin-top:8px;display:flex;flex-wrap:wrap;gap:2px 18px;
 font-size:14px;color:var(--dim)}
.facts b{font-weight:500;color:var(--text)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:1px;
 margin-top:24px;background:var(--paper);border:1px solid var(--rule);border-radius:8px;
 overflow:hidden}
.figure{background:var(--paper);padding:12px 14px 11px;box-shadow:0 0 0 1px var(--rule)}
.figure dt{font-size:13px;color:var(--dim)}
.figure dd b{font-size:25px;line-height:1.3;font-weight:600;letter-spacing:-.02em}
.figure dd span{font-size:15px}
.figure .value{white-space:nowrap}
.figure small{display:block;font-size:12px;line-height:1.4}
.findings{margin-top:20px;padding:14px 18px;background:var(--raised);border-radius:8px;
 border-left:3px solid var(--compile)}
.findings.calm{border-left-color:var(--sync)}
.findings h2{font-size:15px;letter-spacing:0}
.findings ul{padding-left:18px;margin-top:4px}
nav{display:flex;flex-wrap:wrap;gap:4px 18px;margin-top:20px;font-size:14px}
section{margin-top:36px;padding-top:22px;border-top:1px solid var(--rule);scroll-margin-top:8px}
section>p{max-width:88ch;margin-top:8px}
section>p.dim{font-size:13.5px;margin-top:10px}
.note-box{padding:8px 12px;background:var(--raised);border-radius:6px;font-size:14px}
.stack{display:flex;height:26px;border-radius:5px;overflow:hidden;background:var(--faint);
 margin-top:8px}
.stack i{display:block;min-width:1px;box-shadow:inset -1px 0 0 var(--paper)}
.stack i:last-child{box-shadow:none}
.legend{list-style:none;padding:0;display:flex;flex-wrap:wrap;gap:3px 18px;margin-top:9px;
 font-size:13.5px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2.5px;margin-right:7px}
.legend i.k-user{background:var(--paper);box-shadow:inset 0 0 0 1.5px var(--user)}
.legend i.k-ink{height:2px;vertical-align:4px;border-radius:0}
.legend b{font-weight:600;margin-left:2px}
.bars{list-style:none;padding:0}
.bars li{display:grid;grid-template-columns:minmax(0,5fr) minmax(0,4fr) 8.5em minmax(0,3.2fr);
 gap:0 14px;align-items:center;padding:4px 0;font-size:14px}
.bars .bar{height:14px}
.bars .bar i{display:block;height:100%;min-width:2px;border-radius:2px}
.bars .much{text-align:right;white-space:nowrap}
.bars .much b{font-weight:600}
.bars .note{font-size:13px}
.bars .what{overflow-wrap:anywhere}
.bars li .dim:empty{display:none}
.bars .much .dim{display:inline-block;min-width:3.7em}
.chart{position:relative;margin-top:6px}
.lane{display:grid;grid-template-columns:112px minmax(0,1fr);align-items:start;margin-top:6px}
.lane-name{font-size:13px;line-height:1.35;padding:1px 10px 0 0;overflow-wrap:anywhere}
.lane-name small{display:block;font-size:12px}
.lane-plot{position:relative;overflow:hidden;background:var(--raised);border-radius:3px}
.lane-plot.tall{overflow:visible}
.chart>.ruler,.chart>.tall{margin-left:112px}
.chart>.tall+.ruler{border-top:1px solid var(--dim);border-bottom:0}
.ruler{position:relative;height:21px;font-size:12px;color:var(--dim);
 border-bottom:1px solid var(--rule)}
.ruler span{position:absolute;bottom:1px;padding-left:5px;white-space:nowrap;line-height:1.4}
.ruler span::before{content:"";position:absolute;left:0;bottom:-2px;height:7px;
 border-left:1px solid var(--dim)}
.chart>.tall+.ruler span{bottom:auto;top:2px}
.chart>.tall+.ruler span::before{bottom:auto;top:-2px}
svg{display:block;width:100%}
svg *{vector-effect:non-scaling-stroke}
svg.flat path{shape-rendering:crispEdges}
.timeline{outline-offset:4px}
.timeline .lane-plot{touch-action:pan-y;cursor:crosshair;user-select:none}
.spans rect{stroke:var(--paper);stroke-width:.6}
.spans .thin{stroke:none}
.spans .k-user{fill:var(--paper);stroke:var(--user);stroke-width:1}
.spans .k-python{stroke:none}
.spans .step{fill:none;stroke:var(--dim);stroke-dasharray:2 3;stroke-width:1}
.label{position:absolute;height:20px;line-height:20px;padding:0 5px;font-size:11.5px;
 white-space:nowrap;overflow:hidden;text-overflow:ellipsis;pointer-events:none;color:var(--on)}
.label.on-user{color:var(--text)}
.select{position:absolute;top:0;bottom:0;background:var(--link);opacity:.18;pointer-events:none}
.controls{display:flex;flex-wrap:wrap;gap:6px;align-items:center;margin:10px 0 4px}
.controls[hidden]{display:none}
button{font:inherit;font-size:13.5px;line-height:1.3;color:var(--text);background:var(--paper);
 border:1px solid var(--rule);border-radius:6px;padding:5px 10px;min-width:34px;cursor:pointer}
button:hover{border-color:var(--dim)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px}
output{font-size:13px;margin-left:6px}
#tip{position:fixed;z-index:9;max-width:min(420px,92vw);padding:7px 10px;border-radius:6px;
 font-size:13px;line-height:1.4;background:var(--text);color:var(--paper);pointer-events:none;
 overflow-wrap:anywhere}
.curve .line{fill:none;stroke:var(--ink);stroke-width:1.5;stroke-linejoin:round}
.curve .grid{fill:none;stroke:var(--text);stroke-opacity:.13;stroke-width:1}
.curve .faint{fill-opacity:.28}
.curve .roof{stroke:var(--compile);stroke-width:2}
.level,.tick{position:absolute;font-size:11.5px;line-height:1.2;color:var(--dim);white-space:nowrap;
 pointer-events:none}
.level{right:100%;padding-right:8px;transform:translateY(-50%)}
.tick{bottom:-18px;transform:translateX(-50%)}
.tick.end{right:0;bottom:-34px;transform:none}
.peak,.dot-name{text-shadow:0 0 2px var(--paper),0 0 2px var(--paper),0 0 4px var(--paper)}
.peak{position:absolute;font-size:12px;font-weight:600;line-height:1.2;white-space:nowrap;
 transform:translate(6px,-115%)}
.peak.left{transform:translate(calc(-100% - 6px),-115%)}
.peak::after{content:"";position:absolute;left:-9.5px;top:calc(115% - 3.5px);width:7px;height:7px;
 border-radius:50%;background:var(--ink)}
.peak.left::after{left:auto;right:-9.5px}
.chart .tall{margin-top:22px}
.roofline{margin-bottom:42px}
.dot{position:absolute;transform:translate(-50%,-50%);border-radius:50%;background:var(--run);
 opacity:.72;border:1.5px solid var(--paper)}
.dot-name{position:absolute;font-size:12px;font-weight:600;line-height:1;white-space:nowrap;
 transform:translate(calc(var(--r) + 4px),-50%);pointer-events:none}
.dot-name.left{transform:translate(calc(-100% - var(--r) - 4px),-50%)}
figcaption{font-size:13.5px;max-width:88ch}
.curve.columns .k-sync{stroke:var(--raised);stroke-width:.5}
.sides{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(400px,100%),1fr));gap:0 40px}
.table{margin-top:12px}
table{width:100%;border-collapse:collapse;font-size:14px}
caption{text-align:left;font-size:13px;color:var(--dim);padding-bottom:2px}
th{font-weight:500;font-size:13px;color:var(--dim);text-align:right;vertical-align:bottom;
 padding:5px 0 5px 16px;border-bottom:1px solid var(--dim);white-space:nowrap}
td{text-align:right;vertical-align:top;padding:5px 0 5px 16px;border-bottom:1px solid var(--faint);
 white-space:nowrap}
th.name,th.text,td.name,td.text{text-align:left;white-space:normal}
th:first-child,td:first-child{padding-left:0}
td.name{min-width:9em}
th.share,td.share{width:150px;text-align:left}
td.share .n{display:inline-block;min-width:3.3em;text-align:right}
.meter{display:inline-block;width:78px;height:9px;background:var(--faint);border-radius:2px;
 overflow:hidden;margin-right:6px}
.meter i{display:block;height:100%}
th button{border:0;background:none;padding:0;min-width:0;font-size:inherit;color:inherit;
 font-weight:inherit}
th button:hover{color:var(--text)}
th[aria-sort] button{color:var(--text)}
th[aria-sort=descending] button::after{content:" \\2193"}
th[aria-sort=ascending] button::after{content:" \\2191"}
.table:not(:has(.all :checked)) tr.more{display:none}
.all{display:inline-block;margin-top:7px;font-size:13.5px;color:var(--link);cursor:pointer}
.all input{margin:0 5px 0 0;vertical-align:-1px}
.paper{display:none}
.recompiles{list-style:none;padding:0}
.recompiles li{padding:12px 0 11px;border-bottom:1px solid var(--faint)}
.recompiles .head{display:flex;flex-wrap:wrap;gap:0 8px;align-items:baseline}
.recompiles .much{margin-left:auto;font-weight:600}
.recompiles p{max-width:none}
.tags{display:flex;gap:6px;margin-top:5px;font-size:12.5px}
.tags span{border:1px solid var(--rule);border-radius:4px;padding:0 7px;color:var(--dim)}
@media (max-width:640px){
 header,main,footer{padding-left:16px;padding-right:16px}
 header{padding-top:22px}
 h1{font-size:25px}
 .figures{grid-template-columns:1fr 1fr}
 .figure dd b{font-size:22px}
 .lane{grid-template-columns:1fr}
 .lane-name{padding-bottom:2px}
 .lane-name small{display:inline;margin-left:8px}
 .chart>.ruler{margin-left:0}
 .chart>.tall,.chart>.tall+.ruler{margin-left:64px}
 .level{white-space:normal;width:64px;text-align:right}
 .ruler .odd,.ruler .far{display:none}
 .bars li{grid-template-columns:minmax(0,1fr) auto;padding:7px 0}
 .bars .bar{grid-column:1/-1;grid-row:2;margin-top:3px}
 .bars .note{grid-column:1/-1}
 .bars .note:empty{display:none}
 .bars .much .dim{min-width:0;margin-left:4px}
 button{padding:8px 12px}
 thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
 table,caption,tbody{display:block}
 tr{display:flex;flex-wrap:wrap;gap:1px 18px;padding:8px 0;border-bottom:1px solid var(--rule)}
 td{display:block;padding:0;border:0;text-align:left}
 td.name{flex:1 0 100%}
 td.number::before,td.text::before{content:attr(data-t) " ";color:var(--dim);font-size:12.5px}
 td.share{width:auto}
}
@media print{
 @page{size:A4;margin:15mm 14mm}
 body{font-size:10.5pt;-webkit-print-color-adjust:exact;print-color-adjust:exact}
 header,main,footer{max-width:none;padding-left:0;padding-right:0}
 header{padding-top:0}
 a{color:inherit;text-decoration:none}
 nav,.controls,.js,#tip,.all{display:none!important}
 .paper{display:block;font-size:9pt;margin-top:3px}
 tr.more{display:none}
 h2,h3{break-after:avoid}
 .lane,.stack,.bars li,.figure,.findings,.recompiles li,tr,figure,.legend{break-inside:avoid}
 .chart,.table{break-inside:avoid}
 .figures{grid-template-columns:repeat(auto-fit,minmax(82px,1fr))}
 .figure{padding:7px 8px}
 .figure dd b{font-size:15pt}
 section{margin-top:20pt;padding-top:12pt}
 table,.bars li{font-size:9.5pt}
 thead{display:table-header-group}
}
"""

STYLE = _LIGHT + _DARK + _RULES + _KINDS

SCRIPT = r"""
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
"""
