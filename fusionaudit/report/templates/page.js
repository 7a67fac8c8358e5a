"use strict";
// The page's data and the few helpers that all parts use. Text from the capture is only ever set as textContent.
const DATA = JSON.parse(document.getElementById("data").textContent);
const COLUMN = Object.fromEntries(DATA.fields.map((name, index) => [name, index]));
const TEXT_FIELDS = new Set(["name", "category", "ops", "reads", "writes", "place", "graph", "phase", "grid", "block", "label"]);
const KINDS = DATA.kinds.map((row, index) => {
  const kind = { index };
  for (const name of DATA.fields) kind[name] = TEXT_FIELDS.has(name) ? DATA.texts[row[COLUMN[name]]] : row[COLUMN[name]];
  kind.passName = DATA.passes[kind.pass].name;
  kind.timeEach = kind.time === null ? null : kind.time / kind.count;
  kind.bytesEach = kind.bytes === null ? null : kind.bytes / kind.count;
  // A bandwidth from a time that itself comes from the bytes would only repeat the model.
  kind.rate = DATA.passes[kind.pass].basis === "measured" && kind.time && kind.bytes !== null ? kind.bytes / kind.time * 1e9 : null;
  kind.tensors = kind.writes ? `${kind.reads} \u2192 ${kind.writes}` : kind.reads;
  return kind;
});

const FAMILIES = {
  pointwise: "elementwise", random: "elementwise", foreach: "elementwise", reduction: "reduction", persistent_reduction: "reduction",
  norm: "reduction", softmax: "reduction", scan: "reduction", matmul: "matmul", convolution: "matmul", template: "matmul", attention: "attention",
  copy: "copy", memcpy: "copy", memset: "copy", index: "index", sort: "index",
};
const FAMILY_LABELS = { elementwise: "elementwise", reduction: "reduction, norm, softmax", matmul: "matmul, convolution", attention: "attention", copy: "copy, fill", index: "index, sort", other: "other" };
const familyOf = (kind) => FAMILIES[kind.category] || "other";

function make(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key === "class") node.className = value; else if (key === "text") node.textContent = value; else node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}
function shape(tag, props = {}, text = null) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(props)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  return node;
}

const GROUPED = new Intl.NumberFormat("en-US"); // made once: toLocaleString makes one a call
// Three significant digits, as in the console report.
function figure(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 99.95) return GROUPED.format(Math.round(value));
  if (size >= 9.995) return value.toFixed(1);
  return size >= 0.995 ? value.toFixed(2) : String(Number(value.toPrecision(3)));
}
function scaled(value, units, smallest) {
  if (value === null || value === undefined) return "-";
  for (const [factor, unit] of units) if (Math.abs(value) >= factor * 0.9995) return `${figure(value / factor)} ${unit}`;
  return `${Math.round(value)} ${smallest}`;
}
const BYTE_UNITS = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
const bytesText = (value) => scaled(value, BYTE_UNITS, "B");
const timeText = (value) => scaled(value, [[1e9, "s"], [1e6, "ms"], [1e3, "us"]], "ns");
const rateText = (value) => value === null ? "-" : `${bytesText(value)}/s`;
const countText = (value) => value === null ? "-" : GROUPED.format(value);

// Colours come from the style sheet, so that themes need no second list; a canvas needs them resolved.
const probe = make("span", { hidden: "" });
document.body.append(probe);
let colours = new Map();
function colour(name) {
  if (!colours.has(name)) { probe.style.color = `var(--${name})`; colours.set(name, getComputedStyle(probe).color); }
  return colours.get(name);
}
const redraws = [];
function redrawAll() { colours = new Map(); for (const redraw of redraws) redraw(); }

const tip = document.getElementById("tip");
function showTip(kind, x, y, extra = []) {
  const share = kind.rate !== null && DATA.target.peak ? `, ${Math.round(kind.rate / DATA.target.peak * 100)}% of peak` : "";
  const basis = DATA.passes[kind.pass].basis;
  const lines = [
    `${kind.passName}${kind.count > 1 ? `, ${countText(kind.count)} launches per step` : ""}`, kind.ops, kind.tensors,
    `${timeText(kind.timeEach)}${basis ? ` (${basis})` : ""}, ${bytesText(kind.bytesEach)}${kind.rate === null ? "" : `, ${rateText(kind.rate)}${share}`}`,
    [kind.registers === null ? "" : `${kind.registers} registers`, kind.local ? `${bytesText(kind.local)} local memory` : "", kind.place].filter(Boolean).join(", "), ...extra,
  ];
  tip.replaceChildren(make("b", { text: cut(kind.label, 110) }), ...lines.filter(Boolean).map((text) => make("span", { text: cut(text, 160) })));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${y + 18 + box.height > innerHeight ? Math.max(4, y - box.height - 12) : y + 18}px`;
}
const hideTip = () => { tip.hidden = true; };
function cut(text, most) {
  if (text.length <= most) return text;
  const tail = Math.floor((most - 2) / 2);
  return `${text.slice(0, most - 2 - tail)}..${text.slice(text.length - tail)}`;
}
const spoken = (kind) => `${cut(kind.label, 80)}, ${kind.passName}, ${timeText(kind.timeEach)}, ${bytesText(kind.bytesEach)}${kind.rate === null ? "" : `, ${rateText(kind.rate)}`}`;

// Theme: the system's unless the reader chose; a page from file:// may have no storage.
const root = document.documentElement;
function stored(value) {
  try { if (value === undefined) return localStorage.getItem("fusionaudit-theme"); localStorage.setItem("fusionaudit-theme", value); } catch { /* no storage */ }
  return null;
}
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function nameTheme() { document.getElementById("theme").textContent = dark() ? "Light" : "Dark"; }
if (stored()) root.dataset.theme = stored();
document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; stored(root.dataset.theme); nameTheme(); redrawAll(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { nameTheme(); redrawAll(); });
nameTheme();

// A link to a folded finding opens it; on paper all are open.
function openTarget() {
  const target = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null; // ids are plain ASCII
  if (target) { const fold = target.closest("details"); if (fold) { fold.open = true; target.scrollIntoView(); } }
}
addEventListener("hashchange", openTarget);
let opened = [];
addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("details.card:not([open])")]; for (const fold of opened) fold.open = true; });
addEventListener("afterprint", () => { for (const fold of opened) fold.open = false; });
openTarget();
