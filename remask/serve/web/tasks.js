// The tasks of the page, one entry each: the path under /v1, what is asked for, what is sent, how the answer is shown.
// request(values, model) -> the body, or {wait} with a hint while something is missing.
// show(answer, values, context) -> an element; say(answer) -> the same in a sentence for screen readers.
// A field with `local` changes only what is shown; `many`: each line is an input of its own; `wide`: wants the width.

import { attention, headWeights } from "./attention.js";
import { count, decimal, el, percent } from "./dom.js";
import { answer, bars, candidate, entities, similarities, tokenCount, tokens } from "./views.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const words = (text) => text.split(",").map((word) => word.trim()).filter(Boolean);
const range = (number) => Array.from({ length: number }, (_, i) => String(i + 1));
const wait = (hint) => ({ wait: hint });

const fillMask = {
  name: "Fill mask",
  fields: [
    { key: "text", label: "Sentence", kind: "text", rows: 3, start: "The weather today is very <mask>.", masks: true },
    { key: "top", label: "Candidates", kind: "number", min: 1, max: 50, start: "8" },
    { key: "targets", label: "Only these words", kind: "line", start: "", hint: "separated by commas" },
  ],
  request(values, model) {
    if (!values.text.includes(model.mask_token)) return wait(`Write ${model.mask_token} where a word is missing.`);
    const targets = words(values.targets);
    const body = { inputs: values.text, top_k: Math.max(1, Math.min(50, Math.round(Number(values.top)) || 8)) };
    return targets.length ? { ...body, top_k: Math.min(100, targets.length), targets } : body;
  },
  peak: (found) => Math.max(...found.map((fill) => fill.score)),
  show(found, values, { peak, model, body }) {
    const masks = body.inputs.split(model.mask_token).length - 1;
    const each = found.length / masks;
    const groups = range(masks).flatMap((number, i) => {
      const rows = found.slice(i * each, (i + 1) * each).map((fill) => ({ name: candidate(fill.token_str), value: fill.score, text: percent(fill.score) }));
      return [masks > 1 ? el("h4", {}, `Mask ${number}`) : null, bars(`Candidates for mask ${number}`, rows, peak)];
    });
    return el("div", {}, ...groups, el("p", { class: "soft" }, `A full bar is ${percent(peak)}.`));
  },
  say: (found) => (found.length ? `Likeliest: ${found[0].token_str.trim()}, ${percent(found[0].score)}` : "No candidates"),
};

function showLabel(label) {
  if (label.label === null) return el("p", { class: "verdict" }, decimal(label.score));
  const rows = Object.entries(label.scores)
    .map(([name, score]) => ({ name, value: score, text: percent(score), chosen: label.labels.includes(name) }))
    .sort((a, b) => b.value - a.value);
  return bars("Classes", rows, 1);
}

function sayLabel(label) {
  return label.label === null ? decimal(label.score) : `${label.label}, ${percent(label.score)}`;
}

const classify = {
  name: "Classify",
  fields: [{ key: "text", label: "Text", kind: "text", rows: 5, start: "The delivery came early and everything works." }],
  request: (values) => (values.text.trim() ? { inputs: values.text, long_texts: "cut" } : wait("Write or paste a text.")),
  show: showLabel,
  say: sayLabel,
};

const pairs = {
  name: "Pairs",
  fields: [
    { key: "text", label: "First text", kind: "text", rows: 3, start: "A man is playing a guitar." },
    { key: "text2", label: "Second text", kind: "text", rows: 3, start: "Somebody is making music." },
  ],
  request(values) {
    if (!values.text.trim() || !values.text2.trim()) return wait("Write both texts.");
    return { inputs: { text: values.text, text2: values.text2 }, long_texts: "cut" };
  },
  show: showLabel,
  say: sayLabel,
};

const tag = {
  name: "Entities",
  fields: [{ key: "text", label: "Text", kind: "text", rows: 5, start: "Mary Shelley wrote Frankenstein near Geneva in 1816." }],
  request: (values) => (values.text.trim() ? { inputs: values.text } : wait("Write or paste a text.")),
  show: (found, values) => entities(values.text, found),
  say: (found) => (found.length ? `${count(found.length, "entity", "entities")}: ${found.slice(0, 5).map((e) => `${e.text}, ${e.label}`).join("; ")}` : "No entities"),
};

const answerTask = {
  name: "Answer",
  fields: [
    { key: "question", label: "Question", kind: "line", start: "Who wrote Frankenstein?" },
    { key: "context", label: "Context", kind: "text", rows: 7, start: "In the summer of 1816 Mary Shelley stayed near Geneva. There she wrote Frankenstein, which appeared two years later." },
  ],
  request(values) {
    if (!values.question.trim() || !values.context.trim()) return wait("Write a question and a context.");
    return { inputs: { question: values.question, context: values.context } };
  },
  show: (found, values) => answer(values.context, found),
  say: (found) => (found.text ? `Answer: ${found.text}` : "No answer in this context"),
};

