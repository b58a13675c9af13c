"use strict";
// A line chart in SVG: medians, bands, steps and marks. It can be hovered, moved by keys and zoomed by dragging.
// It does not depend on the rest of the page.
class Chart {
  // spec(): {lines: [{css, dash, name, x, y, low, high, step, thin, mark, heldFrom}], refs: [{y, text}], x: [from, to],
  //          y: [from, to], log, yText, xTitle, yTitle}
  constructor(box, spec, say) {
    this.box = box; this.spec = spec; this.say = say; this.range = null; this.at = null; this.from = null;
    this.tip = Object.assign(document.createElement("div"), {className: "tip", hidden: true});
    new ResizeObserver(() => this.draw()).observe(box);
    box.addEventListener("pointermove", e => this.moved(e));
    box.addEventListener("pointerdown", e => this.pressed(e));
    box.addEventListener("pointerup", e => this.released(e));
    box.addEventListener("pointerleave", () => { if (this.from === null) this.point(null); });
    box.addEventListener("pointercancel", () => { this.from = null; this.drawCross(); });
    box.addEventListener("dblclick", () => this.zoom(null));
    box.addEventListener("keydown", e => this.key(e));
    box.addEventListener("blur", () => this.point(null));
  }
  zoom(range) { this.range = range; this.draw(); }
  scale(factor) {
    const s = this.spec(), whole = s.x, [a, b] = this.range || whole;
    const middle = this.at !== null && this.at >= a && this.at <= b ? this.at : (a + b) / 2;
    const half = (b - a) * factor / 2;
    const low = Math.max(whole[0], middle - half), high = Math.min(whole[1], middle + half);
    this.zoom(high - low >= whole[1] - whole[0] ? null : [low, high]);
  }
  key(e) {
    const moves = {ArrowLeft: -1, ArrowRight: 1};
    if (e.key in moves) {
      const all = this.epochs(); if (!all.length) return;
      const here = this.at === null ? (moves[e.key] > 0 ? -1 : all.length) : all.findIndex(x => x >= this.at);
      this.point(all[Math.max(0, Math.min(all.length - 1, here + moves[e.key]))], true);
    } else if (e.key === "+" || e.key === "=") this.scale(0.5);
    else if (e.key === "-") this.scale(2);
    else if (e.key === "0" || e.key === "Escape") { this.at = null; this.zoom(null); }
    else return;
    e.preventDefault();
  }
  epochs() {
    const [a, b] = this.range || this.spec().x, seen = new Set();
    for (const line of this.spec().lines) if (!line.thin) for (const x of line.x) if (x >= a && x <= b) seen.add(x);
    return [...seen].sort((p, q) => p - q);
  }
  epochAt(e) {
    const pixel = e.clientX - this.box.getBoundingClientRect().left;
    return this.inverse(Math.max(this.left, Math.min(this.left + this.width, pixel)));
  }
  pressed(e) { if (e.button === 0 && e.pointerType !== "touch") { this.from = this.epochAt(e); this.box.setPointerCapture(e.pointerId); } }
  moved(e) { const epoch = this.epochAt(e); this.point(this.from === null ? this.nearest(epoch) : epoch); }
  nearest(epoch) {  // the nearest measured epoch; step lines have a value at every epoch
    if (this.spec().lines.some(line => line.step)) return epoch;
    return this.epochs().reduce((best, x) => best === null || Math.abs(x - epoch) < Math.abs(best - epoch) ? x : best, null);
  }
  released(e) {
    if (this.from === null) return;
    const to = this.epochAt(e), from = this.from; this.from = null;
    if (Math.abs(this.toX(to) - this.toX(from)) > 6) this.zoom([Math.min(from, to), Math.max(from, to)]);
    else this.drawCross();  // a full redraw would replace the element between the two clicks of a double click
  }
  point(epoch, aloud) {
    this.at = epoch;
    this.drawCross();
    if (aloud && epoch !== null) this.say(this.values(epoch).map(v => `${v.name} ${v.text}`).join(", ") + `, epoch ${number(epoch)}`);
  }
  values(epoch) {
    const s = this.spec(), values = [];
    for (const line of s.lines) {
      if (line.thin) continue;
      let place = -1;
      for (let i = 0; i < line.x.length && line.x[i] <= epoch; i++) place = i;
      if (place < 0 || !known(line.y[place])) continue;
      const band = line.low ? ` (${s.yText(line.low[place])} to ${s.yText(line.high[place])})` : "";
      values.push({name: line.name, css: line.css, y: line.y[place], text: s.yText(line.y[place]) + band});
    }
    return values.sort((p, q) => q.y - p.y);
  }
  draw() {
    const s = this.spec(), w = this.box.clientWidth, h = this.box.clientHeight;
    if (!w || !h) return;
    this.left = 52; this.width = Math.max(60, w - 52 - 12); this.top = 22; this.height = h - 22 - 40;
    const [a, b] = this.range || s.x, first = Math.max(a, s.log ? s.least : a);
    const t = s.log ? x => Math.log(Math.max(x, s.least)) : x => x, back = s.log ? Math.exp : x => x;
    this.toX = x => this.left + this.width * (t(x) - t(first)) / (t(b) - t(first) || 1);
    this.inverse = p => back(t(first) + (p - this.left) / this.width * (t(b) - t(first)));
    const [low, high] = s.y, toY = y => this.top + this.height * (1 - (y - low) / (high - low || 1));
    const svg = node("svg", {viewBox: `0 0 ${w} ${h}`, "aria-hidden": "true"});
    const clip = `clip-${Chart.count = (Chart.count || 0) + 1}`;
    svg.append(node("clipPath", {id: clip}, [node("rect", {x: this.left, y: this.top - 6, width: this.width + 4, height: this.height + 12})]));
    for (const y of ticks(low, high, this.height / 42)) {
      svg.append(node("line", {class: "grid", x1: this.left, x2: this.left + this.width, y1: toY(y), y2: toY(y)}));
      svg.append(node("text", {x: this.left - 8, y: toY(y) + 4, "text-anchor": "end"}, s.yText(y)));
    }
    const bottom = this.top + this.height;
    svg.append(node("line", {class: "axisline", x1: this.left, x2: this.left + this.width, y1: bottom, y2: bottom}));
    for (const x of s.log ? decades(first, b) : ticks(first, b, this.width / 90)) {
      svg.append(node("line", {class: "axisline", x1: this.toX(x), x2: this.toX(x), y1: bottom, y2: bottom + 4}));
      svg.append(node("text", {x: this.toX(x), y: bottom + 18, "text-anchor": "middle"}, number(x)));
    }
    svg.append(node("text", {x: this.left + this.width, y: bottom + 34, "text-anchor": "end"}, s.xTitle));
    svg.append(node("text", {x: 0, y: 6}, s.yTitle));
    const inside = node("g", {"clip-path": `url(#${clip})`});
    const refs = s.refs.filter(ref => ref.y >= low && ref.y <= high).sort((p, q) => q.y - p.y);
    for (const ref of refs) inside.append(node("line", {class: "ref", x1: this.left, x2: this.left + this.width, y1: toY(ref.y), y2: toY(ref.y)}));
    const labels = node("g");  // above the lines
    for (const names of together(refs, toY)) {  // levels that lie too near for a label each share one below the lowest
      const text = names.map(ref => ref.text).join(", "), y = toY(names[names.length - 1].y) + 13;
      labels.append(node("text", {class: "ref-text", x: this.left + this.width - 2, y, "text-anchor": "end"}, text));
    }
    for (const line of s.lines) if (line.low) inside.append(node("path", {class: `band ${line.css}`, d: this.area(line, toY)}));
    for (const line of s.lines) {
      const dash = line.thin ? "" : line.dash.join(" "), cut = line.heldFrom ?? Infinity;
      inside.append(node("path", {class: `${line.thin ? "one" : "line"} ${line.css}`, "stroke-dasharray": dash, d: this.path(line, toY, -Infinity, cut)}));
      if (cut < Infinity) inside.append(node("path", {class: `held ${line.css}`, "stroke-dasharray": dash, d: this.path(line, toY, cut, Infinity)}));
    }
    for (const line of s.lines) if (!line.step) line.y.forEach((y, i) => {  // a value without neighbours has no line
      if (known(y) && !known(line.y[i - 1]) && !known(line.y[i + 1]))
        inside.append(node("circle", {class: `dot ${line.css}`, cx: this.toX(line.x[i]), cy: toY(y), r: 3}));
    });
    for (const line of s.lines) if (line.mark) inside.append(node("circle", {class: `mark ${line.css}`, cx: this.toX(line.mark[0]), cy: toY(line.mark[1]), r: 5.5}));
    svg.append(inside, labels);
    this.cross = node("g"); svg.append(this.cross);
    this.box.replaceChildren(svg, this.tip);
    this.drawCross();
  }
  path(line, toY, from, to) {
    let d = "", pen = false;
    line.x.forEach((x, i) => {
      if (x < from || x > to) return;
      const y = line.y[i];
      if (!known(y)) { pen = false; return; }
      const px = this.toX(x).toFixed(1), py = toY(y).toFixed(1);
      d += pen ? (line.step ? `H${px}V${py}` : `L${px} ${py}`) : `M${px} ${py}`; pen = true;
    });
    return d;
  }
  area(line, toY) {
    const runs = []; let run = null;
    line.x.forEach((x, i) => {
      if (line.low[i] === null || line.high[i] === null) { run = null; return; }
      if (!run) runs.push(run = []);
      run.push([this.toX(x).toFixed(1), toY(line.low[i]).toFixed(1), toY(line.high[i]).toFixed(1)]);
    });
    return runs.map(r => "M" + r.map(p => `${p[0]} ${p[2]}`).join("L") + "L" + r.slice().reverse().map(p => `${p[0]} ${p[1]}`).join("L") + "Z").join("");
  }
  drawCross() {
    if (!this.cross) return;
    this.cross.replaceChildren();
    this.tip.hidden = this.at === null;
    if (this.at === null) return;
    const x = this.toX(this.at), bottom = this.top + this.height;
    if (this.from !== null) {
      const start = this.toX(this.from);
      this.cross.append(node("rect", {class: "drag", x: Math.min(start, x), width: Math.abs(x - start), y: this.top, height: this.height}));
    }
    this.cross.append(node("line", {class: "cross", x1: x, x2: x, y1: this.top, y2: bottom}));
    const rows = this.values(this.at).map(v => {
      const row = document.createElement("tr"), name = document.createElement("td"), value = document.createElement("td");
      const sample = node("svg", {class: `swatch ${v.css}`, width: 16, height: 8}, [node("line", {x1: 0, x2: 16, y1: 4, y2: 4})]);
      name.append(sample, " ", v.name); value.textContent = v.text; row.append(name, value); return row;
    });
    const head = document.createElement("b"), table = document.createElement("table");
    head.textContent = `epoch ${number(this.at)}`; table.append(...rows);
    this.tip.replaceChildren(head, table);
    const room = this.box.clientWidth - this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(room, x < this.left + this.width / 2 ? x + 14 : x - 14 - this.tip.offsetWidth))}px`;
  }
}
function known(y) { return y !== null && y !== undefined; }
function node(name, attributes = {}, inner = []) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (typeof inner === "string") element.textContent = inner; else element.append(...inner);
  return element;
}
function together(refs, toY) {
  const groups = [];
  for (const ref of refs) {
    const last = groups[groups.length - 1];
    if (last && toY(ref.y) - toY(last[last.length - 1].y) < 14) last.push(ref); else groups.push([ref]);
  }
  return groups;
}
function number(value) {
  return Math.abs(value) >= 100 ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
}
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(2, wanted), size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(f => f * size).find(s => s >= raw), places = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i++) places.push(Number((i * step).toPrecision(12)));
  return places;
}
function decades(low, high) {
  const places = [];
  for (let size = 10 ** Math.floor(Math.log10(low)); size <= high; size *= 10)
    for (const f of [1, 2, 5]) if (f * size >= low * 0.999 && f * size <= high) places.push(Number((f * size).toPrecision(6)));
  return places;
}
