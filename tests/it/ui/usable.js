// Lists obstacles to the use of the page: by keyboard, with a screen reader, with low vision, on a
// phone. Returns a list of problems.
const wrong = [];
const all = (css) => [...document.querySelectorAll(css)];
const label = (it) => {
  const id = it.id ? `#${it.id}` : "";
  return `${it.tagName.toLowerCase()}${id} ${it.textContent.trim().slice(0, 40)}`;
};
// Visible: not hidden, not in a closed part, not for screen readers only.
const visible = (it) => it.checkVisibility() && !it.closest(".hidden, .skip, noscript");

const headings = all("h1, h2, h3, h4").filter((it) => it.checkVisibility());
if (all("h1").length !== 1) wrong.push(`${all("h1").length} h1 headings`);
headings.reduce((before, it) => {
  const rank = Number(it.tagName[1]);
  if (rank > before + 1) wrong.push(`${label(it)} skips a rank`);
  return rank;
}, 0);
for (const landmark of ["header", "main"]) {
  if (all(landmark).length !== 1) wrong.push(`${all(landmark).length} of ${landmark}`);
}
for (const it of all("nav, form[role], [role=region]")) {
  const by = it.getAttribute("aria-labelledby");
  const named = it.getAttribute("aria-label") || (by && document.getElementById(by));
  if (!named) wrong.push(`${label(it)} has no name`);
}
const ids = all("[id]").map((it) => it.id);
const repeated = ids.filter((id, at) => ids.indexOf(id) !== at);
for (const id of new Set(repeated)) wrong.push(`the id ${id} is not unique`);
for (const it of all("input:not([type=hidden]), select, textarea, progress")) {
  if (!it.labels.length) wrong.push(`${label(it)} ${it.name} has no label`);
}
for (const it of all("button, a[href]")) {
  const named = it.textContent.trim() || it.getAttribute("aria-label");
  if (!named) wrong.push(`${label(it)} has no text`);
}
for (const it of all("img")) if (!it.alt) wrong.push(`the image ${it.src} has no text`);
for (const it of all("table")) {
  const named = it.caption || it.closest("[aria-label], [aria-labelledby]");
  if (!named) wrong.push(`${label(it)} has no caption`);
  for (const head of it.querySelectorAll("th")) {
    if (!head.scope) wrong.push(`${label(head)} has no scope`);
  }
}
for (const it of all("a[href^='#']")) {
  const target = document.getElementById(decodeURIComponent(it.hash.slice(1)));
  if (!target) wrong.push(`${label(it)} has no target`);
}

const wide = document.documentElement.scrollWidth;
if (wide > innerWidth) wrong.push(`the page is ${wide} px wide in a window of ${innerWidth}`);
const controls = "a.button, button, select, input:not([type=hidden]), header nav a, summary";
for (const it of all(controls).filter(visible)) {
  const box = it.getBoundingClientRect();
  // 24 px: WCAG 2.2, 2.5.8; the label around a checkbox or radio button counts.
  const around = it.labels?.[0]?.getBoundingClientRect();
  const height = Math.max(box.height, around?.height ?? 0);
  const width = Math.max(box.width, around?.width ?? 0);
  if (Math.min(height, width) < 24) wrong.push(`${label(it)} is ${box.width} x ${box.height} px`);
  if (box.right > innerWidth + 1 && !it.closest(".scroll")) wrong.push(`${label(it)} is cut off`);
}

// Contrast by WCAG 2.2, 1.4.3: 4.5, and 3 for large text.
const parts = (color) => color.match(/[\d.]+/g).map(Number);
const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => [r, g, b].map((c) => linear(c / 255))
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const background = (it) => {
  for (let at = it; at; at = at.parentElement) {
    const color = parts(getComputedStyle(at).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
const pale = new Set();
while (walk.nextNode()) {
  const it = walk.currentNode.parentElement;
  const ignored = it.closest("svg, option, datalist, script, style");
  if (!walk.currentNode.textContent.trim() || !visible(it) || ignored) continue;
  const style = getComputedStyle(it);
  const [a, b] = [luminance(parts(style.color)), luminance(background(it))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const size = parseFloat(style.fontSize);
  const needs = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
  if (ratio < needs) pale.add(`${label(it)}: contrast ${ratio.toFixed(2)}`);
}
return [...wrong, ...pale];
