// The allocator map: all segments in the order of their addresses, as one band that continues in the next row.
const map = byId("map").querySelector("canvas"), mapTip = byId("map").querySelector(".tip");
const BAND = 20, GAP = 3;
const blocks = [];
let offset = 0;
run.segments.forEach(([small, parts], segment) => {
  const total = parts.reduce((sum, [bytes]) => sum + bytes, 0);
  parts.forEach(([bytes, site], at) => {
    blocks.push({ from: offset, to: offset + bytes, bytes, site: site < 0 ? null : sites[site], segment, small, total, first: at === 0 });
    offset += bytes;
  });
});
const reservedBytes = offset;
let current = -1;

function mapRows() { return Math.max(1, Math.min(16, Math.ceil(blocks.length / 12), 16)); }

function drawMap() {
  if (!blocks.length) return;
  const rows = mapRows(), height = rows * (BAND + GAP);
  map.style.height = `${height}px`;
  const { context, width } = prepare(map, height), perRow = reservedBytes / rows, stripe = stripes(context, palette.grey);
  for (const [at, block] of blocks.entries()) {
    for (let row = Math.floor(block.from / perRow); row < rows && row * perRow < block.to; row++) {
      const left = ((Math.max(block.from, row * perRow) - row * perRow) / perRow) * width;
      const right = ((Math.min(block.to, (row + 1) * perRow) - row * perRow) / perRow) * width, y = row * (BAND + GAP);
      context.fillStyle = block.site ? palette.kinds[block.site.kind] : stripe;
      context.fillRect(left, y, right - left, BAND);
      context.fillStyle = palette.ground;
      if (block.from >= row * perRow) context.fillRect(left, y, block.first ? Math.min(2.5, right - left) : Math.min(0.5, (right - left) / 2), BAND);
      if (at === current) { context.strokeStyle = palette.ink; context.lineWidth = 2; context.strokeRect(left + 1, y + 1, Math.max(right - left - 2, 1), BAND - 2); context.lineWidth = 1; }
    }
  }
}

function selectBlock(at, speak) {
  current = at;
  drawMap();
  mapTip.hidden = at < 0;
  if (at < 0) return;
  const { bytes, site, segment, small, total, from } = blocks[at];
  const what = site ? `${run.categories[site.kind]}, ${site.location}${site.module ? `, ${site.module}` : ""}` : "free block";
  const where = `segment ${segment + 1} of ${run.segments.length} (${size(total)}, ${small ? "small" : "large"} pool)`;
  mapTip.replaceChildren(element("strong", { textContent: `${size(bytes)}: ${what}` }), element("div", { textContent: where }), ...(site?.source ? [element("code", { textContent: site.source })] : []));
  const perRow = reservedBytes / mapRows(), x = ((from % perRow) / perRow) * map.clientWidth;
  mapTip.style.left = `${Math.max(Math.min(x, map.clientWidth - mapTip.offsetWidth), 0)}px`;
  mapTip.style.top = `${(Math.floor(from / perRow) + 1) * (BAND + GAP) + 4}px`;
  if (speak) byId("map-live").textContent = `${size(bytes)}: ${what}, ${where}`;
}

map.addEventListener("pointermove", (event) => {
  const perRow = reservedBytes / mapRows(), place = (Math.floor(event.offsetY / (BAND + GAP)) + event.offsetX / map.clientWidth) * perRow;
  selectBlock(blocks.findIndex((block) => place >= block.from && place < block.to), false);
});
map.addEventListener("pointerleave", () => selectBlock(-1));
map.addEventListener("blur", () => selectBlock(-1));
map.addEventListener("keydown", (event) => {
  const to = { ArrowRight: Math.min(current + 1, blocks.length - 1), ArrowLeft: Math.max(current - 1, 0), Home: 0, End: blocks.length - 1 }[event.key];
  if (to !== undefined && blocks.length) { event.preventDefault(); selectBlock(to, true); }
  if (event.key === "Escape") selectBlock(-1);
});

const drawAll = () => { draw(); drawIcicle(); drawMap(); };
drawAll();
let width = document.body.clientWidth;
new ResizeObserver(() => { if (width !== document.body.clientWidth) { width = document.body.clientWidth; drawAll(); } }).observe(document.body);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColors(); drawAll(); });
document.documentElement.dataset.ready = "true";
