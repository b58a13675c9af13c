"use strict";
// The page's behaviour: draw charts from its data, hide mechanisms, sort and download tables, open runs.
const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set();
const charts = [];
const spoken = document.getElementById("spoken");
const say = text => { spoken.textContent = text; };
const store = {
  get(key) { try { return JSON.parse(sessionStorage.getItem("semfocus " + key)); } catch { return null; } },
  set(key, value) { try { sessionStorage.setItem("semfocus " + key, JSON.stringify(value)); } catch { /* storage is not available in a private window */ } },
};
const percent = y => `${Number((100 * y).toFixed(1))}%`;
const plain = y => String(Number(y.toPrecision(3)));

// Charts: curves and convergence
document.querySelectorAll(".group").forEach(section => {
  const group = data.groups[Number(section.dataset.group)], key = "group " + group.name;
  const curves = section.querySelector("[data-chart=curves]"), canvas = curves.querySelector(".canvas");
  const metric = curves.querySelector(".metric"), seeds = curves.querySelector(".seeds"), log = curves.querySelector(".log");
  const before = store.get(key);
  if (before) { metric.value = before.metric; seeds.checked = before.seeds; log.checked = before.log; }
  const chart = new Chart(canvas, () => curveSpec(group, metric.value, seeds.checked, log.checked), say);
  for (const control of [metric, seeds, log]) control.addEventListener("change", () => {
    store.set(key, {metric: metric.value, seeds: seeds.checked, log: log.checked});
    chart.draw();
  });
  curves.querySelector(".in").addEventListener("click", () => chart.scale(0.5));
  curves.querySelector(".out").addEventListener("click", () => chart.scale(2));
  curves.querySelector(".reset").addEventListener("click", () => chart.zoom(null));
  charts.push(chart, new Chart(section.querySelector("[data-chart=waiting] .canvas"), () => waitingSpec(group), say));
});

function visible(group) { return group.arms.filter(arm => !hidden.has(arm.m)); }

function curveSpec(group, metric, each, log) {
  const share = !metric.endsWith("loss") && !(group.plain || []).includes(metric), lines = [];
  for (const arm of visible(group)) {
    const shape = data.mechanisms[arm.m], curve = arm.curves[metric];
    if (each) for (const seed of arm.seeds) {
      const y = seed.values[metric];
      lines.push({css: `m${arm.m}`, dash: [], name: shape.name, x: group.seedEpochs.slice(0, y.length), y, thin: true});
    }
    if (!curve) continue;
    const [y, low, high] = curve, line = {css: `m${arm.m}`, dash: shape.dash, name: shape.name, x: group.epochs, y};
    if (low && !each) Object.assign(line, {low, high});
    if (arm.heldFrom !== undefined) line.heldFrom = arm.heldFrom;
    if (arm.median !== null) {
      const place = group.epochs.reduce((best, x, i) => Math.abs(x - arm.median) < Math.abs(group.epochs[best] - arm.median) ? i : best, 0);
      if (y[place] !== null) line.mark = [arm.median, y[place]];
    }
    lines.push(line);
  }
  const values = lines.flatMap(line => [line.y, line.low || [], line.high || []].flat()).filter(y => y !== null && y !== undefined);
  const goal = group.learned || {metric: "train_accuracy", threshold: data.threshold, level: percent(data.threshold)};
  const refs = metric === goal.metric ? [{y: goal.threshold, text: goal.level}] : [];
  if (metric === "heldout_accuracy") {
    const names = new Map();
    for (const [kind, level] of Object.entries(group.baselines)) names.set(level, [...(names.get(level) || []), kind]);
    for (const [level, kinds] of names) refs.push({y: level, text: kinds.join(", ")});
  }
  const floor = Math.min(...values, ...refs.map(ref => ref.y), 1);
  const y = share ? [Math.max(0, Math.floor(20 * (floor - 0.03)) / 20), 1.005] : [Math.min(0, ...values), Math.max(...values, 1e-6) * 1.04];
  return {
    lines, refs, x: [0, group.horizon], y, log, least: group.epochs[0] || 1, yText: share ? percent : plain, xTitle: "epoch",
    yTitle: data.metrics[metric],
  };
}

function waitingSpec(group) {
  const lines = visible(group).filter(arm => arm.waiting).map(arm => {
    const [x, y] = arm.waiting, shape = data.mechanisms[arm.m];
    return {css: `m${arm.m}`, dash: shape.dash, name: shape.name, x: [...x, group.horizon], y: [...y, y[y.length - 1]], step: true};
  });
  return {lines, refs: [], x: [0, group.horizon], y: [0, 1], log: false, least: 1, yText: percent, xTitle: "epoch", yTitle: `seeds below ${group.learned ? group.learned.level : percent(data.threshold)}`};
}

