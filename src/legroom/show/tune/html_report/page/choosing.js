// The highlighted trial and the filters on axes apply to all charts and the table.
const brushes = new Map();
const detail = document.getElementById("detail");
const rows = [...document.querySelectorAll("tr[data-trial]")];
let pinned = null;

const elementsOf = (number) => document.querySelectorAll(`[data-trial="${number}"]`);

function point(number) {
  document.querySelectorAll(".is-hovered").forEach((element) => element.classList.remove("is-hovered"));
  document.body.classList.toggle("has-hover", number !== null);
  detail.hidden = number === null;
  if (number === null) return;
  elementsOf(number).forEach((element) => element.classList.add("is-hovered"));
  describe(study.trials.find((trial) => trial.number === number));
}

function describe(trial) {
  const lines = [
    ...Object.entries(trial.config).map(([name, value]) => [name, figure(value)]),
    [study.metric, figure(trial.value)],
    ["memory", `${size(trial.predicted)} predicted, ${size(trial.peak)} measured`],
  ];
  const heading = document.createElement("strong");
  heading.textContent = `Trial ${trial.number}: ${trial.state}`;
  const table = document.createElement("table");
  for (const [name, value] of lines) {
    const row = table.insertRow();
    row.insertCell().textContent = name;
    row.insertCell().textContent = value;
  }
  const reason = document.createElement("div");
  reason.textContent = trial.reason;
  detail.replaceChildren(heading, table, reason);
}

function pointable(element, number) {
  element.dataset.trial = number;
  element.addEventListener("pointerenter", () => pinned === null && point(number));
  element.addEventListener("pointerleave", () => pinned === null && point(null));
  element.addEventListener("click", (event) => { event.stopPropagation(); pinned = pinned === number ? null : number; point(pinned); });
}
document.addEventListener("click", () => { if (pinned !== null) { pinned = null; point(null); } });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") { pinned = null; point(null); } });

for (const button of document.querySelectorAll("[data-copy]"))
  button.addEventListener("click", () => {
    const text = button.nextElementSibling;
    getSelection().selectAllChildren(text); // a copy by keyboard also works, if the clipboard is not available
    navigator.clipboard?.writeText(text.textContent).then(() => { button.textContent = "Copied"; });
  });

function keep() {
  const kept = new Set(study.trials.filter((trial) => [...brushes.values()].every((inside) => inside(trial))).map((trial) => trial.number));
  document.querySelectorAll("[data-trial]").forEach((element) => element.classList.toggle("is-out", !kept.has(Number(element.dataset.trial))));
  document.getElementById("filtered").textContent = brushes.size ? `${kept.size} of ${study.trials.length} trials shown.` : "";
}

for (const row of rows) {
  pointable(row, Number(row.dataset.trial));
  row.tabIndex = 0;
  row.addEventListener("focus", () => pinned === null && point(Number(row.dataset.trial)));
  row.addEventListener("blur", () => pinned === null && point(null));
}
