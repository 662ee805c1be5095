// The timeline: stacked columns on a canvas. The data has several resolutions, so a frame draws a few thousand columns at most.
const run = JSON.parse(document.getElementById("run").textContent);
if (!run.levels) return; // no memory was used
if (!("DecompressionStream" in window)) {
  document.querySelector("header").append(element("p", { className: "remark", textContent: "The charts need a newer browser. The tables contain the same values." }));
  return;
}
const UNIT = 512;
const byId = (id) => document.getElementById(id);
const seconds = (time) => (time < 100 ? `${time.toFixed(time < 10 ? 3 : 2)} s` : time < 3600 ? `${Math.floor(time / 60)} min ${(time % 60).toFixed(0)} s` : `${(time / 3600).toFixed(2)} h`);

const levels = await Promise.all(run.levels.map(async (level) => ({
  size: level.size, times: await unpacked(level.times, Float64Array), sums: await unpacked(level.sums, Uint32Array), reserved: await unpacked(level.reserved, Uint32Array),
})));
const phases = { times: await unpacked(run.phases.times, Float64Array), kinds: await unpacked(run.phases.kinds, Uint32Array) };
const steps = { ends: await unpacked(run.steps.ends, Float64Array), numbers: await unpacked(run.steps.numbers, Uint32Array) };
const kinds = run.categories.length;
for (const level of levels) {
  level.totals = new Float64Array(level.size);
  for (let kind = 0; kind < kinds; kind++) for (let at = 0; at < level.size; at++) level.totals[at] += level.sums[kind * level.size + at];
}
const coarse = levels[levels.length - 1];
const highest = Math.max(coarse.totals.reduce((a, b) => Math.max(a, b), 0), coarse.reserved.reduce((a, b) => Math.max(a, b), 0)) * UNIT;
const used = run.categories.map((_, kind) => coarse.sums.subarray(kind * coarse.size, (kind + 1) * coarse.size).some((value) => value > 0));
const end = Math.max(run.end, run.begin + 1e-6);

// The x axis shows places. A place is a time, or a step and the part of the step that has passed: the first step is often much longer
// than the others.
const equalSteps = byId("equal-steps"), edges = Float64Array.from([run.begin, ...steps.ends.filter((time) => time > run.begin && time < end), end]);
equalSteps.checked = steps.ends.length > 2;
equalSteps.parentElement.hidden = !steps.ends.length;
const lastEnd = steps.ends.length ? steps.ends[steps.ends.length - 1] : Infinity, endsWithStep = run.steps.unfinished || lastEnd >= end;
const isAfterSteps = (time) => !run.steps.unfinished && time > lastEnd;
const within = (at) => Math.min(Math.max(at, 0), edges.length - 2);
const widthOf = (at) => (at < edges.length - 2 || endsWithStep ? 1 : 0.2); // the time after the last step is not a step
const placeOf = (time) => { if (!equalSteps.checked) return time; const at = within(after(edges, time) - 1); return at + (widthOf(at) * (time - edges[at])) / (edges[at + 1] - edges[at]); };
const timeOf = (place) => { if (!equalSteps.checked) return place; const at = within(Math.floor(place)); return edges[at] + ((place - at) / widthOf(at)) * (edges[at + 1] - edges[at]); };
let first, last; // places of the first and the last event
function place() {
  for (const part of [...levels, phases]) part.places = part.times.map(placeOf);
  [first, last] = [placeOf(run.begin), placeOf(end)];
}
place();

let style, palette;
function readColors() {
  style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  palette = { kinds: run.categories.map((_, kind) => color(`--c${kind}`)), phases: [0, 1, 2, 3].map((kind) => color(`--p${kind}`)) };
  for (const name of ["ground", "ink", "faint", "rule", "accent", "bad", "warn", "grey"]) palette[name] = color(`--${name}`);
}
readColors();

