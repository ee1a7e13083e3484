"use strict";
// Draws charts in the colours of the style sheet, without the runs that are hidden, and follows the window, the theme
// and the paper. manyhands.show(charts) draws every chart into its place, #chart-<id>, and hears the boxes that hide runs.
const manyhands = (() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 32rem)");
  const touch = window.matchMedia("(pointer: coarse)");
  const PAPER = 680; // pixels of chart on a sheet
  const ROOM = 320; // pixels, enough for any legend of a few names,
  const MORE = 20; // and for each name
  const LETTER = 7; // pixels
  const DOUBLE = 300; // milliseconds between the clicks of a double click, at most
  let charts = [];
  let hidden = new Set();

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

  // The points of a trace that are kept; `place` gives each its new row.
  function pick(trace, keep, place) {
    const chosen = (list) => (Array.isArray(list) ? keep.map((index) => list[index]) : list);
    const along = trace.type === "heatmap" ? ["y", "z", "customdata"] : ["x", "y", "base", "width", "text", "customdata"];
    for (const key of along) if (key in trace) trace[key] = chosen(trace[key]);
    if (trace.marker?.color) trace.marker.color = chosen(trace.marker.color);
    for (const bars of [trace.error_x, trace.error_y]) {
      if (bars) [bars.array, bars.arrayminus] = [chosen(bars.array), chosen(bars.arrayminus)];
    }
    if (place) trace.y = trace.y.map(place);
  }

  const indices = (list, test) => [...list.keys()].filter((index) => test(list[index]));

  // A chart with a row per run: hidden rows go, those below move up. Says whether anything is left.
  function closeRows(data, layout) {
    const rows = layout.meta.rows;
    const gone = rows.filter((row) => hidden.has(row.run));
    const shown = (y) => !gone.some((row) => row.start < y && y < row.end);
    const place = (y) => y - gone.filter((row) => row.end <= y).reduce((sum, row) => sum + row.end - row.start, 0);
    const { yaxis } = layout;
    const [bottom, top] = yaxis.range;
    yaxis.range = [place(bottom), top];
    layout.height *= (yaxis.range[0] - top) / (bottom - top);
    const ticks = indices(yaxis.tickvals, shown);
    yaxis.ticktext = ticks.map((index) => yaxis.ticktext[index]);
    yaxis.tickvals = ticks.map((index) => place(yaxis.tickvals[index]));
    layout.meta.rows = rows.filter((row) => !hidden.has(row.run)).map((row) => ({ ...row, top: place(row.top) }));
    layout.annotations = (layout.annotations || []).filter((note) => shown(note.y));
    layout.annotations.forEach((note) => { note.y = place(note.y); });
    data.forEach((trace) => pick(trace, indices(trace.y, shown), place));
    return layout.meta.rows.length > 0;
  }

  // A chart of curves: those of hidden runs stay in the legend, greyed, where a click brings them back.
  function greyCurves(data) {
    let left = false;
    for (const trace of data.filter((item) => "meta" in item)) {
      const runs = [trace.meta].flat();
      const keep = indices(runs, (run) => !hidden.has(run));
      if (!keep.length) trace.visible = "legendonly";
      else if (Array.isArray(trace.meta) && keep.length < runs.length) pick(trace, keep);
      left ||= keep.length > 0;
    }
    return left || !data.some((item) => "meta" in item);
  }

  async function draw(chart, paperWidth) {
    const place = document.getElementById(`chart-${chart.id}`);
    if (!place) return;
    const { data, layout } = resolve({ data: chart.data, layout: chart.layout }, getComputedStyle(root));
    const left = layout.meta?.rows ? closeRows(data, layout) : greyCurves(data);
    place.hidden = !left;
    place.nextElementSibling.hidden = left;
    if (!left) return;
    layout.width = paperWidth || place.clientWidth;
    if (layout.meta?.rows) nameRows(data, layout, narrow.matches && !paperWidth);
    if (touch.matches) layout.dragmode = false; // a finger on a chart scrolls the page
    if (layout.legend) layout.legend.maxheight = 0.9;
    // The height asked for is that of the plot; what title, ticks and legend need is known once they are drawn.
    const wanted = Math.round(layout.height);
    layout.height = wanted + ROOM + MORE * data.length;
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
    hearLegend(place);
  }

  // Names stand above their rows where there is more than one line to each, and on a narrow screen, where they would
  // take half the width beside them.
  function nameRows(data, layout, slim) {
    const { rows, above } = layout.meta;
    if (!above && !slim) return;
    if (!above) {
      layout.yaxis.showticklabels = false;
      layout.height *= 1.15;
    }
    const room = Math.floor((layout.width - (above ? 100 : 50)) / LETTER);
    const fitting = (name) => (name.length > room ? `${name.slice(0, room - 1)}…` : name);
    layout.annotations = (layout.annotations || []).concat(rows.map(({ name, top }) => ({
      text: above ? `<b>${fitting(name)}</b>` : fitting(name), y: top, yanchor: "bottom", x: 0, xref: "paper", xanchor: "left",
      showarrow: false, borderpad: 1,
    })));
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

  // A click on a run in a legend hides it everywhere, a double click all others; phases and frontiers answer as plotly
  // has it.
  function hearLegend(place) {
    if (place.dataset.heard) return;
    place.dataset.heard = "yes";
    // Plotly reports both clicks of a double click too, so a click counts only when no second one follows.
    let soon;
    const heard = (wait, choose) => (event) => {
      const { meta, legendgroup } = event.data[event.curveNumber];
      const mine = legendgroup ? [] : [meta ?? []].flat(); // a frontier is no run
      clearTimeout(soon);
      if (mine.length) soon = setTimeout(() => hide(choose(mine)), wait);
      return !mine.length;
    };
    const all = () => boxes().map((box) => Number(box.dataset.run));
    place.on("plotly_legendclick", heard(DOUBLE, (mine) => (
      mine.every((run) => hidden.has(run)) ? [...hidden].filter((run) => !mine.includes(run)) : [...hidden, ...mine])));
    place.on("plotly_legenddoubleclick", heard(0, (mine) => {
      const others = all().filter((run) => !mine.includes(run));
      return others.every((run) => hidden.has(run)) ? [] : others;
    }));
  }

  // One pass after the other: plotly must not be asked to draw a chart while it still draws it.
  let passes = Promise.resolve();
  function drawAll(paperWidth) {
    passes = passes.then(async () => {
      for (const chart of charts) await draw(chart, paperWidth);
    });
    return passes;
  }

  const boxes = () => [...document.querySelectorAll(".chooser input[data-run]")];

  // Hides these runs, and no others, in every chart and in the figures under it; in other tables their rows turn grey.
  function hide(runs) {
    hidden = new Set(runs);
    const names = [];
    for (const box of boxes()) {
      box.checked = !hidden.has(Number(box.dataset.run));
      if (!box.checked) names.push(box.dataset.name);
    }
    for (const row of document.querySelectorAll("tr[data-run]")) {
      const off = hidden.has(Number(row.dataset.run));
      row.classList.toggle("off", off);
      if (row.closest(".chart")) row.hidden = off;
    }
    const left = boxes().length - names.length;
    document.querySelectorAll(".chooser .count").forEach((place) => { place.textContent = left; });
    document.querySelectorAll(".hidden-runs").forEach((place) => {
      place.textContent = names.length
        ? `Hidden in the charts: ${names.join("; ")}. Shown: ${left} of ${boxes().length} runs.` : "All runs are shown in the charts.";
    });
    return drawAll();
  }

  function hearChooser(chooser) {
    if (chooser.dataset.heard) return;
    chooser.dataset.heard = "yes";
    const off = () => boxes().filter((box) => !box.checked).map((box) => Number(box.dataset.run));
    chooser.addEventListener("change", () => hide(off()));
    chooser.querySelector("button").addEventListener("click", () => hide([]));
    chooser.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && chooser.open) {
        chooser.open = false;
        chooser.querySelector("summary").focus();
      }
    });
    document.addEventListener("click", (event) => { if (!chooser.contains(event.target)) chooser.open = false; });
  }

  // Draws these charts, which may be newer data of charts already drawn; runs that were hidden stay hidden.
  function show(given) {
    charts = given;
    document.querySelectorAll(".chooser").forEach(hearChooser);
    return drawAll();
  }

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
  window.addEventListener("beforeprint", () => {
    root.dataset.theme = "light";
    drawAll(PAPER);
  });
  window.addEventListener("afterprint", () => {
    delete root.dataset.theme;
    drawAll();
  });

  return { show, hide };
})();
