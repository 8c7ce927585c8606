for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  table.tHead.querySelectorAll("th").forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      table.tHead.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const order = (a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === "" || y === "") return (x === "") - (y === "");
        const [i, j] = [x, y].map((text) => parseFloat(text.replace("−", "-").replaceAll(",", "")));
        const way = i - j || x.localeCompare(y);
        return up ? way : -way;
      };
      body.append(...[...body.rows].sort(order));
    });
  });
}
for (const input of document.querySelectorAll("input[data-filters]")) {
  const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
  const said = input.nextElementSibling;
  input.addEventListener("input", () => {
    // "s = 1" is one thing to look for, and is not found in "s = 16".
    const parts = input.value.match(/\S+\s*=\s*\S+|\S+/g) ?? [];
    const wanted = parts.map((part) => {
      const words = part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/\s*=\s*/, "\\s*=\\s*");
      return new RegExp(part.includes("=") ? `(?<!\\w)${words}(?![\\w.])` : words, "i");
    });
    for (const row of rows) {
      const text = [...row.cells].map((cell) => cell.textContent).join("\n");
      row.hidden = !wanted.every((one) => one.test(text));
    }
    const left = rows.filter((row) => !row.hidden).length;
    said.textContent = parts.length === 0 ? ""
      : left === 0 ? "No row has this." : `${left} of ${rows.length} rows`;
  });
}