// Fits a canvas to its element and returns a context that draws in CSS pixels.
function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  height ??= canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
  return { context, width, height };
}

function stripes(context, color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color;
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (const shift of [-8, 0, 8]) { pen.moveTo(shift, 8); pen.lineTo(shift + 8, 0); }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

const chart = byId("timeline").querySelector("canvas"), tip = byId("timeline").querySelector(".tip");
const view = { from: first, to: last }; // places
const EDGE = { left: 66, right: 8, top: 20, bottom: 40 };
let chosen = null, cursor = null, plot = null, frame = 0; // `chosen` is the position of the selected moment
const toCapacity = byId("to-capacity");
toCapacity.checked = run.capacity > 0 && highest > run.capacity / 4;
toCapacity.parentElement.hidden = !run.capacity;

const drawSoon = () => { frame ||= requestAnimationFrame(() => { frame = 0; draw(); }); };
const xAt = (place) => EDGE.left + ((place - view.from) / (view.to - view.from)) * plot.width;
const xOf = (time) => xAt(placeOf(time));
const placeAt = (x) => view.from + ((x - EDGE.left) / plot.width) * (view.to - view.from);
const timeAt = (x) => timeOf(placeAt(x));
const stepAt = (time) => { const at = Math.max(after(steps.ends, time), 0); return at < steps.ends.length ? steps.numbers[at] : steps.ends.length ? steps.numbers[at - 1] + 1 : 0; };
const phaseAt = (time) => { const at = after(phases.times, time) - 1; return at < 0 ? 3 : phases.kinds[at]; };

// The coarsest level with at least two columns per pixel, or the finest level.
function levelFor(from, to) {
  for (let number = levels.length - 1; number > 0; number--) {
    const level = levels[number];
    if (after(level.places, to) - after(level.places, from) >= 2 * plot.width) return level;
  }
  return levels[0];
}

function draw() {
  const { context, width, height } = prepare(chart);
  plot = { width: width - EDGE.left - EDGE.right, height: height - EDGE.top - EDGE.bottom };
  const top = toCapacity.checked ? Math.max(run.capacity, highest) : highest * 1.06;
  const yOf = (bytes) => EDGE.top + plot.height * (1 - bytes / top);
  drawGrid(context, top, yOf);
  context.save();
  context.beginPath();
  context.rect(EDGE.left, 0, plot.width, height - 20);
  context.clip();
  drawColumns(context, yOf);
  if (run.capacity && run.capacity <= top) drawLine(context, EDGE.left, yOf(run.capacity), EDGE.left + plot.width, yOf(run.capacity), palette.bad, [6, 4]);
  drawPhases(context, EDGE.top + plot.height + 3);
  drawGaps(context);
  drawMarks(context);
  context.restore();
  if (run.capacity && run.capacity <= top) {
    context.fillStyle = palette.bad;
    context.textAlign = "left";
    outlined(context, `capacity ${size(run.capacity)}`, EDGE.left + 5, yOf(run.capacity) + 14);
  }
  drawSteps(context, height);
}

function drawLine(context, x1, y1, x2, y2, color, dash = []) {
  context.strokeStyle = color;
  context.setLineDash(dash);
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
  context.setLineDash([]);
}

function outlined(context, text, x, y) {
  context.strokeStyle = palette.ground;
  context.lineWidth = 4;
  context.lineJoin = "round";
  context.strokeText(text, x, y);
  context.lineWidth = 1;
  context.fillText(text, x, y);
}

function drawGrid(context, top, yOf) {
  const rough = top / 5, power = 2 ** Math.floor(Math.log2(rough)), gap = rough / power > 1.5 ? power * 2 : power;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let value = 0; value <= top; value += gap) {
    drawLine(context, EDGE.left, yOf(value), EDGE.left + plot.width, yOf(value), palette.rule);
    context.fillStyle = palette.faint;
    context.fillText(size(value).replace(/\.00?(?= )/, ""), EDGE.left - 6, yOf(value));
  }
  context.textBaseline = "alphabetic";
}

