"use strict";
// The list of runs: asks the server what has changed, shows it filtered and sorted, running runs first. Text only: no
// string of a record ever becomes markup.
(() => {
  const $ = (id) => document.getElementById(id);
  const RUNNING = new Set(["running", "starting", "saving"]);
  const PART = 200; // lines shown before somebody asks for all
  const MOST = 40; // runs in a comparison
  const headings = [...document.querySelectorAll("#runs-table th[data-key]")];
  const body = document.querySelector("#runs-table tbody");
  const filters = $("filters");
  const runs = new Map(); // id -> what the server says of it
  const chosen = new Set(kept().split(" ").filter(Boolean));
  let version = 0;
  let order = { key: "started", sign: -1 };
  let shown = PART;

  const made = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const number = (value, digits = 0) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  const amount = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  const name = (run) => (run.task ? `${run.task} · ${run.strategy}` : run.folder);
  const steps = (run) => `step ${number(run.step || 0)}${run.steps ? ` of ${number(run.steps)}` : ""}`;
  const family = (text) => (text || "").split(":")[0];
  const TEXTS = {
    ranks: (run) => number(run.ranks),
    status: (run) => run.status,
    speed: (run) => number(run.speed),
    accuracy: (run) => `${number(100 * run.accuracy, 2)} %`,
    seconds: (run) => duration(run.seconds),
    started: (run) => moment(run.started),
  };

  function duration(seconds) {
    if (seconds < 60) return `${number(seconds, 1)} s`;
    const minutes = Math.round(seconds / 60);
    return minutes < 120 ? `${minutes} min` : `${number(minutes / 60, 1)} h`;
  }

  function moment(text) {
    const time = new Date(text);
    if (Number.isNaN(time.getTime())) return text;
    const two = (value) => String(value).padStart(2, "0");
    return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${two(time.getHours())}:${two(time.getMinutes())}`;
  }

  function box(id, run) {
    const input = made("input", { type: "checkbox", checked: chosen.has(id), autocomplete: "off" });
    Object.assign(input.dataset, { id, focus: `box-${id}` });
    return made("label", {}, input, made("span", { className: "unseen", textContent: `Compare ${name(run)}, ${run.folder}` }));
  }

  function link(id, run) {
    const element = made("a", { href: `runs?id=${id}`, textContent: name(run) });
    element.dataset.focus = `link-${id}`;
    return element;
  }

  function line(id, run) {
    const cell = (tag, key, text, numeric) => {
      const element = made(tag, { className: numeric ? "number" : "text" }, text);
      element.dataset.label = headings.find((heading) => heading.dataset.key === key).textContent;
      element.dataset.sort = text === "-" ? "" : "yes";
      return element;
    };
    const title = cell("th", "name", "", false);
    title.scope = "row";
    title.append(link(id, run), made("span", { className: "row-where", textContent: run.folder }));
    const why = run.status === "crashed" ? `its process ended after ${steps(run)}` : run.status === "done" ? "" : run.reason;
    if (why) title.append(made("small", { textContent: why }));
    const rest = headings.slice(1).map((heading) => {
      const key = heading.dataset.key;
      const text = run[key] === undefined ? "-" : TEXTS[key](run);
      const element = cell("td", key, text, heading.classList.contains("number"));
      if (key === "status") element.classList.add(`status-${run.status}`);
      return element;
    });
    return made("tr", {}, made("td", { className: "pick" }, box(id, run)), title, ...rest);
  }

  function card(id, run) {
    const item = made("li", { className: "card" }, made("h3", {}, box(id, run), link(id, run)));
    item.append(made("p", { className: "where", textContent: run.folder }));
    if (run.status !== "running") {
      item.append(made("p", { textContent: run.status === "saving" ? "saving what it has trained" : "starting" }));
      return item;
    }
    if (run.steps) item.append(made("progress", { max: run.steps, value: run.step || 0, ariaLabel: "steps done" }));
    const facts = [steps(run)];
    if (run.epochs) facts.push(`epoch ${run.epoch} of ${run.epochs}`);
    if (run.ranks) facts.push(`${amount(run.ranks, "rank")} on ${run.device || "?"}`);
    if (run.speed) facts.push(`${number(run.speed)} samples/s`);
    if (run.loss !== undefined) facts.push(`loss ${number(run.loss, 4)}`);
    if (run.accuracy !== undefined) facts.push(`test accuracy ${number(100 * run.accuracy, 2)} %`);
    item.append(made("p", { textContent: facts.join(" · ") }));
    if (run.silent) item.append(made("p", { className: "silent", textContent: `nothing heard for ${run.silent} s` }));
    return item;
  }

  function wanted([, run]) {
    const { text, task, strategy, status } = filters.elements;
    const all = `${name(run)} ${run.folder} ${run.status} ${run.device || ""}`.toLowerCase();
    return (!task.value || family(run.task) === task.value)
      && (!strategy.value || family(run.strategy) === strategy.value)
      && (!status.value || run.status === status.value)
      && text.value.toLowerCase().split(/\s+/).every((word) => all.includes(word));
  }

  function compare([, one], [, two]) {
    const value = (run) => (order.key === "name" ? name(run) : run[order.key]);
    const [a, b] = [value(one), value(two)];
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined); // without the figure: last
    return order.sign * (typeof a === "number" ? a - b : String(a).localeCompare(String(b)));
  }

  // Puts these children there, those that say the same as before untouched: a focused box stays focused.
  const said = new Map(); // id -> [what its element was made from, the element]
  function put(parent, entries, make) {
    const items = entries.map(([id, run]) => {
      const from = make.name + JSON.stringify(run);
      if (said.get(id)?.[0] !== from) said.set(id, [from, make(id, run)]);
      return said.get(id)[1];
    });
    items.forEach((item, place) => {
      if (parent.children[place] !== item) parent.insertBefore(item, parent.children[place] || null);
    });
    while (parent.children.length > items.length) parent.lastChild.remove();
  }

  function show() {
    const focused = document.activeElement?.dataset?.focus;
    const found = [...runs].filter(wanted);
    const running = found.filter(([, run]) => RUNNING.has(run.status));
    const stored = found.filter(([, run]) => !RUNNING.has(run.status)).sort(compare);
    $("running").hidden = !running.length;
    put(document.querySelector("#running .cards"), running, card);
    put(body, stored.slice(0, shown), line);
    $("more").hidden = stored.length <= shown;
    $("more").textContent = `Show all ${number(stored.length)}`;
    const total = amount(runs.size, "run");
    const counted = found.length === runs.size ? total : `${number(found.length)} of ${total}`;
    say("count", counted + (running.length ? `, ${running.length} running` : ""));
    document.querySelector("#runs-table").hidden = !stored.length;
    $("nothing").hidden = stored.length > 0;
    $("nothing").textContent = runs.size ? "No stored run matches." : "No run is here yet: `manyhands train` and `compare` write theirs into runs/.";
    if (focused && document.activeElement?.dataset?.focus !== focused) document.querySelector(`[data-focus="${focused}"]`)?.focus();
    showChoice();
  }

  // The choice as it was when the page was left for a comparison; browsers may forbid to keep anything.
  function kept(text) {
    try {
      if (text !== undefined) sessionStorage.setItem("chosen", text);
      return sessionStorage.getItem("chosen") || "";
    } catch {
      return "";
    }
  }

  // What is read aloud when it changes, and only then.
  function say(id, text) {
    if ($(id).textContent !== text) $(id).textContent = text;
  }

  function showChoice() {
    kept([...chosen].join(" "));
    $("choice").hidden = !chosen.size;
    say("chosen", `${amount(chosen.size, "run")} chosen${chosen.size > MOST ? ` (at most ${MOST})` : ""}`);
    $("compare").disabled = chosen.size < 2 || chosen.size > MOST;
    document.querySelectorAll("input[data-id]").forEach((input) => { input.checked = chosen.has(input.dataset.id); });
  }

  // The choices a filter offers: what there is among the runs.
  function offer(select, values) {
    const there = [...new Set(values)].filter(Boolean).sort();
    if (select.dataset.offered === String(there)) return;
    select.dataset.offered = String(there);
    const before = select.value;
    if (before && !there.includes(before)) there.push(before);
    select.replaceChildren(select.options[0], ...there.map((value) => made("option", { value, textContent: value })));
    select.value = before;
  }

  function take(news) {
    if (news.everything) runs.clear();
    news.gone.forEach((id) => { runs.delete(id); chosen.delete(id); });
    for (const { id, ...run } of news.runs) runs.set(id, run);
    for (const id of said.keys()) if (!runs.has(id)) said.delete(id);
    if (!news.reading) for (const id of chosen) if (!runs.has(id)) chosen.delete(id);
    version = news.version;
    const all = [...runs.values()];
    offer(filters.elements.task, all.map((run) => family(run.task)));
    offer(filters.elements.strategy, all.map((run) => family(run.strategy)));
    offer(filters.elements.status, all.map((run) => run.status));
    const notes = [];
    if (news.reading) notes.push(`${amount(news.reading, "more run")} still to be read.`);
    if (news.unreadable) notes.push(`${amount(news.unreadable, "record")} could not be read.`);
    if (news.more) notes.push("There are more folders than are looked through; serve a folder further down.");
    $("footnote").textContent = notes.join(" ");
    $("footnote").hidden = !notes.length;
    if (news.everything || news.runs.length || news.gone.length) show();
    return news.reading ? 0 : [...runs.values()].some((run) => RUNNING.has(run.status)) ? 1500 : 5000;
  }

  function complain(text) {
    $("notice").hidden = !text;
    $("notice").textContent = text;
  }

  let timer;
  let asking = false;
  async function ask() {
    if (document.hidden || asking) return; // asked again when somebody looks; one question at a time
    clearTimeout(timer);
    asking = true;
    let pause = 5000;
    try {
      const answer = await fetch(`api/runs?since=${version}`);
      if (answer.status === 403) return complain("This page belongs to a server that has ended; open the address that manyhands serve prints now.");
      pause = take(await answer.json());
      complain("");
      document.documentElement.dataset.ready = "yes";
    } catch {
      complain("The server does not answer; manyhands serve may have ended. Trying again.");
    } finally {
      asking = false;
    }
    timer = setTimeout(ask, pause);
  }

  // What is filtered and sorted stands in the address too, so that coming back finds it.
  function remember() {
    const state = new URLSearchParams([...new FormData(filters)].filter(([, value]) => value));
    if (order.key !== "started" || order.sign !== -1) state.set("sort", `${order.sign < 0 ? "-" : ""}${order.key}`);
    history.replaceState(null, "", String(state) ? `#${state}` : location.pathname);
  }

  function recall() {
    const state = new URLSearchParams(location.hash.slice(1));
    for (const field of ["text", "task", "strategy", "status"]) {
      const element = filters.elements[field];
      const value = state.get(field) || "";
      if (value && element.options) element.append(made("option", { value, textContent: value }));
      element.value = value;
    }
    const sort = state.get("sort") || "-started";
    sortBy(sort.replace("-", ""), sort.startsWith("-") ? -1 : 1);
  }

  function sortBy(key, sign) {
    order = { key, sign };
    headings.forEach((heading) => heading.setAttribute("aria-sort", heading.dataset.key !== key ? "none" : sign < 0 ? "descending" : "ascending"));
  }

  headings.forEach((heading) => heading.firstElementChild.addEventListener("click", () => {
    const key = heading.dataset.key;
    const first = key === "name" || key === "status" ? 1 : -1;
    sortBy(key, order.key === key ? -order.sign : first);
    remember();
    show();
  }));
  filters.addEventListener("input", () => { shown = PART; remember(); show(); });
  filters.addEventListener("submit", (event) => event.preventDefault());
  $("more").addEventListener("click", () => { shown = Infinity; show(); });
  document.addEventListener("change", (event) => {
    const id = event.target.dataset?.id;
    if (!id) return;
    if (event.target.checked) chosen.add(id); else chosen.delete(id);
    showChoice();
  });
  $("clear").addEventListener("click", () => { chosen.clear(); showChoice(); });
  $("compare").addEventListener("click", () => {
    location.href = `runs?${new URLSearchParams([...chosen].map((id) => ["id", id]))}`;
  });
  document.addEventListener("visibilitychange", ask);
  recall();
  ask();
})();
