// Shared by all pages that Legroom writes: sizes and sortable tables.
function size(bytes) {
  if (bytes === null) return "–";
  for (const [unit, name, digits] of [[2 ** 40, "TiB", 2], [2 ** 30, "GiB", 2], [2 ** 20, "MiB", 1], [2 ** 10, "KiB", 1]])
    if (Math.abs(bytes) >= unit) return `${(bytes / unit).toFixed(digits)} ${name}`;
  return `${bytes} B`;
}

// A click on a heading sorts the table; numbers are sorted by value.
document.querySelectorAll("th button").forEach((button) => button.addEventListener("click", (event) => {
  event.stopPropagation();
  const heading = button.parentElement, body = heading.closest("table").tBodies[0], column = heading.cellIndex;
  const down = heading.getAttribute("aria-sort") === "ascending";
  heading.parentElement.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
  heading.setAttribute("aria-sort", down ? "descending" : "ascending");
  const key = (row) => { const text = row.cells[column].dataset.sort ?? row.cells[column].textContent; return text === "" ? NaN : Number.isNaN(Number(text)) ? text : Number(text); };
  const missing = (value) => typeof value === "number" && Number.isNaN(value);
  const order = (a, b) => { // rows without a value stay at the end
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const sign = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
    return down ? -sign : sign;
  };
  body.append(...[...body.rows].sort((a, b) => order(key(a), key(b))));
}));

// Reads binary data that the page contains as compressed text.
async function unpacked(text, Kind) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Kind(await new Response(stream).arrayBuffer());
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// The first position whose value is greater than `value`.
function after(values, value, from = 0, to = values.length) {
  while (from < to) {
    const middle = (from + to) >> 1;
    if (values[middle] > value) to = middle; else from = middle + 1;
  }
  return from;
}