// One column per pixel: of several columns in a pixel, the highest is drawn.
function drawColumns(context, yOf) {
  const level = levelFor(view.from, view.to), { places, totals, reserved } = level;
  const stop = after(places, view.to);
  const line = [];
  let at = Math.max(after(places, view.from) - 1, 0);
  while (at < stop) {
    const x = Math.floor(Math.max(xAt(places[at]), EDGE.left - 1));
    let best = at, most = reserved[at], next = at + 1;
    while (next < stop && xAt(places[next]) < x + 1) {
      if (totals[next] > totals[best]) best = next;
      if (reserved[next] > most) most = reserved[next];
      next++;
    }
    const right = next < level.size ? Math.max(Math.floor(xAt(places[next])), x + 1) : xAt(last);
    let bytes = 0, low = yOf(0);
    for (let kind = 0; kind < kinds; kind++) {
      const value = level.sums[kind * level.size + best] * UNIT;
      if (!value) continue;
      bytes += value;
      const high = yOf(bytes);
      context.fillStyle = palette.kinds[kind];
      context.fillRect(x, high, right - x, low - high);
      low = high;
    }
    line.push([x, right, yOf(most * UNIT)]);
    at = next;
  }
  context.strokeStyle = palette.ink;
  context.lineWidth = 1.5;
  context.beginPath();
  for (const [left, right, y] of line) { context.lineTo(left, y); context.lineTo(right, y); }
  context.stroke();
  context.lineWidth = 1;
}

function drawGaps(context) {
  for (const [from, to] of run.gaps) {
    if (placeOf(to) < view.from || placeOf(from) > view.to) continue;
    const x = xOf(from), wide = Math.max(xOf(to) - x, 3);
    context.fillStyle = palette.ground;
    context.fillRect(x, EDGE.top, wide, plot.height + 14);
    context.fillStyle = stripes(context, palette.grey);
    context.fillRect(x, EDGE.top, wide, plot.height + 14);
  }
}

function drawPhases(context, y) {
  const { places } = phases, start = Math.max(after(places, view.from) - 1, 0), stop = after(places, view.to);
  if (stop - start > plot.width / 2) {
    context.fillStyle = palette.faint;
    context.textAlign = "left";
    context.fillText("Zoom in to see the phases.", EDGE.left, y + 11);
    return;
  }
  for (let at = start; at < stop; at++) {
    const x = Math.max(xAt(places[at]), EDGE.left), right = at + 1 < places.length ? xAt(places[at + 1]) : xAt(last);
    context.fillStyle = palette.phases[phases.kinds[at]];
    context.fillRect(x, y, Math.max(right - x, 0.5), 10);
  }
}

function drawMarks(context) {
  context.textAlign = "left";
  for (const { time, kind } of run.marks) {
    if (placeOf(time) < view.from || placeOf(time) > view.to) continue;
    const x = xOf(time), color = kind === "oom" ? palette.bad : palette.warn;
    drawLine(context, x, EDGE.top, x, EDGE.top + plot.height, color, kind === "oom" ? [] : [3, 3]);
    context.fillStyle = color;
    context.textAlign = x > EDGE.left + plot.width - 110 ? "right" : "left";
    context.fillText(kind === "oom" ? "▲ out of memory" : "◆ leak", context.textAlign === "right" ? Math.min(x + 4, EDGE.left + plot.width) : x - 4, 13);
  }
  if (chosen !== null) {
    const x = xOf(run.moments[chosen].time);
    drawLine(context, x, EDGE.top, x, EDGE.top + plot.height, palette.ink, [2, 2]);
    context.fillStyle = palette.ink;
    context.beginPath();
    context.moveTo(x - 5, EDGE.top - 1);
    context.lineTo(x + 5, EDGE.top - 1);
    context.lineTo(x, EDGE.top + 6);
    context.fill();
  }
  if (cursor !== null) drawLine(context, xOf(cursor), EDGE.top, xOf(cursor), EDGE.top + plot.height, palette.accent);
}

