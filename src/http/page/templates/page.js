// What a page does beyond being read: it follows a run or an alignment, keeps its lists fresh, and filters and sorts in place.
// It lays nothing out: parts of a page come from the service again as it would show them, and everything else is text.
"use strict";
(() => {
  const by = (id) => document.getElementById(id);
  const main = by("main");
  const LINES = 500;

  // Runs `act` soon, once for all calls until then.
  function soon(act, ms) {
    let timer;
    return (...given) => { clearTimeout(timer); timer = setTimeout(() => act(...given), ms); };
  }

  // Told to who hears the page: the last of what happens at once.
  const say = soon((text) => { by("said").textContent = text; }, 200);

  // Puts parts of the page at `url` in the place of ours, where they differ. Keeps the focus where it was.
  async function renew(url, ids, signal) {
    const answer = await fetch(url, { headers: { accept: "text/html" }, signal });
    if (!answer.ok) return false;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const id of ids) {
      const [old, fresh] = [by(id), page.getElementById(id)];
      if (!old || !fresh || old.innerHTML === fresh.innerHTML) continue;
      const held = old.contains(document.activeElement) ? document.activeElement : null;
      old.replaceChildren(...fresh.childNodes);
      if (held) (same(old, held) || main).focus({ preventScroll: true });
    }
    document.title = page.title;
    return page;
  }

  // The element that stands for `held` in a part that was replaced.
  function same(part, held) {
    const found = [...part.querySelectorAll(held.tagName)];
    const at = held.getAttribute("href");
    return found.find((it) => at !== null && it.getAttribute("href") === at)
      || found.find((it) => at !== null && it.textContent === held.textContent)
      || (at === null ? found[0] : undefined);
  }

  const follow = main.dataset.events;
  if (follow) {
    const what = main.dataset.what || "run";
    const log = by("log");
    const bar = document.querySelector("#progress progress");
    const stream = new EventSource(follow);
    const refresh = soon(() => renew(location.href, ["top", "steps"]).catch(() => {}), 300);
    const on = (name, act) => stream.addEventListener(name, (event) => act(JSON.parse(event.data)));
    let fresh = true;
    // The stream tells the whole log from its start.
    stream.addEventListener("open", () => { if (fresh && log) log.textContent = ""; fresh = false; });
    stream.addEventListener("error", () => {
      if (stream.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
    });
    const idle = () => { if (bar) by("progress").hidden = true; };
    on("attempt", idle);
    on("log", ({ step, line }) => {
      if (!log) return;
      const down = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
      log.append(`${step}: ${line}\n`);
      while (log.childNodes.length > LINES) log.firstChild.remove();
      if (down) log.scrollTop = log.scrollHeight;
    });
    on("progress", ({ step, phase, done, total }) => {
      if (!bar) return;
      by("progress").hidden = false;
      by("phase").textContent = `${step}: ${phase}, ${done} of ${total}`;
      bar.max = Math.max(total, 1);
      bar.value = done;
    });
    on("step", ({ step }) => {
      idle();
      if (step.state !== "running") say(`Step ${step.step}: ${step.state}.`);
      refresh();
    });
    on("state", ({ state }) => { say(`The ${what} is ${state}.`); refresh(); });
    on("end", async ({ state }) => {
      stream.close();
      const page = await renew(location.href, ["top", "main"]).catch(() => false);
      say(`The ${what} has ended: ${by("verdict")?.textContent || state}.`);
      if (page) main.removeAttribute("data-events"); else location.reload();
    });
  }

  const lists = main.dataset.poll;
  if (lists) {
    setInterval(() => {
      if (!document.hidden) renew(location.href, lists.split(" ")).catch(() => {});
    }, 5000);
  }

  // Filters and links that name a part of the page show what they find in it.
  let showing;
  async function show(url, part, keep) {
    showing?.abort();
    const mine = showing = new AbortController();
    const page = await renew(url, [part], mine.signal).catch(() => false);
    if (mine.signal.aborted) return;
    if (!page) { location.href = url; return; }
    history[keep ? "pushState" : "replaceState"](null, "", url);
    const sort = page.querySelector("form[data-into] [name=sort]");
    if (sort) document.querySelector("form[data-into] [name=sort]").value = sort.value;
    const told = by(part).querySelector(".caption, .dim");
    say(told ? told.textContent : "The list has changed.");
  }
  for (const form of document.querySelectorAll("form[data-into]")) {
    const ask = () => show(`${form.getAttribute("action")}?${new URLSearchParams(new FormData(form))}`, form.dataset.into, false);
    const later = soon(ask, 250);
    form.addEventListener("input", later);
    form.addEventListener("submit", (event) => { event.preventDefault(); ask(); });
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-into]");
    if (!link || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    show(link.href, link.dataset.into, true);
  });
  window.addEventListener("popstate", () => location.reload());
})();
