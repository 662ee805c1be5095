// The icicle chart: the live memory of the selected moment, by module, source line or category.
const live = { sites: await unpacked(run.live.sites, Uint32Array), sizes: await unpacked(run.live.sizes, Uint32Array), counts: await unpacked(run.live.counts, Uint32Array) };
const sites = run.sites.map(([module, location, file, method, source, kind]) => ({
  module: run.names[module], location: run.names[location], file: run.names[file], method: run.names[method], source: run.names[source], kind,
}));
let start = 0;
for (const moment of run.moments) { moment.start = start; start += moment.size; }

const ROW = 24, box = byId("icicle"), picker = byId("moment"), search = byId("search");
let root = null, focus = null;

const stepName = (moment) => (moment.label !== "peak" && isAfterSteps(moment.time) ? "after the last step" : `step ${moment.step}`);
const momentName = (moment) => `${moment.label ? `${moment.label}, ` : ""}${stepName(moment)} ${run.phaseNames[moment.phase]}, ${seconds(moment.time - run.begin)}`;
picker.append(...run.moments.map((moment, at) => ({ moment, at })).sort((a, b) => !a.moment.label - !b.moment.label || a.at - b.at)
  .map(({ moment, at }) => element("option", { value: at, textContent: momentName(moment) })));

// `net.GELU (4.1)` consists of `net` and `GELU (4.1)`.
const modulePath = (module) => module.match(/(?:\([^)]*\)|[^.])+/g) ?? [module || "no module"];
const PATHS = {
  module: (site) => [...modulePath(site.module), site.location, run.categories[site.kind]],
  line: (site) => [site.file, site.method || "module level", site.location, run.categories[site.kind]],
  category: (site) => [run.categories[site.kind], site.location, site.module || "no module"],
};

// A tree whose nodes have the bytes of each category.
function build(moment, grouping) {
  const top = { name: "allocated", bytes: 0, count: 0, kinds: {}, children: new Map(), parent: null, sites: [] };
  for (let at = moment.start; at < moment.start + moment.size; at++) {
    const site = sites[live.sites[at]], bytes = live.sizes[at] * UNIT;
    let node = top;
    for (const name of [null, ...PATHS[grouping](site)]) {
      if (name !== null) {
        if (!node.children.has(name)) node.children.set(name, { name, bytes: 0, count: 0, kinds: {}, children: new Map(), parent: node, sites: [] });
        node = node.children.get(name);
      }
      node.bytes += bytes;
      node.count += live.counts[at];
      node.kinds[site.kind] = (node.kinds[site.kind] ?? 0) + bytes;
      node.sites.push(site);
    }
  }
  return top;
}

const largest = (node) => [...node.children.values()].sort((a, b) => b.bytes - a.bytes);
const mainKind = (node) => Object.entries(node.kinds).sort((a, b) => b[1] - a[1])[0]?.[0] ?? 0;
const matches = (site, text) => [site.module, site.location, site.method, site.source, run.categories[site.kind]].some((each) => each.toLowerCase().includes(text));

function drawIcicle() {
  const text = search.value.trim().toLowerCase(), cells = [];
  let depth = 0;
  const ancestors = [];
  for (let node = focus.parent; node; node = node.parent) ancestors.unshift(node);
  ancestors.forEach((node, row) => cells.push(cell(node, 0, 1, row, text)));
  const place = (node, left, width, row) => {
    if (width * box.clientWidth < 1.5 && node !== focus) return;
    depth = Math.max(depth, row + 1);
    cells.push(cell(node, left, width, row, text));
    let x = left;
    for (const child of largest(node)) {
      const share = node.bytes ? (child.bytes / node.bytes) * width : 0;
      place(child, x, share, row + 1);
      x += share;
    }
  };
  place(focus, 0, 1, ancestors.length);
  box.style.height = `${Math.max(depth, ancestors.length + 1) * ROW}px`;
  const focused = box.contains(document.activeElement) ? document.activeElement.node : null;
  box.replaceChildren(...cells);
  cells.find((each) => each.node === focused)?.focus();
  (cells[ancestors.length] ?? cells[0]).tabIndex = 0;
  byId("icicle-reset").hidden = focus === root;
  const found = text ? root.sites.filter((site) => matches(site, text)) : [];
  const bytes = found.reduce((sum, site) => sum + sizeOf(site), 0);
  byId("search-text").textContent = text ? `${found.length} ${found.length === 1 ? "entry matches" : "entries match"}: ${size(bytes)} of ${size(root.bytes)}${root.bytes ? ` (${Math.round((100 * bytes) / root.bytes)}%)` : ""}.` : "";
}

let sizesNow = new Map();
const sizeOf = (site) => sizesNow.get(site) ?? 0;

