// What answers look like: bars, marked text, tokens, a table of similarities. Data in, one element out; no requests.
// Places in a text come as Python counts them, in code points; JavaScript's strings count otherwise, hence [...text].

import { count, decimal, el, hidden, percent, visible, visibleBytes } from "./dom.js";

/** Rows of {name, value, text}: a table whose bars are as long as their value says, a share of 1. */
export function bars(caption, rows) {
  const body = rows.map((row) => {
    const bar = el("span", { class: "bar" });
    const share = Math.max(0, Math.min(1, row.value));
    bar.style.width = `${(100 * share).toFixed(2)}%`;
    const track = el("span", { class: "track", "aria-hidden": "true" }, bar);
    const name = Array.isArray(row.name) ? row.name : [row.name];
    return el(
      "tr",
      { class: row.chosen ? "chosen" : null },
      el("th", { scope: "row" }, ...name, row.chosen ? hidden(" (chosen)") : null),
      el("td", {}, track),
      el("td", { class: "value" }, row.text),
    );
  });
  return el("table", { class: "bars", "aria-label": caption }, el("tbody", {}, ...body));
}

// Scripts whose words are written without spaces: nothing in them is a piece of the word before it.
const SCRIPTS = ["Han", "Hiragana", "Katakana", "Thai", "Lao", "Khmer", "Myanmar", "Tibetan"];
const SPACELESS = new RegExp(`^[${SCRIPTS.map((name) => `\\p{Script=${name}}`).join("")}]`, "u");

/** Whether a token is no more than a part of a character, which nobody can read. */
export const isPart = (text) => text.includes("\ufffd");

/** A candidate for a mask: words as they are, pieces that join the word before them with a sign for that. */
export function candidate(text) {
  if (isPart(text)) return el("span", { class: "soft" }, "part of a character");
  if (text.startsWith(" ") && text.trim()) return visible(text.slice(1));
  if (!/^\p{L}/u.test(text) || SPACELESS.test(text)) return visible(text);
  return [el("span", { class: "sign", "aria-hidden": "true" }, "\u2026"), hidden("joined: "), text];
}

/** `text` with pieces [start, end) marked; each mark carries its label as text, colour only supports it. */
export function marked(text, pieces, kindOf) {
  const letters = [...text];
  const nodes = [];
  let at = 0;
  for (const piece of [...pieces].sort((a, b) => a.start - b.start)) {
    if (piece.start < at || piece.end <= piece.start) continue;
    nodes.push(letters.slice(at, piece.start).join(""));
    const inside = letters.slice(piece.start, piece.end).join("");
    const label = piece.label === undefined ? null : el("span", { class: "label" }, piece.label);
    nodes.push(el("mark", { class: kindOf ? `kind-${kindOf(piece.label)}` : null }, inside, label));
    at = piece.end;
  }
  nodes.push(letters.slice(at).join(""));
  return el("p", { class: "passage" }, ...nodes);
}

export const KINDS = 6; // colours of style.css

/** The text with its entities, a legend with counts, and the list with scores on demand. */
export function entities(text, found) {
  const labels = [...new Set(found.map((entity) => entity.label))].sort();
  const kindOf = (label) => labels.indexOf(label) % KINDS;
  if (found.length === 0) {
    return el("div", {}, el("p", { class: "passage" }, text), el("p", { class: "soft" }, "No entities found."));
  }
  const kinds = labels.map((label) => {
    const swatch = el("span", { class: `swatch kind-${kindOf(label)}`, "aria-hidden": "true" });
    const number = found.filter((entity) => entity.label === label).length;
    return el("li", {}, swatch, `${label} `, el("span", { class: "soft" }, String(number)));
  });
  const legend = el("ul", { class: "legend", "aria-label": "Kinds of entities" }, ...kinds);
  const rows = found.map(({ text: name, label, score }) => (
    { name: `${name} (${label})`, value: score, text: percent(score) }
  ));
  const list = el("details", {}, el("summary", {}, "How sure it is of each"), bars("Entities", rows));
  return el("div", {}, marked(text, found, kindOf), legend, list);
}

/** The context with the answer marked in it. */
export function answer(context, found) {
  if (!found.text) {
    const verdict = el("p", { class: "verdict" }, "No answer in this context.");
    return el("div", {}, verdict, el("p", { class: "passage" }, context));
  }
  return el(
    "div",
    {},
    el("p", { class: "verdict" }, found.text, " ", el("span", { class: "soft" }, percent(found.score))),
    marked(context, [found]),
  );
}

/** Tokens as a list: spaces and bytes visible; ids under them if wanted. Special ones by their name. */
export function tokens(list, withIds) {
  const items = list.map((token) => el(
    "li",
    { class: token.special ? "token special" : "token" },
    el("span", {}, ...readable(token)),
    withIds ? el("span", { class: "id" }, hidden("id "), String(token.id)) : null,
  ));
  return el("ol", { class: "tokens", "aria-label": "Tokens" }, ...items);
}

export function readable(token) {
  return token.special ? [token.text] : visibleBytes(token.bytes);
}

/** The summary line over a list of tokens. */
export function tokenCount(list, text) {
  const bytes = new TextEncoder().encode(text).length;
  const number = list.filter((token) => !token.special).length;
  const ratio = number ? `, ${(bytes / number).toFixed(2)} bytes a token` : "";
  return `${count(number, "token")}, ${count([...text].length, "character")}, ${count(bytes, "byte")}${ratio}`;
}

/** How close each text is to each other one (cosine), shaded from the least to the most alike pair. */
export function similarities(texts, vectors) {
  const scores = vectors.map((a) => vectors.map((b) => cosine(a, b)));
  const pairs = scores.flatMap((line, i) => line.filter((_, j) => j !== i));
  const [low, high] = [Math.min(...pairs), Math.max(...pairs)];
  const number = texts.map((_, i) => el("th", { scope: "col" }, String(i + 1)));
  const rows = texts.map((text, i) => el(
    "tr",
    {},
    el("th", { scope: "row" }, `${i + 1}. ${text}`),
    ...texts.map((_, j) => {
      const cell = el("td", { class: i === j ? "value soft" : "value shaded" }, decimal(scores[i][j]));
      cell.style.setProperty("--weight", (high > low ? (scores[i][j] - low) / (high - low) : 0).toFixed(3));
      return cell;
    }),
  ));
  const table = el(
    "table",
    { class: "matrix", "aria-label": "Similarity of each text to each other one" },
    el("thead", {}, el("tr", {}, el("td", {}), ...number)),
    el("tbody", {}, ...rows),
  );
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Similarities" }, table);
}

export function cosine(a, b) {
  let dot = 0;
  let aa = 0;
  let bb = 0;
  for (let i = 0; i < a.length; i += 1) {
    dot += a[i] * b[i];
    aa += a[i] * a[i];
    bb += b[i] * b[i];
  }
  return aa && bb ? dot / Math.sqrt(aa * bb) : 0;
}