const choose = {
  name: "Choose",
  fields: [
    { key: "text", label: "Text and question", kind: "text", rows: 4, start: "It rained all night. What is the street like in the morning?" },
    { key: "options", label: "Options, one a line", kind: "text", rows: 4, start: "It is wet.\nIt is dusty.\nIt is closed." },
  ],
  request(values) {
    const options = lines(values.options);
    if (!values.text.trim() || options.length < 2) return wait("Write a text and at least two options.");
    return { inputs: { text: values.text, options }, long_texts: "cut" };
  },
  show(chosen, values) {
    const options = lines(values.options);
    return bars("Options", chosen.scores.map((score, i) => ({ name: options[i], value: score, text: percent(score), chosen: i === chosen.index })), 1);
  },
  say: (chosen) => `Option ${chosen.index + 1}, ${percent(chosen.scores[chosen.index])}`,
};

const rank = {
  name: "Rank",
  fields: [
    { key: "query", label: "Query", kind: "line", start: "How do I open a file?" },
    { key: "texts", label: "Texts to rank, one a line", kind: "text", rows: 6, start: "Read the contents of a path from disk.\nSort a list of numbers.\nThe weather was fine all week." },
  ],
  request(values) {
    const texts = lines(values.texts);
    return values.query.trim() && texts.length ? { inputs: { query: values.query, texts }, long_texts: "cut" } : wait("Write a query and the texts.");
  },
  show(found) {
    const rows = found.map((one) => ({ name: one.text, value: one.score, text: decimal(one.score) }));
    return el("div", {}, bars("Texts, closest first", rows, 1), el("p", { class: "soft" }, "Cosine of the embeddings: 1 is the same direction."));
  },
  say: (found) => `Closest: ${found[0].text}`,
};

const embed = {
  name: "Embed",
  many: true,
  fields: [{ key: "texts", label: "Texts, one a line", kind: "text", rows: 6, start: "A cat sleeps.\nThe kitten is resting.\nStocks fell on Monday." }],
  request(values) {
    const texts = lines(values.texts);
    return texts.length ? { inputs: texts, long_texts: "cut" } : wait("Write one text a line.");
  },
  show(vectors, values, { copy }) {
    return el(
      "div",
      {},
      similarities(lines(values.texts), vectors),
      el("p", { class: "soft" }, `${count(vectors.length, "vector")} of ${count(vectors[0].length, "number")}; the table has their cosines.`),
      el("button", { type: "button", class: "quiet", on: { click: (event) => copy(event.target, JSON.stringify(vectors)) } }, "Copy vectors as JSON"),
    );
  },
  say: (vectors) => `${count(vectors.length, "vector")} of ${count(vectors[0].length, "number")}`,
};

/** The server's parallel lists as one list; special tokens are those that stand for no bytes. */
function tokenList(found) {
  return found.ids.map((id, i) => {
    const bytes = Uint8Array.from(found.bytes[i].match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
    return { id, text: found.tokens[i], bytes, special: bytes.length === 0 };
  });
}

const tokenize = {
  name: "Tokens",
  fields: [
    { key: "text", label: "Text", kind: "text", rows: 4, start: "Unbelievable: a na\u00efve caf\u00e9 for 3.50 \u20ac \ud83d\ude00" },
    { key: "ids", label: "Show ids", kind: "check", start: "", local: true },
  ],
  request: (values) => (values.text ? { inputs: values.text } : wait("Write or paste a text.")),
  show(found, values) {
    const list = tokenList(found);
    return el("div", {}, tokens(list, values.ids !== ""), el("p", { class: "soft" }, tokenCount(list, values.text)));
  },
  say: (found) => count(found.ids.length, "token"),
};

const look = {
  name: "Attention",
  wide: true,
  path: "encode",
  fields: [
    { key: "text", label: "Text", kind: "text", rows: 3, start: "The animal did not cross the street because it was too tired." },
    { key: "layer", label: "Layer", kind: "choice", options: (model) => range(model.num_layers), start: "1", local: true },
    { key: "head", label: "Head", kind: "choice", options: (model) => ["mean", ...range(model.num_heads)], start: "mean", local: true },
  ],
  request: (values) => (values.text.trim() ? { inputs: values.text, states: false, attentions: true, marked: true } : wait("Write a text.")),
  show(found, values, { memory }) {
    const list = tokenList(found);
    const heads = found.attentions[Math.min(Number(values.layer), found.attentions.length) - 1];
    return el("div", {}, attention(list, headWeights(heads, values.head), memory), el("p", { class: "soft" }, "Choose a token by pointer or arrow keys: shades and bars show what it looks at. In the map, rows look at columns."));
  },
  say: (found) => `${count(found.tokens.length, "token")}; choose one to see what it looks at`,
};

export const TASKS = {
  "fill-mask": fillMask, classify, pairs, tag, answer: answerTask, choose, rank, embed, tokenize, attention: look,
};

/** The tasks that a model can do, in the order above. What a pair is, is shown only where a pair is what it takes. */
export function tasksOf(model) {
  const other = { text: "pairs", pair: "classify" }[model.takes];
  return Object.keys(TASKS).filter((key) => model.tasks.includes(TASKS[key].path ?? key) && key !== other);
}
