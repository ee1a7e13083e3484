"use strict";
// Draws the charts in the colours of the style sheet, sorts the table, and gets the page ready for paper.
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)");
  const PAPER = 680; // pixels of chart on a sheet

  // "var(--text)" anywhere in a figure becomes the colour (or font) the style sheet has for it now.
  function resolve(value, style) {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? style.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => resolve(item, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, resolve(item, style)]));
    }
    return value;
  }

  function draw(chart, paperWidth) {
    const place = document.getElementById(`chart-${chart.id}`);
    const { data, layout } = resolve({ data: chart.data, layout: chart.layout }, getComputedStyle(root));
    if (paperWidth) layout.width = paperWidth;
    if (chart.legend) growForLegend(layout, chart.legend, paperWidth || place.clientWidth);
    if (touch.matches) layout.dragmode = false; // a finger on a chart scrolls the page
    const config = {
      responsive: !paperWidth,
      displaylogo: false,
      displayModeBar: true,
      modeBarButtons: [["toImage", "resetScale2d"]],
      toImageButtonOptions: { filename: `manyhands-${chart.id}`, format: "png", scale: 2 },
    };
    return Plotly.react(place, data, layout, config).then(() => reachable(place));
  }

  // The plot keeps its height; the legend below it adds its own lines.
  function growForLegend(layout, entries, width) {
    const columns = Math.max(1, Math.floor(width / (layout.legend.entrywidth + 42)));
    layout.height += 8 + 20 * Math.ceil(entries / columns);
  }

  // The buttons of a chart answer to the keyboard, whatever element this version of plotly makes them of.
  function reachable(place) {
    for (const button of place.querySelectorAll(".modebar-btn")) {
      button.setAttribute("aria-label", button.dataset.title || "");
      if (button.tagName === "BUTTON" || button.dataset.reachable) continue;
      button.dataset.reachable = "yes";
      button.setAttribute("role", "button");
      button.tabIndex = 0;
      button.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); button.click(); }
      });
    }
  }

  const drawAll = (paperWidth) => Promise.all(charts.map((chart) => draw(chart, paperWidth)));

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

  sortable(document.getElementById("summary-table"));
  drawAll().then(() => root.setAttribute("data-ready", "yes"));
  dark.addEventListener("change", () => drawAll());

  let opened = [];
  window.addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    opened = [...document.querySelectorAll("#runs details:not([open])")];
    opened.forEach((element) => { element.open = true; });
    drawAll(PAPER);
  });
  window.addEventListener("afterprint", () => {
    delete root.dataset.theme;
    opened.forEach((element) => { element.open = false; });
    drawAll();
  });
})();
