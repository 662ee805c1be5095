// Shows the state of the machine and requests a newer one again and again. All text is set as text, never as HTML.
const state = JSON.parse(document.getElementById("state").textContent);
const token = new URLSearchParams(location.search).get("token") ?? "";
const find = (id) => document.getElementById(id);
const na = (value, format = String) => (value === null || value === undefined ? "N/A" : format(value));
const percent = (value) => na(value, (number) => `${number.toFixed(0)}%`);
const part = (used, total) => `${na(used, size)} of ${na(total, size)}`;
const ratio = (used, total) => (used === null || !total ? null : Math.min((100 * used) / total, 100));
let shown = state.document, opened = null;

function elapsed(seconds) {
  const whole = Math.max(Math.floor(seconds), 0), two = (number) => String(number).padStart(2, "0");
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

function sparkline(values) {
  const NS = "http://www.w3.org/2000/svg", svg = document.createElementNS(NS, "svg"), path = document.createElementNS(NS, "path");
  svg.setAttribute("viewBox", "0 0 120 20");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const start = 120 - values.length;
  let drawing = "", pen = false;
  values.forEach((value, index) => {
    if (value !== null) drawing += `${pen ? "L" : "M"}${start + index} ${19 - (value / 100) * 18}`;
    pen = value !== null;
  });
  path.setAttribute("d", drawing);
  svg.append(path);
  return svg;
}

// A label, a bar, the percentage and the history. A full memory is a warning; a busy processor is not.
function figure(label, value, key, warns) {
  const fill = element("span"), level = !warns ? "" : value >= 90 ? "bad" : value >= 75 ? "warn" : "ok";
  fill.style.width = `${value ?? 0}%`;
  const bar = element("div", { className: `bar ${level}` }, fill);
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", `${label} ${percent(value)}`);
  return element("div", { className: "figure" }, element("span", { className: "label" }, label), bar,
    element("span", { className: "number" }, percent(value)), sparkline(shown.history[key] ?? []));
}

function device(title, facts, ...figures) {
  return element("div", { className: "device" }, element("h2", {}, title),
    element("p", { className: "note" }, facts.join(" · ")), ...figures);
}

function devices() {
  const { host } = shown;
  const cards = [device("Host", [part(host.memory_used_bytes, host.memory_total_bytes) + (host.memory_is_limited ? " (limit)" : ""),
    `${host.cores} core${host.cores === 1 ? "" : "s"}, load ${na(host.load)}`],
    figure("MEM", ratio(host.memory_used_bytes, host.memory_total_bytes), "host.memory", true),
    figure("CPU", host.cpu_percent, "host.cpu", false))];
  for (const gpu of shown.gpus)
    cards.push(device(`GPU ${gpu.index} ${gpu.name}`, [
      (gpu.memory_used_is_lower_bound ? "≥ " : "") + part(gpu.memory_used_bytes, gpu.memory_total_bytes),
      `${na(gpu.temperature_celsius)} °C`, `${na(gpu.power_watts)} of ${na(gpu.power_limit_watts)} W`],
      figure("MEM", ratio(gpu.memory_used_bytes, gpu.memory_total_bytes), `gpu${gpu.index}.memory`, true),
      figure("UTL", gpu.utilization_percent, `gpu${gpu.index}.utilization`, false)));
  for (const gpu of shown.virtual_gpus)
    cards.push(device(`Virtual GPU ${gpu.device}`, [part(gpu.reserved_bytes, gpu.capacity_bytes), `PID ${gpu.pid}`, gpu.script.split("/").pop()],
      figure("MEM", ratio(gpu.reserved_bytes, gpu.capacity_bytes), `virtual${gpu.pid}.${gpu.device}.memory`, true),
      figure("ALLOC", ratio(gpu.allocated_bytes, gpu.capacity_bytes), `virtual${gpu.pid}.${gpu.device}.allocated`, false)));
  find("devices").replaceChildren(...cards);
}

// A column: heading, text of a cell, value to sort by, whether it is a number.
const script = (run) => run.script.split("/").pop() + (run.rank === null ? "" : ` ${run.rank}/${run.world_size ?? "?"}`);
const trend = (run) => run.trend_bytes_per_step === null ? "N/A" : run.trend_bytes_per_step === 0 ? "steady"
  : (run.trend_bytes_per_step > 0 ? "+" : "") + size(run.trend_bytes_per_step);
const finding = (run) => run.silent_seconds ? `No update for ${elapsed(run.silent_seconds)}.` : [run.finding, run.advice].filter(Boolean).join(". ");
const memory = (run, bytes) => (run.devices.length ? size(bytes) : "N/A");
const RUNS = [
  ["PID", (run) => String(run.pid), (run) => run.pid, true],
  ["Script", script, script, false],
  ["Step", (run) => na(run.step) + (run.total_steps === null ? "" : ` of ${run.total_steps}`), (run) => run.step, true],
  ["Step time", (run) => na(run.seconds_per_step, (s) => (s < 1 ? `${(s * 1000).toFixed(0)} ms` : `${s.toFixed(2)} s`)), (run) => run.seconds_per_step, true],
  ["Allocated", (run) => memory(run, run.allocated_bytes), (run) => run.allocated_bytes, true],
  ["Reserved", (run) => memory(run, run.reserved_bytes), (run) => run.reserved_bytes, true],
  ["Trend per step", trend, (run) => run.trend_bytes_per_step, true],
  ["Finding", (run) => (run.silent_seconds ? "silent" : run.finding ? (/^LG\d+/.exec(run.finding) ?? ["OOM"])[0] : "–"), (run) => run.finding ?? "", false],
];
const PROCESSES = [
  ["GPU", (row) => row.gpu ?? "–", (row) => row.gpu, true],
  ["PID", (row) => String(row.pid), (row) => row.pid, true],
  ["User", (row) => na(row.user), (row) => row.user, false],
  ["GPU memory", (row) => na(row.gpu_memory_bytes, size), (row) => row.gpu_memory_bytes, true],
  ["SM", (row) => percent(row.gpu_utilization_percent), (row) => row.gpu_utilization_percent, true],
  ["CPU", (row) => percent(row.cpu_percent), (row) => row.cpu_percent, true],
  ["Memory", (row) => na(row.memory_bytes, size), (row) => row.memory_bytes, true],
  ["Time", (row) => na(row.started, (started) => elapsed(shown.time - started)), (row) => row.started, true],
  ["Command", (row) => row.command ?? row.name ?? "N/A", (row) => row.command ?? row.name, false],
];
const order = { runs: { column: 1, down: false }, processes: { column: 3, down: true } };

// Rows without a value come last in both directions.
function sorted(rows, columns, { column, down }) {
  const value = columns[column][2], missing = (row) => value(row) === null || value(row) === undefined;
  return [...rows].sort((a, b) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const sign = typeof value(a) === "number" ? value(a) - value(b) : String(value(a)).localeCompare(String(value(b)), "en", { numeric: true });
    return down ? -sign : sign;
  });
}

