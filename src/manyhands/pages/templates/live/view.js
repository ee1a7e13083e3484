"use strict";
// Keeps a page of runs up to date while one of them runs: asks for the page again, and puts what differs into this one.
(() => {
  const root = document.documentElement;
  const notice = document.getElementById("notice");
  const KEPT = ["class", "data-sort", "value", "max"]; // attributes that carry news; others are charts.js's and page.js's

  // Makes `old` say what `fresh` says, and gives it back; something else in its place where that cannot be. Charts keep
  // their drawing, folded parts stay as they are.
  function renew(old, fresh) {
    if (old.isEqualNode(fresh) || old.classList?.contains("plot") && old.id === fresh.id) return old;
    if (old.nodeType !== Node.ELEMENT_NODE || old.nodeName !== fresh.nodeName || old.id !== fresh.id) return document.importNode(fresh, true);
    for (const name of KEPT) {
      if (fresh.hasAttribute(name)) old.setAttribute(name, fresh.getAttribute(name)); else old.removeAttribute(name);
    }
    const named = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
    const others = [...old.childNodes].filter((child) => !child.id);
    const children = [...fresh.childNodes].map((child) => {
      const at = others.findIndex((other) => other.nodeName === child.nodeName);
      const mate = child.id ? named.get(child.id) : others.splice(at, at < 0 ? 0 : 1)[0];
      return mate ? renew(mate, child) : document.importNode(child, true);
    });
    children.forEach((child, place) => {
      if (old.childNodes[place] !== child) old.insertBefore(child, old.childNodes[place] || null);
    });
    while (old.childNodes.length > children.length) old.lastChild.remove();
    return old;
  }

  // The order somebody chose for the table, to be chosen again once its rows are new.
  function sorting() {
    const headings = () => [...document.querySelectorAll("#summary-table thead th")];
    const orders = headings().map((heading) => heading.getAttribute("aria-sort"));
    return () => headings().forEach((heading, column) => {
      if (orders[column] === "none") return;
      heading.setAttribute("aria-sort", "none");
      for (let clicks = 0; clicks < 2 && heading.getAttribute("aria-sort") !== orders[column]; clicks += 1) {
        heading.querySelector("button").click();
      }
    });
  }

  async function take(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const sortAgain = sorting();
    const hidden = [...document.querySelectorAll(".chooser input:not(:checked)")].map((box) => Number(box.dataset.run));
    document.title = fresh.title;
    for (const part of ["header", ".bar", "main"]) renew(document.querySelector(part), fresh.querySelector(part));
    sortAgain();
    root.dataset.tag = fresh.documentElement.dataset.tag;
    root.dataset.every = fresh.documentElement.dataset.every;
    await manyhands.show(JSON.parse(fresh.getElementById("chart-data").textContent));
    if (hidden.length) await manyhands.hide(hidden);
  }

  function complain(text) {
    notice.hidden = !text;
    notice.textContent = text;
  }

  let timer;
  let asking = false;
  async function ask() {
    if (document.hidden || asking || root.dataset.every === "0") return; // nobody looks, or nothing will change
    clearTimeout(timer);
    asking = true;
    try {
      const answer = await fetch(location.pathname + location.search, { headers: { "If-None-Match": `"${root.dataset.tag}"` } });
      if (answer.status === 403) return complain("This page belongs to a server that has ended; open the address that manyhands serve prints now.");
      if (answer.status === 404) return complain(await answer.text());
      if (answer.status === 200) await take(await answer.text());
      complain("");
    } catch {
      complain("The server does not answer; manyhands serve may have ended. Trying again.");
    } finally {
      asking = false;
    }
    timer = setTimeout(ask, Number(root.dataset.every));
  }

  document.addEventListener("visibilitychange", ask);
  timer = setTimeout(ask, Number(root.dataset.every));
})();