function cell(node, left, width, row, text) {
  const share = root.bytes ? (100 * node.bytes) / root.bytes : 0, inner = node.children.size > 0;
  const made = element("button", { type: "button", tabIndex: -1, textContent: width * box.clientWidth > 30 ? `${node.name} · ${size(node.bytes)}` : "" });
  made.className = `cell ${inner ? "inner" : "leaf"}${width * box.clientWidth < 14 ? " tiny" : ""}${text && !node.sites.some((site) => matches(site, text)) ? " dim" : ""}`;
  made.style.cssText = `left:${left * 100}%;width:${width * 100}%;top:${row * ROW}px;--tone:var(--c${mainKind(node)})`;
  made.setAttribute("role", "treeitem");
  made.setAttribute("aria-level", row + 1);
  made.setAttribute("aria-label", `${node.name}: ${size(node.bytes)}, ${share.toFixed(1)}% of allocated memory`);
  made.node = node;
  made.onclick = () => { focus = inner ? node : focus; made.focus(); drawIcicle(); };
  made.onfocus = made.onpointerenter = () => detail(node);
  return made;
}

function detail(node) {
  const path = [];
  for (let each = node; each.parent; each = each.parent) path.unshift(each.name);
  const kindsText = Object.entries(node.kinds).sort((a, b) => b[1] - a[1]).map(([kind, bytes]) => `${run.categories[kind]} ${size(bytes)}`).join(", ");
  const lines = [...new Map(node.sites.filter((site) => site.source).map((site) => [site.location, site.source]))].slice(0, 3);
  byId("icicle-detail").replaceChildren(
    element("strong", { textContent: path.join(" › ") || "All allocated memory" }),
    ` ${size(node.bytes)} (${root.bytes ? ((100 * node.bytes) / root.bytes).toFixed(1) : 0}%), ${node.count.toLocaleString("en")} ${node.count === 1 ? "tensor" : "tensors"}: ${kindsText}`,
    ...lines.flatMap(([where, source]) => [element("br"), `${where}  `, element("code", { textContent: source })]));
}

function choose(at) {
  chosen = at;
  const moment = run.moments[at];
  sizesNow = new Map();
  for (let entry = moment.start; entry < moment.start + moment.size; entry++) sizesNow.set(sites[live.sites[entry]], live.sizes[entry] * UNIT);
  root = focus = build(moment, byId("grouping").value);
  picker.value = at;
  const name = moment.label === "peak" ? "At the peak" : moment.label ? "When memory ran out" : "At the selected moment";
  byId("moment-text").textContent = `${name} (${stepName(moment)} ${run.phaseNames[moment.phase]}, ${seconds(moment.time - run.begin)}), ${size(root.bytes)} was allocated. The width is the size of the memory. Click to enlarge.`;
  byId("icicle-detail").textContent = "Point at an entry, or move to it with the arrow keys, to see its size and source line.";
  byId("earlier").disabled = at === 0;
  byId("later").disabled = at === run.moments.length - 1;
  drawIcicle();
  drawSoon();
}

function nearest(time) {
  let best = 0;
  run.moments.forEach((moment, at) => { if (Math.abs(moment.time - time) < Math.abs(run.moments[best].time - time)) best = at; });
  return best;
}
const chooseNear = (time) => choose(nearest(time));

// The three lines with the most live memory at a moment.
function largestLines(at) {
  const moment = run.moments[at];
  if (!moment.lines) {
    const sums = new Map();
    for (let entry = moment.start; entry < moment.start + moment.size; entry++) {
      const { location } = sites[live.sites[entry]];
      sums.set(location, (sums.get(location) ?? 0) + live.sizes[entry] * UNIT);
    }
    moment.lines = [...sums].sort((a, b) => b[1] - a[1]).slice(0, 3);
  }
  return moment.lines;
}

picker.onchange = () => choose(Number(picker.value));
byId("earlier").onclick = () => choose(Math.max(chosen - 1, 0));
byId("later").onclick = () => choose(Math.min(chosen + 1, run.moments.length - 1));
byId("grouping").onchange = () => choose(chosen);
byId("icicle-reset").onclick = () => { focus = root; drawIcicle(); };
search.oninput = () => drawIcicle();
box.addEventListener("keydown", (event) => {
  const node = event.target.node, siblings = node?.parent ? largest(node.parent) : [node];
  const next = { ArrowUp: node?.parent, ArrowDown: node && largest(node)[0], ArrowLeft: siblings[siblings.indexOf(node) - 1], ArrowRight: siblings[siblings.indexOf(node) + 1] }[event.key];
  if (event.key === "Escape") { focus = root; drawIcicle(); box.querySelector("[tabindex='0']").focus(); }
  const target = next && [...box.children].find((each) => each.node === next);
  if (target) { event.preventDefault(); target.focus(); }
});

choose(run.main);
for (const row of document.querySelectorAll("tr[data-time]")) row.addEventListener("click", () => { // the highest moment of the step
  const stop = Number(row.dataset.time), at = after(steps.ends, stop - 1e-9), from = at ? steps.ends[at - 1] : run.begin;
  const inside = run.moments.map((moment, number) => number).filter((number) => run.moments[number].time > from && run.moments[number].time <= stop);
  if (inside.length) choose(inside.reduce((a, b) => (run.moments[b].size && total(b) > total(a) ? b : a))); else chooseNear(stop);
  byId("icicle-section").scrollIntoView({ block: "nearest" });
});
function total(at) { let sum = 0; const moment = run.moments[at]; for (let entry = moment.start; entry < moment.start + moment.size; entry++) sum += live.sizes[entry]; return sum; }
