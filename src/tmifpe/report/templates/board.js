// Sorting by a click on a heading, and the filters.
(function () {
  const table = document.getElementById("board"), body = table.tBodies[0], rows = Array.from(body.rows);
  const form = document.querySelector("form"), count = form.querySelector("output"), heads = Array.from(table.tHead.rows[0].cells);
  const value = (row, column, kind) => { const cell = row.cells[column], text = cell.dataset.value || cell.textContent; return kind === "number" ? Number(text) : text; };
  const order = (a, b, kind) => kind === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });

  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const kind = button.dataset.kind, now = head.getAttribute("aria-sort"), first = kind === "number" ? "descending" : "ascending";
      const wanted = !now ? first : now === "ascending" ? "descending" : "ascending", turn = wanted === "ascending" ? 1 : -1;
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", wanted);
      const keyed = rows.map((row, k) => [value(row, column, kind), k, row]);
      keyed.sort((a, b) => turn * order(a[0], b[0], kind) || a[1] - b[1]);
      body.append(...keyed.map((one) => one[2]));
    });
  });

  const show = () => {
    const asked = form.elements, words = asked.text.value.toLowerCase().split(/\s+/).filter((word) => word);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(words.every((word) => text.includes(word)) && (!asked.threat.value || row.dataset.threat === asked.threat.value)
        && (!asked.data.value || row.dataset.data === asked.data.value) && (!asked.best.checked || row.dataset.best === "1"));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown + " of " + rows.length;
  };
  form.addEventListener("input", show);
  form.addEventListener("reset", () => setTimeout(show));
  form.addEventListener("submit", (event) => event.preventDefault());
})();
