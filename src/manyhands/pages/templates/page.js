"use strict";
// Draws the charts in the colours of the style sheet, sorts the table, and gets the page ready for paper.
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("chart-data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 32rem)");
  const touch = window.matchMedia("(pointer: coarse)");
  const PAPER = 680; // pixels of chart on a sheet
  const ROOM = 320; // pixels, enough for any legend

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

  async function draw(chart, paperWidth) {
    const place = document.getElementById(`chart-${chart.id}`);
    const { data, layout } = resolve({ data: chart.data, layout: chart.layout }, getComputedStyle(root));
    layout.width = paperWidth || place.clientWidth;
    if (narrow.matches && !paperWidth) namesAboveRows(data, layout);
    if (touch.matches) layout.dragmode = false; // a finger on a chart scrolls the page
    layout.legend.maxheight = 0.9;
    // The height asked for is that of the plot; what title, ticks and legend need is known once they are drawn.
    const wanted = layout.height;
    layout.height = wanted + ROOM;
    await Plotly.react(place, data, layout, {
      displaylogo: false,
      displayModeBar: true,
      modeBarButtons: [["toImage", "resetScale2d"]],
      toImageButtonOptions: { filename: `manyhands-${chart.id}`, format: "png", scale: 2 },
    });
    const missing = Math.round(wanted - place._fullLayout._size.h);
    if (missing) await Plotly.relayout(place, { height: layout.height + missing });
    place.style.minHeight = "0";
    reachable(place);
  }

  // On a narrow screen the names of rows would take half the width: they go above their rows.
  function namesAboveRows(data, layout) {
    const rows = layout.meta?.rows;
    if (!rows) return;
    layout.yaxis.showticklabels = false;
    layout.height *= 1.15;
    layout.annotations = (layout.annotations || []).concat(rows.map(([text, top]) => (
      { text, y: top, yanchor: "bottom", x: 0, xref: "paper", xanchor: "left", showarrow: false, borderpad: 1 }
    )));
    for (const trace of data.filter((item) => item.type === "heatmap")) {
      layout.height += 20 * rows.length;
      trace.ygap = 22;
      if (trace.x.length > 7) trace.texttemplate = trace.texttemplate && "%{z:.0f}";
    }
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

  // One pass after the other: plotly must not be asked to draw a chart while it still draws it.
  let passes = Promise.resolve();
  function drawAll(paperWidth) {
    passes = passes.then(async () => {
      for (const chart of charts) await draw(chart, paperWidth);
    });
    return passes;
  }

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

  let width = window.innerWidth;
  let soon;
  window.addEventListener("resize", () => {
    clearTimeout(soon);
    soon = setTimeout(() => {
      if (window.innerWidth === width) return; // a phone's address bar changes only the height
      width = window.innerWidth;
      drawAll();
    }, 150);
  });

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