// Switches: one for each mechanism, with effect on every chart
function show() {
  document.querySelectorAll(".toggle").forEach(button => button.setAttribute("aria-pressed", String(!hidden.has(Number(button.dataset.m)))));
  charts.forEach(chart => chart.draw());
  store.set("hidden", [...hidden].map(m => data.mechanisms[m].name));
}
document.querySelectorAll(".toggle").forEach(button => button.addEventListener("click", () => {
  const m = Number(button.dataset.m);
  if (!hidden.delete(m)) hidden.add(m);
  show();
}));
document.querySelectorAll(".all").forEach(button => button.addEventListener("click", () => { hidden.clear(); show(); }));
for (const name of store.get("hidden") || []) {
  const m = data.mechanisms.findIndex(shape => shape.name === name);
  if (m >= 0) hidden.add(m);
}
show();

// Tables
function sortValue(cell, kind) {
  const text = cell.dataset.value ?? cell.textContent.trim();
  if (kind === "text") return text;
  if (text === "") return NaN;
  return text === "inf" ? Infinity : Number(text);
}
function compare(p, q) {
  if (typeof p === "string") return p.localeCompare(q, undefined, {numeric: true});
  if (Number.isNaN(p) || Number.isNaN(q)) return 0;
  return p === q ? 0 : p < q ? -1 : 1;
}
document.querySelectorAll("table.data").forEach(table => {
  table.querySelectorAll("th[data-sort]").forEach(head => {
    const button = document.createElement("button");
    button.type = "button"; button.textContent = head.textContent; head.replaceChildren(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending", column = head.cellIndex, body = table.tBodies[0];
      table.querySelectorAll("th[aria-sort]").forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const rows = [...body.rows].map(row => [sortValue(row.cells[column], head.dataset.sort), row]);
      const missing = rows.filter(([value]) => Number.isNaN(value)), there = rows.filter(([value]) => !Number.isNaN(value));
      there.sort(([p], [q]) => up ? compare(p, q) : compare(q, p));
      body.append(...there.concat(missing).map(([, row]) => row));
    });
  });
});
function csvCell(cell) {
  let text = cell.querySelector("svg.strip") ? [...cell.querySelectorAll("circle title")].map(t => t.textContent).join("; ") : cell.textContent.trim();
  // A spreadsheet runs a cell that begins with one of these as a formula; plain numbers are safe.
  if (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = "'" + text;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
document.querySelectorAll("button.csv").forEach(button => button.addEventListener("click", () => {
  const table = button.dataset.for ? document.getElementById(button.dataset.for) : button.closest(".panel").querySelector("table.data");
  const rows = [table.tHead.rows[0], ...[...table.tBodies[0].rows].filter(row => !row.hidden)];
  const text = rows.map(row => [...row.cells].map(csvCell).join(",")).join("\r\n") + "\r\n";
  const section = button.closest(".group"), where = section ? data.groups[Number(section.dataset.group)].name + " " : "";
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(["\ufeff", text], {type: "text/csv"}));
  link.download = `${where}${table.dataset.name}`.toLowerCase().replace(/[^a-z0-9]+/g, "-") + ".csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}));

// Runs
const find = document.getElementById("find"), all = document.getElementById("all-runs");
find.addEventListener("input", () => {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of all.tBodies[0].rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    count += row.hidden ? 0 : 1;
  }
  document.getElementById("count").textContent = `${count} runs`;
});
const dialog = document.getElementById("run-dialog");
all.addEventListener("click", event => {
  const button = event.target.closest("button.run");
  if (!button) return;
  const run = data.runs[button.dataset.run], group = data.groups[Number(button.dataset.group)];
  const config = structuredClone(group.config);
  Object.assign(config, {seed: null, label: run.label});
  config.attention.mechanism = run.mechanism;
  Object.assign(config.task, run.task);
  document.getElementById("run-title").textContent = button.dataset.run;
  document.getElementById("run-note").textContent = `${run.state}. To train it again: save this as run.yaml, then semfocus train run.yaml`;
  document.getElementById("run-config").textContent =
    JSON.stringify(config, null, 2).replace(/\n  "seed": null/, () => `\n  "seed": ${run.seed}`);  // a JavaScript number cannot hold seeds beyond 2^53
  dialog.showModal();
});
document.querySelectorAll(".copy").forEach(button => button.addEventListener("click", async () => {
  const text = button.parentElement.querySelector("pre");
  try { await navigator.clipboard.writeText(text.textContent); say("copied"); button.textContent = "copied"; }
  catch { getSelection().selectAllChildren(text); }
}));

// Theme; printing; reloading while runs train, unless the reader is active
const root = document.documentElement, chosen = store.get("theme");
if (chosen) root.dataset.theme = chosen;
document.getElementById("theme").addEventListener("click", () => {
  const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  store.set("theme", root.dataset.theme);
});
let opened = [];
addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("section > .verdict:not([open])")]; opened.forEach(one => { one.open = true; }); });
addEventListener("afterprint", () => opened.forEach(one => { one.open = false; }));
if (root.dataset.live) {
  let touched = 0;
  for (const kind of ["pointermove", "keydown", "scroll"]) addEventListener(kind, () => { touched = Date.now(); }, {passive: true});
  setInterval(() => {
    if (!document.hidden && !dialog.open && Date.now() - touched > 3000) location.reload();
  }, 1000 * Number(root.dataset.live));
}
