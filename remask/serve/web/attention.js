// Attention of one layer: which token looks at which. A list of tokens to choose from by arrow keys or pointer shows
// where the chosen one looks, in words and shades; the map beside it shows all of them at once. What is looked at are
// the same tokens, or those of another text (a decoder's source), which then stand above.

import { el, percent } from "./dom.js";
import { bars, readable } from "./views.js";

const SHOWN = 8; // rows of the list of what a token looks at

/** `tokens` [S], `looked` [L] (the same, or a source), `weights` [S][L] (row: who looks, column: at whom). `memory.row`
 * keeps the choice between answers. */
export function attention(tokens, weights, memory, looked = tokens) {
  let row = Math.min(memory.row ?? 0, tokens.length - 1);
  const options = tokens.map((token, i) => {
    const attributes = { class: "token", role: "option", id: `${memory.id}-${i}` };
    return el("span", attributes, el("span", {}, ...readable(token)));
  });
  const attributes = { class: "tokens", role: "listbox", tabindex: "0", "aria-label": "The token that looks" };
  const list = el("div", attributes, ...options);
  const source = looked === tokens ? options : looked.map((token) => el("span", { class: "token" }, ...readable(token)));
  const above = looked === tokens ? null : el("p", { class: "tokens", "aria-label": "The source" }, ...source);
  const targets = el("div", {});
  const canvas = el("canvas", { class: "map", "aria-hidden": "true" });

  function choose(next) {
    row = Math.max(0, Math.min(tokens.length - 1, next));
    memory.row = row;
    const most = Math.max(...weights[row]); // shades are relative to it; bars are not
    options.forEach((option, i) => option.setAttribute("aria-selected", String(i === row)));
    source.forEach((token, i) => {
      token.style.setProperty("--weight", (most > 0 ? weights[row][i] / most : 0).toFixed(3));
    });
    list.setAttribute("aria-activedescendant", options[row].id);
    const order = weights[row].map((weight, i) => ({ weight, i })).sort((a, b) => b.weight - a.weight);
    const rows = order.slice(0, SHOWN).map(({ weight, i }) => {
      const place = el("span", { class: "soft place" }, ` ${i + 1}`);
      return { name: [...readable(looked[i]), place], value: weight, text: percent(weight) };
    });
    targets.replaceChildren(bars("What the chosen token looks at", rows));
    draw(canvas, weights, row);
  }

  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  list.addEventListener("keydown", (event) => {
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(row + steps[event.key]);
  });
  options.forEach((option, i) => option.addEventListener("click", () => choose(i)));
  const cellAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const place = (share, { length }) => Math.max(0, Math.min(length - 1, Math.floor(share * length)));
    const down = place((event.clientY - box.top) / box.height, tokens);
    return [down, place((event.clientX - box.left) / box.width, looked)];
  };
  canvas.addEventListener("click", (event) => choose(cellAt(event)[0]));
  canvas.addEventListener("pointermove", (event) => {
    const [y, x] = cellAt(event);
    canvas.title = `${tokens[y].text} looks at ${looked[x].text}: ${percent(weights[y][x])}`;
  });
  canvas.addEventListener("redraw", () => draw(canvas, weights, row)); // the colours changed
  choose(row);
  requestAnimationFrame(() => draw(canvas, weights, row)); // colours are known once it is in the page
  return el("div", { class: "attention" }, above, list, el("div", { class: "halves" }, targets, canvas));
}

/** Weights as shades of the canvas' own text colour; the chosen row between two lines. */
function draw(canvas, weights, row) {
  const [down, across] = [weights.length, weights[0].length];
  const cell = Math.max(3, Math.min(28, Math.floor(420 / Math.max(down, across))));
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(across * cell * scale);
  canvas.height = Math.round(down * cell * scale);
  canvas.style.width = `${across * cell}px`;
  const pen = canvas.getContext("2d");
  const colour = getComputedStyle(canvas).color;
  pen.scale(scale, scale);
  pen.clearRect(0, 0, across * cell, down * cell);
  pen.fillStyle = colour;
  const most = Math.max(0.25, ...weights.flat()); // at least that: equal small weights must not look strong
  weights.forEach((line, y) => line.forEach((weight, x) => {
    pen.globalAlpha = Math.sqrt(weight / most); // the root: small weights would not be seen
    pen.fillRect(x * cell, y * cell, cell - 0.5, cell - 0.5);
  }));
  pen.globalAlpha = 1;
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.strokeRect(0.75, row * cell + 0.25, across * cell - 1.5, cell - 1);
}

/** The mean over the heads, or one of them. */
export function headWeights(heads, head) {
  if (head !== "mean") return heads[Math.min(Number(head), heads.length) - 1];
  return heads[0].map((line, y) => line.map((_, x) => heads.reduce((sum, one) => sum + one[y][x], 0) / heads.length));
}
