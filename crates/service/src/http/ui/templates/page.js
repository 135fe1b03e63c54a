// Enhances a page: follows a run or an alignment, refreshes lists, filters and sorts in place.
// Parts of a page are fetched as rendered by the service; everything else is text.
"use strict";
(() => {
  const by = (id) => document.getElementById(id);
  const main = by("main");
  const LINES = 500;

  // Text with its hidden characters as symbols, as the service renders it.
  const HIDDEN =
    /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
  const code = (it) => it.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0");
  const visible = (text) => text.replace(HIDDEN, (it) => `‹U+${code(it)}›`);

  // Calls `act` after `ms`, once for all calls until then.
  function debounce(act, ms) {
    let timer;
    return (...args) => { clearTimeout(timer); timer = setTimeout(() => act(...args), ms); };
  }

  // Announces a message to screen readers; of several within 200 ms the last.
  const announce = debounce((text) => { by("status").textContent = text; }, 200);

  // Replaces parts of this page by those of the page at `url`, where they differ. Keeps the focus.
  async function refreshParts(url, ids, signal) {
    const answer = await fetch(url, { headers: { accept: "text/html" }, signal });
    if (!answer.ok) return false;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const id of ids) {
      const [old, fresh] = [by(id), page.getElementById(id)];
      if (!old || !fresh || old.innerHTML === fresh.innerHTML) continue;
      const focused = old.contains(document.activeElement) ? document.activeElement : null;
      old.replaceChildren(...fresh.childNodes);
      if (focused) (counterpart(old, focused) || main).focus({ preventScroll: true });
    }
    document.title = page.title;
    return page;
  }

  // The element of a replaced part that corresponds to `focused`.
  function counterpart(part, focused) {
    const found = [...part.querySelectorAll(focused.tagName)];
    const at = focused.getAttribute("href");
    return found.find((it) => at !== null && it.getAttribute("href") === at)
      || found.find((it) => at !== null && it.textContent === focused.textContent)
      || (at === null ? found[0] : undefined);
  }

  const follow = main.dataset.events;
  if (follow) {
    const subject = main.dataset.subject || "run";
    const log = by("log");
    const bar = document.querySelector("#progress progress");
    const stream = new EventSource(follow);
    const refreshTop = () => refreshParts(location.href, ["top", "steps"]).catch(() => {});
    const refresh = debounce(refreshTop, 300);
    const on = (name, act) => stream.addEventListener(name, (event) => act(JSON.parse(event.data)));
    let fresh = true;
    // The stream repeats the log from its start.
    stream.addEventListener("open", () => {
      if (fresh && log) log.textContent = "";
      fresh = false;
    });
    stream.addEventListener("error", () => {
      if (stream.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
    });
    const idle = () => { if (bar) by("progress").hidden = true; };
    on("attempt", idle);
    on("log", ({ step, line }) => {
      if (!log) return;
      const down = log.scrollTop + log.clientHeight >= log.scrollHeight - 8;
      log.append(`${step}: ${visible(line)}\n`);
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
      if (step.state !== "running") announce(`Step ${step.step}: ${step.state}.`);
      refresh();
    });
    on("state", ({ state }) => { announce(`The ${subject} is ${state}.`); refresh(); });
    on("end", async ({ state }) => {
      stream.close();
      const page = await refreshParts(location.href, ["top", "main"]).catch(() => false);
      announce(`The ${subject} has ended: ${by("verdict")?.textContent || state}.`);
      if (!page) { location.reload(); return; }
      main.removeAttribute("data-events");
      exploreAll();
    });
  }

  // Shows the chosen files, images as pictures; files dropped on the field are chosen.
  const chooser = document.querySelector(".drop input[type=file]");
  if (chooser) {
    const field = chooser.closest(".drop");
    const chosen = by("chosen");
    const MAX_SHOWN = 24;
    const images = chooser.accept.includes("image/");
    const noun = images ? "image" : "file";
    const size = (bytes) => (
      bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`
    );
    const item = (text) => {
      const entry = document.createElement("li");
      const name = document.createElement("span");
      name.textContent = name.title = visible(text);
      entry.append(name);
      return entry;
    };
    const show = (file) => {
      if (!images) return item(`${file.name}, ${size(file.size)}`);
      const entry = item(file.name);
      createImageBitmap(file, { resizeWidth: 168, resizeQuality: "medium" }).then((image) => {
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.width, image.height];
        canvas.getContext("2d").drawImage(image, 0, 0);
        entry.prepend(canvas);
      }, () => entry.append(" cannot be shown"));
      return entry;
    };
    chooser.addEventListener("change", () => {
      const files = [...chooser.files];
      chosen.hidden = !files.length;
      chosen.replaceChildren(...files.slice(0, MAX_SHOWN).map(show));
      if (files.length > MAX_SHOWN) chosen.append(item(`and ${files.length - MAX_SHOWN} more`));
      announce(`${files.length} ${noun}${files.length === 1 ? "" : "s"} chosen.`);
    });
    field.addEventListener("dragover", (event) => {
      event.preventDefault();
      field.classList.add("over");
    });
    for (const end of ["dragleave", "drop"]) {
      field.addEventListener(end, () => field.classList.remove("over"));
    }
    field.addEventListener("drop", (event) => {
      event.preventDefault();
      if (!event.dataTransfer.files.length) return;
      chooser.files = event.dataTransfer.files;
      chooser.dispatchEvent(new Event("change"));
    });
  }

  // Charts of lanes: zoom by buttons, by the wheel with Ctrl and by a double click on a slice;
  // search highlights the slices whose tooltip has the text.
  const MAX_ZOOM = 16;
  const width = (rect) => parseFloat(rect.getAttribute("width"));
  function explore(box) {
    const [view, tools] = [box.querySelector(".zoom"), box.querySelector(".explore-tools")];
    if (!tools.hidden) return;
    const svg = view.querySelector("svg");
    const slices = [...svg.querySelectorAll("rect:not(.track)")];
    const output = tools.querySelector("output");
    let zoom = 1;
    // Magnifies; the point at `part` of the chart stays at `x` in the view.
    function magnify(to, part, x) {
      zoom = Math.min(Math.max(to, 1), MAX_ZOOM);
      svg.style.width = `${100 * zoom}%`;
      for (const label of svg.querySelectorAll("[data-fits]")) {
        label.setAttribute("display", label.dataset.fits < zoom ? "inline" : "none");
      }
      view.scrollLeft = part * svg.getBoundingClientRect().width - x;
    }
    const partAt = (x) => (view.scrollLeft + x) / svg.getBoundingClientRect().width;
    const search = debounce((text) => {
      const wanted = text.trim().toLowerCase();
      const found = slices.filter((it) => it.textContent.toLowerCase().includes(wanted));
      svg.classList.toggle("searched", Boolean(wanted));
      for (const it of slices) it.classList.toggle("found", wanted && found.includes(it));
      output.textContent = "";
      if (!wanted) return;
      output.textContent = found.length
        ? `${found.length} found; the longest: ${longest(found).textContent}` : "none found";
      announce(output.textContent);
      if (found.length) {
        const at = parseFloat(longest(found).getAttribute("x")) / 100;
        view.scrollLeft = at * svg.getBoundingClientRect().width - view.clientWidth / 3;
      }
    }, 200);
    const longest = (found) => found.reduce((a, b) => (width(b) > width(a) ? b : a));
    tools.querySelector("input").addEventListener("input", (event) => search(event.target.value));
    for (const button of tools.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => {
        const middle = view.clientWidth / 2;
        magnify(zoom * Number(button.dataset.zoom), partAt(middle), middle);
      });
    }
    view.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const x = event.clientX - view.getBoundingClientRect().left;
      magnify(zoom * (event.deltaY < 0 ? 1.25 : 0.8), partAt(x), x);
    }, { passive: false });
    svg.addEventListener("dblclick", (event) => {
      const slice = event.target.closest("rect:not(.track)");
      if (slice) magnify(90 / width(slice), parseFloat(slice.getAttribute("x")) / 100, 8);
    });
    tools.hidden = false;
  }
  const exploreAll = () => document.querySelectorAll(".explore").forEach(explore);
  exploreAll();

  const lists = main.dataset.poll;
  if (lists) {
    setInterval(() => {
      if (!document.hidden) refreshParts(location.href, lists.split(" ")).catch(() => {});
    }, 5000);
  }

  // A form that sends files shows that it does.
  for (const form of document.querySelectorAll("form[data-sending]")) {
    form.addEventListener("submit", () => { by(form.dataset.sending).hidden = false; });
  }

  // Filters and links with `data-into` show their result in that part of the page.
  let controller;
  async function show(url, part, keep) {
    controller?.abort();
    const mine = controller = new AbortController();
    const page = await refreshParts(url, [part], mine.signal).catch(() => false);
    if (mine.signal.aborted) return;
    if (!page) { location.href = url; return; }
    history[keep ? "pushState" : "replaceState"](null, "", url);
    const sort = page.querySelector("form[data-into] [name=sort]");
    if (sort) document.querySelector("form[data-into] [name=sort]").value = sort.value;
    const summary = by(part).querySelector(".caption, .dim");
    announce(summary ? summary.textContent : "The list has changed.");
  }
  for (const form of document.querySelectorAll("form[data-into]")) {
    const submit = () => {
      const query = new URLSearchParams(new FormData(form));
      show(`${form.getAttribute("action")}?${query}`, form.dataset.into, false);
    };
    const later = debounce(submit, 250);
    form.addEventListener("input", later);
    form.addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  }
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-into]");
    const modified = event.metaKey || event.ctrlKey || event.shiftKey || event.altKey;
    if (!link || event.button || modified) return;
    event.preventDefault();
    show(link.href, link.dataset.into, true);
  });
  window.addEventListener("popstate", () => location.reload());
})();
