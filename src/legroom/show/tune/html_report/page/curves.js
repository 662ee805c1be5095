// Learning curves: one line per trial, a cross where the scheduler stopped it.
function drawCurves() {
  const drawn = study.trials.filter((trial) => trial.curve.length);
  if (!drawn.length) return empty("curves", `No trial reported ${study.metric}.`);
  const { width, root } = canvas("curves", 320);
  const points = drawn.flatMap((trial) => trial.curve);
  const values = points.map(([, value]) => value);
  const x = numbers(points.map(([step]) => step), 58, width - 14, false);
  const y = numbers(values, 284, 14, spreads(values));
  frame(root, 58, width, x, y, 284, figure, "report");
  for (const trial of [...drawn].sort((a, b) => (share.get(a.number) ?? 0) - (share.get(b.number) ?? 0))) {
    const places = trial.curve.map(([step, value]) => [x.place(step), y.place(value)]);
    const d = "M" + places.map((place) => place.map((each) => each.toFixed(1)).join(" ")).join("L");
    shape("path", { d, class: `line${trial.number === best ? " is-best" : ""}`, stroke: color(trial), "data-trial": trial.number }, root);
    const [endX, endY] = places[places.length - 1];
    if (trial.outcome === "stopped") cross(root, endX, endY, trial);
    else if (places.length === 1) shape("circle", { cx: endX, cy: endY, r: 3, fill: color(trial), class: "mark", "data-trial": trial.number }, root);
    pointable(shape("path", { d: places.length === 1 ? `M${endX - 3} ${endY}h6` : d, class: "touch" }, root), trial.number);
  }
}

function cross(root, x, y, trial) {
  shape("path", { d: `M${x - 4} ${y - 4}l8 8m0-8l-8 8`, class: "mark line", stroke: "var(--stopped)", "stroke-width": 2, "data-trial": trial.number }, root);
}

function frame(root, left, width, x, y, bottom, words, below) {
  for (const tick of y.ticks) {
    const place = y.place(tick);
    shape("line", { x1: left, x2: width - 14, y1: place, y2: place, class: "tick" }, root);
    shape("text", { x: left - 8, y: place + 4, "text-anchor": "end" }, root, words(tick));
  }
  for (const tick of x.ticks.filter(Number.isInteger)) shape("text", { x: x.place(tick), y: bottom + 20, "text-anchor": "middle" }, root, figure(tick));
  shape("text", { x: width - 14, y: bottom + 34, "text-anchor": "end" }, root, below);
}

function empty(id, sentence) {
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = sentence;
  document.getElementById(id).replaceChildren(note);
}
