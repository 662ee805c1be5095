// Memory: predicted and measured per trial, and the size of the GPUs.
function drawMemory() {
  const known = study.trials.filter((trial) => trial.predicted !== null || trial.peak !== null);
  if (!known.length) return; // the text above explains it
  const { width, root } = canvas("memory", 300);
  const bytes = known.flatMap((trial) => [trial.predicted, trial.peak]).filter((each) => each !== null);
  const all = [...bytes, ...study.capacities];
  const log = spreads(all, 20), [lowest, highest] = extent(all);
  const x = numbers([study.trials[0].number, study.trials[study.trials.length - 1].number], 84, width - 14, false);
  const y = numbers(log ? all : [0, ...all.map((each) => each * 1.03)], 258, 22, log);
  y.ticks = inUnits(highest, lowest, log);
  frame(root, 84, width, x, y, 258, size, "trial");
  for (const capacity of study.capacities) {
    const place = y.place(capacity);
    shape("line", { x1: 84, x2: width - 14, y1: place, y2: place, class: "capacity" }, root);
    shape("text", { x: width - 14, y: place - 5, "text-anchor": "end" }, root, `GPU memory: ${size(capacity)}`);
  }
  for (const trial of known) {
    const at = x.place(trial.number), paint = `var(--${trial.outcome})`;
    const group = shape("g", { class: "mark" }, root);
    if (trial.predicted !== null && trial.peak !== null) shape("line", { x1: at, x2: at, y1: y.place(trial.predicted), y2: y.place(trial.peak), stroke: paint, "stroke-width": 1 }, group);
    if (trial.predicted !== null && trial.outcome !== "rejected") shape("circle", { cx: at, cy: y.place(trial.predicted), r: 4.5, fill: "var(--ground)", stroke: paint, "stroke-width": 1.8 }, group);
    if (trial.peak !== null) shape("circle", { cx: at, cy: y.place(trial.peak), r: 3.6, fill: paint }, group);
    if (trial.outcome === "rejected") { const top = y.place(trial.predicted); shape("path", { d: `M${at - 5} ${top - 4}h10l-5 9z`, fill: "var(--ground)", stroke: paint, "stroke-width": 1.8 }, group); }
    shape("rect", { x: at - 7, y: 14, width: 14, height: 250, fill: "transparent" }, group);
    pointable(group, trial.number);
  }
}

// Ticks in bytes: powers of two on a logarithmic axis, otherwise even steps of a unit.
function inUnits(highest, lowest, log) {
  if (log) {
    const from = Math.ceil(Math.log2(lowest)), to = Math.floor(Math.log2(highest)), every = Math.max(1, Math.ceil((to - from) / 5));
    return Array.from({ length: Math.floor((to - from) / every) + 1 }, (_, index) => 2 ** (from + index * every));
  }
  const unit = highest >= 2 ** 30 ? 2 ** 30 : 2 ** 20;
  return evenly(0, highest / unit, 5).map((tick) => tick * unit);
}

const draw = () => { brushes.clear(); drawParallel(); drawCurves(); drawMemory(); keep(); };
draw();
let drawnWidth = document.body.clientWidth;
addEventListener("resize", () => { if (document.body.clientWidth !== drawnWidth) { drawnWidth = document.body.clientWidth; draw(); } });
