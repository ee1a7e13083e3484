"use strict";
// Draws the charts of the page, sorts its table, and unfolds the runs for paper.
(() => {
  function sortable(table) {
    const headings = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    headings.forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => {
        const numeric = heading.classList.contains("number");
        const before = heading.getAttribute("aria-sort");
        const order = before === "none" ? (numeric ? "descending" : "ascending")
          : before === "descending" ? "ascending" : "descending";
        headings.forEach((other) => other.setAttribute("aria-sort", other === heading ? order : "none"));
        const sign = order === "ascending" ? 1 : -1;
        const key = (row) => row.cells[column]?.dataset.sort ?? "";
        const rows = [...body.rows].sort((a, b) => {
          const [x, y] = [key(a), key(b)];
          if (x === "" || y === "") return (x === "") - (y === ""); // rows without the figure stay last
          return sign * (numeric ? Number(x) - Number(y) : x.localeCompare(y));
        });
        body.append(...rows);
      });
    });
  }

  document.querySelectorAll("#summary-table").forEach(sortable);
  manyhands.show(JSON.parse(document.getElementById("chart-data").textContent))
    .then(() => document.documentElement.setAttribute("data-ready", "yes"));

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("#runs details:not([open])")];
    opened.forEach((element) => { element.open = true; });
  });
  window.addEventListener("afterprint", () => opened.forEach((element) => { element.open = false; }));
})();