function table(id, columns, rows) {
  const heading = find(id).tHead.rows[0], choice = order[id];
  if (!heading.cells.length)
    columns.forEach(([title, , , number], index) => {
      const button = element("button", { type: "button" }, title);
      button.addEventListener("click", () => {
        Object.assign(choice, { down: choice.column === index ? !choice.down : number, column: index });
        show();
      });
      heading.append(element("th", { className: number ? "number" : "", scope: "col" }, button));
    });
  [...heading.cells].forEach((cell, index) => {
    if (index === choice.column) cell.setAttribute("aria-sort", choice.down ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
  const focused = document.activeElement?.dataset?.key;
  find(id).tBodies[0].replaceChildren(...sorted(rows, columns, choice).map((row) => {
    const line = element("tr", { tabIndex: 0 }, ...columns.map(([title, text, , number]) =>
      element("td", { className: number ? "number" : title === "Command" ? "command" : "" }, text(row))));
    line.dataset.key = `${id} ${row.gpu ?? ""} ${row.pid}`;
    line.addEventListener("click", () => open(row.pid));
    line.addEventListener("keydown", (event) => { if (event.key === "Enter") open(row.pid); });
    return line;
  }));
  if (focused) [...find(id).tBodies[0].rows].find((line) => line.dataset.key === focused)?.focus();
}

function facts(pid) {
  const rows = shown.processes.filter((row) => row.pid === pid), run = shown.runs.find((each) => each.pid === pid);
  if (!rows.length) return [["", "The process has ended."]];
  const [row] = rows, list = [];
  if (run) {
    list.push(["Run", script(run)], ["Step", `${na(run.step)}, ${na(run.seconds_per_step, (s) => `${s.toPrecision(4)} s`)} per step`],
      ["Finding", finding(run) || "none"], ["Trend per step", trend(run)]);
    for (const each of run.devices)
      list.push([`Device ${each.device}`, each.name], ["allocated", `${size(each.allocated_bytes)}, peak ${size(each.peak_allocated_bytes)}`],
        ["reserved", `${part(each.reserved_bytes, each.capacity_bytes)}, peak ${size(each.peak_reserved_bytes)}`]);
    list.push(["Started as", run.command], ["Folder", run.folder]);
  }
  list.push(["PID", String(pid)], ["User", na(row.user)], ["Command", na(row.command)], ["State", na(row.state)], ["CPU", percent(row.cpu_percent)],
    ["Host memory", na(row.memory_bytes, size)], ["Threads", na(row.threads)], ["Parent", na(row.parent)]);
  for (const each of rows) if (each.gpu) list.push([`GPU ${each.gpu}`, na(each.gpu_memory_bytes, size)]);
  return list;
}

function open(pid) {
  opened = pid;
  find("details-title").textContent = `Process ${pid}`;
  details();
  find("details").showModal();
}

function details() {
  if (opened === null) return;
  find("details").querySelector("dl").replaceChildren(...facts(opened).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function show() {
  find("clock").textContent = [new Date(shown.time * 1000).toLocaleTimeString(), shown.driver ? `driver ${shown.driver}` : shown.gpus.length ? "" : "no GPU found"].filter(Boolean).join(" · ");
  devices();
  const words = find("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = (text) => words.every((word) => text.toLowerCase().includes(word));
  const rows = shown.processes.filter((row) => matches(`${row.command ?? row.name} ${row.user} ${row.pid} gpu${row.gpu}`));
  find("runs-part").hidden = !shown.runs.length;
  table("runs", RUNS, shown.runs.filter((run) => matches(`${run.script} ${run.command} ${run.pid} ${run.finding}`)));
  find("findings").replaceChildren(...shown.runs.filter(finding).map((run) => element("li", {}, `PID ${run.pid} (${script(run)}): ${finding(run)}`)));
  table("processes", PROCESSES, rows);
  find("none").hidden = shown.processes.length > 0;
  details();
}

async function update() {
  if (!document.hidden)
    try {
      const answer = await fetch(`data?token=${encodeURIComponent(token)}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(answer.status === 403 ? "The token is no longer valid. Open the address that was printed last." : `The server answered ${answer.status}.`);
      shown = await answer.json();
      find("problem").textContent = "";
      show();
    } catch (error) {
      find("problem").textContent = error instanceof TypeError ? "No connection. Is legroom monitor --serve still running?" : error.message;
    }
  setTimeout(update, state.interval * 1000);
}

find("filter").addEventListener("input", show);
find("details").addEventListener("close", () => { opened = null; });
document.addEventListener("visibilitychange", () => { if (!document.hidden) show(); });
show();
setTimeout(update, state.interval * 1000);
