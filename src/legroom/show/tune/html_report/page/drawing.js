// Shared by all charts: SVG elements, scales and number formats.
const study = JSON.parse(document.getElementById("study").textContent);

function shape(name, attributes, parent, text) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function canvas(id, height) {
  const host = document.getElementById(id);
  host.replaceChildren();
  const width = host.clientWidth;
  return { width, root: shape("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" }, host) };
}

function figure(value) {
  if (typeof value !== "number") return value === null || value === undefined ? "–" : String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? value.toExponential(2).replace("e+", "e") : String(Number(value.toPrecision(4)));
}

// A scale maps a value to a coordinate; `ticks` are the labeled values.
function numbers(values, from, to, log, known = []) {
  let [low, high] = extent(values);
  if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low -= log ? low * 0.1 : pad; high += pad; }
  const warp = log ? Math.log10 : (value) => value;
  const place = (value) => from + ((warp(value) - warp(low)) / (warp(high) - warp(low))) * (to - from);
  const room = Math.max(2, Math.floor(Math.abs(to - from) / 45));
  const within = known.filter((value) => value >= low && value <= high); // the values of a range with steps
  if (within.length) { const every = Math.ceil(within.length / room); return { place, ticks: within.filter((_, index) => index % every === 0) }; }
  const few = [...new Set(values)].sort((a, b) => a - b);
  if (few.length <= Math.min(room, 8)) return { place, ticks: few };
  return { place, ticks: log ? decades(low, high, room) : evenly(low, high, room) };
}

function extent(values) { // not Math.min(...values): a long study has more values than a call may have arguments
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

function spreads(values, times = 50) { // whether only a logarithmic axis shows the small values
  const [low, high] = extent(values);
  return low > 0 && high / low > times;
}

function evenly(low, high, room) {
  const rough = (high - low) / room, ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * ten).find((each) => each >= rough);
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) ticks.push(Number((index * step).toPrecision(12)));
  return ticks;
}

function decades(low, high, room) {
  for (const steps of [[1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const step of steps) { const tick = step * 10 ** power; if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(Number(tick.toPrecision(6))); }
    if (ticks.length <= room && ticks.length > 1) return ticks;
    if (steps.length === 1 && ticks.length > 1) { const every = Math.ceil(ticks.length / room); return ticks.filter((_, index) => index % every === 0); }
  }
  return [low, high];
}

function names(values, from, to) {
  const gap = (to - from) / values.length;
  return { place: (value) => from + gap * (values.indexOf(value) + 0.5), ticks: values };
}

// Better trials have a stronger color. By rank, so that an outlier does not make all others look the same.
const ranked = study.trials.filter((trial) => trial.value !== null).sort((a, b) => (study.mode === "max" ? b.value - a.value : a.value - b.value));
const share = new Map(ranked.map((trial, index) => [trial.number, ranked.length > 1 ? 1 - index / (ranked.length - 1) : 1]));
const best = ranked.find((trial) => !["failed", "lost"].includes(trial.outcome))?.number ?? null;

function color(trial) {
  if (!share.has(trial.number)) return `var(--${trial.outcome})`;
  return `color-mix(in oklab, var(--good) ${Math.round(share.get(trial.number) * 100)}%, var(--poor))`;
}