// Labels of steps, or of seconds if there are no steps.
function drawSteps(context, height) {
  context.fillStyle = palette.faint;
  context.textAlign = "center";
  const y = height - 8;
  const label = (text, x) => { if (x > EDGE.left - 2 && x < EDGE.left + plot.width - 12) context.fillText(text, Math.max(x, EDGE.left + 20), y); };
  if (!steps.ends.length) {
    for (let part = 0; part <= 4; part++) { const time = view.from + ((view.to - view.from) * part) / 4.2; label(seconds(time), xOf(time)); }
    return;
  }
  const from = timeOf(view.from), begin = after(steps.ends, from), stop = after(steps.ends, timeOf(view.to));
  const every = [1, 2, 5].flatMap((digit) => [0, 1, 2, 3, 4, 5, 6].map((power) => digit * 10 ** power)).sort((a, b) => a - b).find((each) => (stop - begin + 1) / each <= plot.width / 64) ?? 1;
  let free = -Infinity; // where the previous label ends
  for (let at = begin; at <= stop; at++) {
    const number = at < steps.numbers.length ? steps.numbers[at] : steps.numbers[at - 1] + 1, start = at ? steps.ends[at - 1] : run.begin;
    const isStep = at < steps.ends.length || run.steps.unfinished;
    if (isStep && number % every) continue;
    const x = xOf(Math.max(start, from));
    if (start >= from) drawLine(context, x, EDGE.top + plot.height, x, height - 20, palette.faint);
    if (!isStep) continue;
    const crowded = start < from && at < steps.ends.length && xOf(steps.ends[at]) - x < 60; // the next label is more useful
    if (crowded || x < free) continue;
    label(`step ${number}`, x);
    free = x + 60;
  }
}

function describe(time) {
  const { times, sums, reserved, totals, size: length } = levelFor(view.from, view.to);
  const at = Math.min(Math.max(after(times, time) - 1, 0), length - 1);
  const parts = run.categories.map((name, kind) => [name, sums[kind * length + at] * UNIT, kind]).filter(([, bytes]) => bytes).sort((a, b) => b[1] - a[1]);
  const mark = run.marks.find((each) => Math.abs(xOf(each.time) - xOf(time)) < 5);
  return { head: `${isAfterSteps(time) ? "After the last step" : `Step ${stepAt(time)}`}, ${run.phaseNames[phaseAt(time)]}, ${seconds(time - run.begin)}`, mark: mark?.text, total: `${size(totals[at] * UNIT)} allocated, ${size(reserved[at] * UNIT)} reserved`, parts };
}

function point(time, speak = false) {
  cursor = time === null ? null : Math.min(Math.max(time, run.begin), end);
  tip.hidden = cursor === null;
  drawSoon();
  if (cursor === null) return;
  const { head, mark, total, parts } = describe(cursor), lines = largestLines(nearest(cursor));
  tip.replaceChildren(element("strong", { textContent: head }), ...(mark ? [element("strong", { textContent: mark, style: "color: var(--bad)" })] : []), element("div", { textContent: total }),
    ...parts.map(([name, bytes, kind]) => element("div", {}, element("i", { className: `swatch c${kind}` }), `${name}: ${size(bytes)}`)),
    element("strong", { textContent: "Largest lines at the nearest moment" }), ...lines.map(([name, bytes]) => element("div", { textContent: `${name}: ${size(bytes)}` })));
  const x = xOf(cursor), wide = tip.offsetWidth;
  tip.style.left = `${x + 14 + wide > chart.clientWidth ? Math.max(x - wide - 14, 0) : x + 14}px`;
  if (speak) byId("timeline-live").textContent = [head, mark, total, ...parts.map(([name, bytes]) => `${name} ${size(bytes)}`)].filter(Boolean).join(", ");
}

