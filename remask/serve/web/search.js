// What a search finds: passages in their surroundings, marked, with the query's words in bold; and a map of the
// collection with the found ones and the query in it. Data in, one element out; only the map asks the server, once.

import { collectionMap } from "./api.js";
import { count, decimal, el, hidden } from "./dom.js";
import { KINDS } from "./views.js";

const AROUND = 160; // characters shown before and after a passage
const WORD = /[\p{L}\p{N}]+/gu;
const [VECTORS, WORDS, BOTH] = [0, 1, 2].map((kind) => kind % KINDS);

/** A list of hits under its name. */
export function ranking(name, hits, query) {
  const heading = el("h2", { class: "part" }, name);
  if (hits.length === 0) return el("div", { class: "column" }, heading, el("p", { class: "soft" }, "Nothing found."));
  const wanted = new Set((query.toLowerCase().match(WORD) ?? []).filter((word) => word.length > 2));
  const items = hits.map((hit) => el(
    "li",
    {},
    el("div", { class: "hit-head" }, el("strong", {}, hit.id), el("span", { class: "soft" }, facts(hit))),
    el(
      "p",
      { class: "passage" },
      hit.before ? el("span", { class: "around" }, `\u2026 ${last(hit.before)} `) : null,
      el("mark", {}, hidden("found passage: "), ...emphasised(hit.text, wanted)),
      hit.after ? el("span", { class: "around" }, ` ${first(hit.after)} \u2026`) : null,
    ),
  ));
  return el("div", { class: "column" }, heading, el("ol", { class: "hits", "aria-label": name }, ...items));
}

function facts({ score, passage, rank_by: ranks, fields }) {
  const parts = [decimal(score), `passage ${passage + 1}`];
  if (Object.keys(ranks).length > 1) parts.push(`vectors ${ranks.vectors}, words ${ranks.words}`);
  for (const [key, value] of Object.entries(fields)) parts.push(`${key}: ${value}`);
  return parts.join(" \u00b7 ");
}

const last = (text) => [...text].slice(-AROUND).join("");
const first = (text) => [...text].slice(0, AROUND).join("");

/** The text with the query's words in bold. */
function emphasised(text, wanted) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(WORD)) {
    if (!wanted.has(match[0].toLowerCase())) continue;
    nodes.push(text.slice(at, match.index), el("strong", {}, match[0]));
    at = match.index + match[0].length;
  }
  return [...nodes, text.slice(at)];
}

// ------------------------------------------------------------------------------------------------------ map

/** The map of an index; `found` has the hits of both ways and the query's point. */
export function collection(id, found) {
  const canvas = el("canvas", { class: "map", role: "img", "aria-label": spoken(found) });
  const kinds = [
    ["a passage", "dot-plain"], ["found by vectors", `kind-${VECTORS}`], ["found by words", `kind-${WORDS}`],
    ["found by both", `kind-${BOTH}`],
  ];
  const legend = el("ul", { class: "legend" }, ...kinds.map(([name, kind]) => (
    el("li", {}, el("span", { class: `swatch ${kind}`, "aria-hidden": "true" }), name)
  )), el("li", {}, el("span", { "aria-hidden": "true" }, "\u2715 "), "the query"));
  const said = el("p", { class: "soft" }, "Points that lie together mean alike. Point at one to read it.");
  const box = el("div", { class: "collection" }, canvas, legend, said);
  collectionMap(id).then(({ points }) => begin(canvas, points, found, said), (trouble) => {
    said.textContent = trouble.message;
  });
  return box;
}

function spoken({ vectors, words }) {
  const near = [...new Set([...vectors, ...words].map((hit) => hit.id))].slice(0, 3);
  return `Map of the collection; the query stands near ${near.join(", ") || "nothing that was found"}`;
}

function begin(canvas, points, found, said) {
  const kinds = new Map(); // row -> [its kind, its point]: the map has only a sample of the passages
  for (const { row, point: [x, y] } of found.vectors) kinds.set(row, [VECTORS, { x, y }]);
  for (const { row, point: [x, y] } of found.words) kinds.set(row, [kinds.has(row) ? BOTH : WORDS, { x, y }]);
  const view = { points, found: [...kinds.values()], query: found.point };
  const redraw = () => canvas.isConnected && draw(canvas, view);
  canvas.addEventListener("redraw", redraw);
  new ResizeObserver(redraw).observe(canvas);
  canvas.addEventListener("pointermove", (event) => {
    const near = nearest(canvas, points, event);
    said.textContent = near ? `${near.id}: ${near.text}` : `${count(points.length, "point")}`;
  });
}

/** [-1, 1] x [-1, 1] in the canvas' pixels, with room for the largest dot at the edge. */
function placed(canvas, { x, y }) {
  const { clientWidth: width, clientHeight: height } = canvas;
  return [14 + ((x + 1) / 2) * (width - 28), 14 + ((1 - y) / 2) * (height - 28)];
}

function nearest(canvas, points, event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  let best = null;
  let least = 18 ** 2; // pixels
  for (const point of points) {
    const [px, py] = placed(canvas, point);
    const distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < least) [best, least] = [point, distance];
  }
  return best;
}

function draw(canvas, { points, found, query }) {
  const scale = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const style = getComputedStyle(canvas);
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  const dot = (point, radius, shade, alpha) => {
    const [x, y] = placed(canvas, point);
    pen.globalAlpha = alpha;
    pen.fillStyle = shade;
    pen.beginPath();
    pen.arc(x, y, radius, 0, 2 * Math.PI);
    pen.fill();
  };
  const edge = colour("--edge");
  for (const point of points) dot(point, 2.5, edge, 0.55);
  for (const [kind, point] of found) dot(point, 6, colour(`--kind-${kind}`), 0.95);
  const [x, y] = placed(canvas, { x: query[0], y: query[1] });
  pen.globalAlpha = 1;
  pen.lineWidth = 2.5;
  pen.strokeStyle = style.color;
  pen.beginPath();
  for (const side of [-1, 1]) {
    pen.moveTo(x - 7, y - 7 * side);
    pen.lineTo(x + 7, y + 7 * side);
  }
  pen.stroke();
}

/** A variable of the style sheet as the canvas takes it: light-dark() is worked out by an element of that colour. */
function colour(name) {
  const probe = el("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}
