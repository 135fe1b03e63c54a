// Lists what keeps people from using the page: with a keyboard, with a screen reader, with weak eyes, on a phone.
// Returns a list of complaints; none of them is a matter of taste.
const wrong = [];
const all = (css) => [...document.querySelectorAll(css)];
const told = (it) => `${it.tagName.toLowerCase()}${it.id ? `#${it.id}` : ""} ${it.textContent.trim().slice(0, 40)}`;
// Seen: neither hidden, nor in a closed part, nor kept for those who hear the page.
const seen = (it) => it.checkVisibility() && !it.closest(".hidden, .skip, noscript");

const headings = all("h1, h2, h3, h4").filter((it) => it.checkVisibility());
if (all("h1").length !== 1) wrong.push(`${all("h1").length} headings of the first rank`);
headings.reduce((before, it) => {
  const rank = Number(it.tagName[1]);
  if (rank > before + 1) wrong.push(`${told(it)} skips a rank`);
  return rank;
}, 0);
for (const landmark of ["header", "main"]) if (all(landmark).length !== 1) wrong.push(`${all(landmark).length} of ${landmark}`);
for (const it of all("nav, form[role], [role=region]")) {
  const by = it.getAttribute("aria-labelledby");
  if (!it.getAttribute("aria-label") && !(by && document.getElementById(by))) wrong.push(`${told(it)} has no name`);
}
const ids = all("[id]").map((it) => it.id);
for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) wrong.push(`the id ${id} is given twice`);
for (const it of all("input:not([type=hidden]), select, textarea, progress")) if (!it.labels.length) wrong.push(`${told(it)} ${it.name} has no label`);
for (const it of all("button, a[href]")) if (!it.textContent.trim() && !it.getAttribute("aria-label")) wrong.push(`${told(it)} says nothing`);
for (const it of all("img")) if (!it.alt) wrong.push(`the picture ${it.src} says nothing`);
for (const it of all("table")) {
  if (!it.caption && !it.closest("[aria-label], [aria-labelledby]")) wrong.push(`${told(it)} has no caption`);
  for (const head of it.querySelectorAll("th")) if (!head.scope) wrong.push(`${told(head)} heads nothing`);
}
for (const it of all("a[href^='#']")) if (!document.getElementById(decodeURIComponent(it.hash.slice(1)))) wrong.push(`${told(it)} leads nowhere`);

const wide = document.documentElement.scrollWidth;
if (wide > innerWidth) wrong.push(`the page is ${wide} px wide in a window of ${innerWidth}`);
for (const it of all("a.button, button, select, input:not([type=hidden]), header nav a, summary").filter(seen)) {
  const box = it.getBoundingClientRect();
  // 24 px: WCAG 2.2, 2.5.8; a box or a circle counts with the label around it.
  const label = it.labels?.[0]?.getBoundingClientRect();
  if (Math.min(Math.max(box.height, label?.height ?? 0), Math.max(box.width, label?.width ?? 0)) < 24) wrong.push(`${told(it)} is ${box.width} x ${box.height} px`);
  if (box.right > innerWidth + 1 && !it.closest(".scroll")) wrong.push(`${told(it)} is cut off`);
}

// Contrast as WCAG 2.2, 1.4.3 counts it: 4.5, and 3 for large text.
const parts = (color) => color.match(/[\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
const under = (it) => {
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
  if (!walk.currentNode.textContent.trim() || !seen(it) || it.closest("svg, option, datalist, script, style")) continue;
  const style = getComputedStyle(it);
  const [a, b] = [light(parts(style.color)), light(under(it))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const size = parseFloat(style.fontSize);
  const needs = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
  if (ratio < needs) pale.add(`${told(it)}: contrast ${ratio.toFixed(2)}`);
}
return [...wrong, ...pale];