function show(from, to) {
  const length = Math.min(Math.max(to - from, (last - first) / 1e6), last - first);
  view.from = Math.min(Math.max(from, first), last - length);
  view.to = view.from + length;
  drawSoon();
}
const showAll = () => show(first, last);
const zoom = (factor, around = cursor === null ? (view.from + view.to) / 2 : placeOf(cursor)) => show(around - (around - view.from) * factor, around + (view.to - around) * factor);
const pan = (share) => show(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));

byId("zoom-in").onclick = () => zoom(0.5);
byId("zoom-out").onclick = () => zoom(2);
byId("zoom-all").onclick = showAll;
byId("zoom-step").hidden = !steps.ends.length;
byId("zoom-step").onclick = () => {
  const at = within(after(edges, cursor ?? run.moments[chosen].time - 1e-9) - 1), from = placeOf(edges[at]), to = placeOf(edges[at + 1]);
  show(from - (to - from) * 0.05, to + (to - from) * 0.05);
};
toCapacity.onchange = drawSoon;
equalSteps.onchange = () => { place(); showAll(); };

const pointers = new Map();
let dragged = 0;
chart.addEventListener("pointerdown", (event) => { pointers.set(event.pointerId, event.offsetX); dragged = 0; chart.setPointerCapture(event.pointerId); });
chart.addEventListener("pointermove", (event) => {
  const before = pointers.get(event.pointerId);
  if (before === undefined) { point(timeAt(event.offsetX)); return; }
  dragged += Math.abs(event.offsetX - before);
  const other = [...pointers].find(([id]) => id !== event.pointerId);
  if (other) { // two fingers zoom
    const apart = Math.abs(before - other[1]), now = Math.abs(event.offsetX - other[1]);
    if (apart > 8 && now > 8) zoom(apart / now, placeAt((event.offsetX + other[1]) / 2));
  } else if (dragged > 3) { pan((before - event.offsetX) / plot.width); point(null); }
  pointers.set(event.pointerId, event.offsetX);
});
chart.addEventListener("pointerup", (event) => {
  pointers.delete(event.pointerId);
  if (dragged <= 3) { point(timeAt(event.offsetX)); chooseNear(timeAt(event.offsetX)); }
});
chart.addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
chart.addEventListener("pointerleave", () => pointers.size || point(null));
chart.addEventListener("dblclick", showAll);
chart.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(1.002 ** event.deltaY, placeAt(event.offsetX)); }
  else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); pan(event.deltaX / plot.width); }
}, { passive: false });
chart.addEventListener("keydown", (event) => {
  const by = ((view.to - view.from) / plot.width) * (event.shiftKey ? 40 : 4), now = placeOf(cursor ?? run.moments[chosen].time);
  const moves = {
    ArrowLeft: () => move(now - by), ArrowRight: () => move(now + by), Home: () => move(first), End: () => move(last),
    "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "−": () => zoom(2), 0: showAll, Enter: () => chooseNear(timeOf(now)), Escape: () => point(null),
  };
  const act = moves[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act();
});
function move(place) {
  const inside = Math.min(Math.max(place, first), last);
  if (inside < view.from) show(inside, inside + view.to - view.from);
  if (inside > view.to) show(inside - (view.to - view.from), inside);
  point(timeOf(inside), true);
}
chart.addEventListener("blur", () => point(null));

byId("legend").append(...run.categories.flatMap((name, kind) => (used[kind] ? [element("span", {}, element("i", { className: `swatch c${kind}` }), name)] : [])),
  element("span", { textContent: "Phases:" }), ...["forward", "backward", "optimizer"].map((name, kind) => element("span", {}, element("i", { className: "swatch", style: `height: .4rem; vertical-align: 2px; background: var(--p${kind})` }), name)));
