// Parallel coordinates. On a narrow screen the axes are stacked vertically.
function axesOf(length) {
  const axes = study.parameters.map((parameter) => {
    const values = study.trials.map((trial) => trial.config[parameter.name] ?? null);
    const found = values.filter((value) => value !== null);
    const scale = parameter.kind === "category" ? names(parameter.values, length, 0) : numbers(found, length, 0, parameter.kind === "log", parameter.values);
    return { name: parameter.name, scale, of: (trial) => trial.config[parameter.name] ?? null };
  });
  if (ranked.length) {
    const values = ranked.map((trial) => trial.value);
    axes.push({ name: study.metric, scale: numbers(values, length, 0, spreads(values)), of: (trial) => trial.value, isMetric: true });
  }
  return axes;
}

function drawParallel() {
  const narrow = document.getElementById("parallel").clientWidth < 620;
  const count = study.parameters.length + (ranked.length ? 1 : 0);
  const { width, root } = canvas("parallel", narrow ? 20 + count * 74 : 340);
  const length = narrow ? width - 24 : 250;
  const axes = axesOf(length);
  const gap = narrow ? 74 : (width - 130) / Math.max(1, axes.length - 1);
  const at = (index, along) => (narrow ? [12 + (length - along), 34 + index * gap] : [50 + index * gap, 46 + along]);

  for (const trial of study.trials) {
    const d = pathOf(axes, trial, at, length);
    if (!d) continue;
    const kind = `line${trial.number === best ? " is-best" : ""}${trial.value === null ? " is-unfinished" : ""}`;
    shape("path", { d, class: kind, stroke: color(trial), "data-trial": trial.number }, root);
    pointable(shape("path", { d, class: "touch" }, root), trial.number);
  }
  axes.forEach((axis, index) => drawAxis(root, axis, index, at, length, narrow));
}

// Beyond the end of an axis: trials that do not have its parameter.
const MISSING = 22;

function pathOf(axes, trial, at, length) {
  const values = axes.filter((axis) => !axis.isMetric || trial.value !== null).map((axis) => axis.of(trial));
  if (values.filter((value) => value !== null).length < 2) return null;
  const places = values.map((value, index) => at(index, value === null ? length + MISSING : axes[index].scale.place(value)));
  return "M" + places.map((place) => place.map((each) => each.toFixed(1)).join(" ")).join("L");
}

function drawAxis(root, axis, index, at, length, narrow) {
  const [x1, y1] = at(index, 0), [x2, y2] = at(index, length);
  shape("line", { x1, y1, x2, y2, class: "axis" }, root);
  const [nameX, nameY, anchor] = narrow ? [x2, y1 - 22, "start"] : [x1, 18, "middle"];
  shape("text", { x: nameX, y: nameY + (narrow ? 8 : 0), "text-anchor": anchor, class: "name" }, root, axis.name);
  if (!narrow && !axis.isMetric && study.trials.some((trial) => axis.of(trial) === null)) shape("text", { x: x1 + 7, y: y2 + MISSING + 4 }, root, "not set");
  let last = Infinity;
  for (const tick of axis.scale.ticks) {
    const place = axis.scale.place(tick), [x, y] = at(index, place);
    if (Math.abs(place - last) < (narrow ? 34 : 15)) continue; // it would overlap the previous label
    last = place;
    shape("text", narrow ? { x, y: y + 18, "text-anchor": x > length - 10 ? "end" : x < 30 ? "start" : "middle" } : { x: x + 7, y: y + 4 }, root, figure(tick));
  }
  drawBrush(root, axis, index, at, length, narrow);
}

function drawBrush(root, axis, index, at, length, narrow) {
  const [x, y] = at(index, narrow ? length : 0);
  const box = narrow ? { x, y: y - 13, width: length, height: 26 } : { x: x - 13, y, width: 26, height: length };
  const touch = shape("rect", { ...box, class: "brush" }, root);
  let band = null, start = null;
  const along = (event) => {
    const bounds = root.getBoundingClientRect();
    const place = narrow ? length - (event.clientX - bounds.left - 12) : event.clientY - bounds.top - 46;
    return Math.max(0, Math.min(length, place));
  };
  touch.addEventListener("click", (event) => event.stopPropagation());
  touch.addEventListener("pointerdown", (event) => { start = along(event); band?.remove(); band = null; brushes.delete(axis.name); touch.setPointerCapture(event.pointerId); keep(); });
  touch.addEventListener("pointermove", (event) => {
    if (start === null) return;
    const now = along(event), low = Math.min(start, now), high = Math.max(start, now);
    if (high - low < 3) return;
    band ??= shape("rect", { class: "band" }, root);
    const part = narrow ? { ...box, x: 12 + length - high, width: high - low } : { ...box, y: 46 + low, height: high - low };
    for (const [key, value] of Object.entries(part)) band.setAttribute(key, value);
    brushes.set(axis.name, (trial) => { const value = axis.of(trial); if (value === null) return false; const place = axis.scale.place(value); return place >= low && place <= high; });
    keep();
  });
  touch.addEventListener("pointerup", () => { start = null; });
}
