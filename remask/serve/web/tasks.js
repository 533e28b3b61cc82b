// The tasks of the page, one entry each: the path under /v1, what is asked for, what is sent, how the answer is shown.
// request(values, model) -> the body, or {wait} with a hint while something is missing.
// show(answer, values, context) -> an element; `values` are those of now, context.body has what the answer is to.
// say(answer) -> the same in a sentence for screen readers.
// A field with `local` changes only what is shown. `many`: each line is an input of its own; `wide`: wants the width;
// `cuts`: the server can be told to cut long texts.

import { attention, headWeights } from "./attention.js";
import { count, decimal, el, percent, quiet } from "./dom.js";
import { collection, ranking } from "./search.js";
import { answer, bars, candidate, entities, isPart, similarities, tokenCount, tokens } from "./views.js";

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const words = (text) => text.split(",").map((word) => word.trim()).filter(Boolean);
const range = (number) => Array.from({ length: number }, (_, i) => String(i + 1));
const wait = (hint) => ({ wait: hint });
const note = (text) => el("p", { class: "soft" }, text);

const text = (key, label, rows, start, more = {}) => ({ key, label, kind: "text", rows, start, ...more });
const line = (key, label, start, more = {}) => ({ key, label, kind: "line", start, ...more });
const choice = (key, label, options) => ({ key, label, kind: "choice", options, start: "", local: true });
const row = (name, share, chosen = false) => ({ name, value: share, text: percent(share), chosen });

const fillMask = {
  name: "Fill mask",
  fields: [
    text("text", "Sentence", 3, "The weather today is very <mask>.", { masks: true }),
    { key: "top", label: "Candidates", kind: "number", min: 1, max: 50, start: "8" },
    line("targets", "Only these words", "", { placeholder: "any, or: good, bad" }),
  ],
  request(values, model) {
    if (!values.text.includes(model.mask_token)) return wait(`Write ${model.mask_token} where a word is missing.`);
    const targets = words(values.targets);
    if (targets.length) return { inputs: values.text, top_k: Math.min(100, targets.length), targets };
    return { inputs: values.text, top_k: Math.max(1, Math.min(50, Math.round(Number(values.top)) || 8)) };
  },
  show(found, _, { model, body }) {
    const masks = body.inputs.split(model.mask_token).length - 1;
    const each = found.length / masks;
    const groups = range(masks).flatMap((number, i) => {
      const fills = found.slice(i * each, (i + 1) * each);
      const table = bars(`For mask ${number}`, fills.map((fill) => row(candidate(fill.token_str), fill.score)));
      return masks > 1 ? [el("h4", {}, `Mask ${number}`), table] : [table];
    });
    return el("div", {}, ...groups);
  },
  say(found) {
    const best = found.find((fill) => !isPart(fill.token_str)) ?? found[0];
    return `Likeliest: ${best.token_str.trim()}, ${percent(best.score)}`;
  },
};

function showLabel({ label, score, scores, labels }) {
  if (label === null) return el("p", { class: "verdict" }, decimal(score)); // a regression: one number
  const rows = Object.entries(scores).map(([name, share]) => row(name, share, labels.includes(name)));
  return bars("Classes", rows.sort((a, b) => b.value - a.value));
}

function sayLabel({ label, score }) {
  return label === null ? decimal(score) : `${label}, ${percent(score)}`;
}

/** "positive = great, good" a line -> {positive: ["great", "good"]}; lines without a word are left out. */
function labelWords(text) {
  const pairs = lines(text).map((one) => [one.split("=")[0].trim(), words(one.split("=").slice(1).join("="))]);
  return Object.fromEntries(pairs.filter(([label, said]) => label && said.length));
}

const prompt = {
  name: "Prompt",
  cuts: true,
  fields: [
    text("text", "Text", 3, "The delivery came early and everything works."),
    text("patterns", "Patterns with {text} and <mask>, one a line", 2, "{text} All in all it was <mask>."),
    text("words", "Words for each label, one label a line", 3, "positive = great, good\nnegative = bad, terrible"),
  ],
  request(values) {
    const patterns = lines(values.patterns);
    const said = labelWords(values.words);
    if (!values.text.trim()) return wait("Write a text.");
    if (!patterns.length || !patterns.every((one) => one.includes("{text}") && /<mask>|\[MASK\]/.test(one))) {
      return wait("Write patterns that hold {text} and <mask>.");
    }
    if (Object.keys(said).length < 2) return wait("Write words for at least two labels: label = word, word");
    return { inputs: values.text, patterns, words: said };
  },
  show: showLabel,
  say: sayLabel,
};

const classify = {
  name: "Classify",
  cuts: true,
  fields: [text("text", "Text", 5, "The delivery came early and everything works.")],
  request: (values) => (values.text.trim() ? { inputs: values.text } : wait("Write a text.")),
  show: showLabel,
  say: sayLabel,
};

const pairs = {
  name: "Pairs",
  cuts: true,
  fields: [
    text("text", "First text", 3, "A man is playing a guitar."),
    text("text2", "Second text", 3, "Somebody is making music."),
  ],
  request({ text: first, text2: second }) {
    if (!first.trim() || !second.trim()) return wait("Write both texts.");
    return { inputs: { text: first, text2: second } };
  },
  show: showLabel,
  say: sayLabel,
};

const tag = {
  name: "Entities",
  fields: [text("text", "Text", 5, "Mary Shelley wrote Frankenstein near Geneva in 1816.")],
  request: (values) => (values.text.trim() ? { inputs: values.text } : wait("Write a text.")),
  show: (found, _, { body }) => entities(body.inputs, found),
  say(found) {
    const first = found.slice(0, 5).map((entity) => `${entity.text}, ${entity.label}`);
    return [count(found.length, "entity", "entities"), ...first].join("; ");
  },
};

const STORY = "In the summer of 1816 Mary Shelley stayed near Geneva. There she wrote Frankenstein, which appeared two "
  + "years later.";

const answerTask = {
  name: "Answer",
  fields: [line("question", "Question", "Who wrote Frankenstein?"), text("context", "Context", 7, STORY)],
  request({ question, context }) {
    if (!question.trim() || !context.trim()) return wait("Write a question and a context.");
    return { inputs: { question, context } };
  },
  show: (found, _, { body }) => answer(body.inputs.context, found),
  say: (found) => (found.text ? `Answer: ${found.text}` : "No answer in this context"),
};

const choose = {
  name: "Choose",
  cuts: true,
  fields: [
    text("text", "Text", 4, "It rained all night, and nobody had closed the windows."),
    line("question", "Question about it (may be left empty)", "What is the floor like in the morning?"),
    text("options", "Options, one a line", 4, "It is wet.\nIt is dusty.\nIt is closed."),
  ],
  request(values) {
    const options = lines(values.options);
    if (!values.text.trim() || options.length < 2) return wait("Write a text and at least two options.");
    const question = values.question.trim();
    return { inputs: { text: values.text, options, ...(question ? { question } : {}) } };
  },
  show({ index, scores }, _, { body }) {
    return bars("Options", scores.map((share, i) => row(body.inputs.options[i], share, i === index)));
  },
  say: ({ index, scores }) => `Option ${index + 1}, ${percent(scores[index])}`,
};

const TEXTS = "Read the contents of a path from disk.\nSort a list of numbers.\nThe weather was fine all week.";

const rank = {
  name: "Rank",
  cuts: true,
  fields: [line("query", "Query", "How do I open a file?"), text("texts", "Texts to rank, one a line", 6, TEXTS)],
  request({ query, texts }) {
    if (!query.trim() || !lines(texts).length) return wait("Write a query and the texts.");
    return { inputs: { query, texts: lines(texts) } };
  },
  show(found) {
    const rows = found.map((one) => ({ name: one.text, value: one.score, text: decimal(one.score) }));
    const meaning = note("Cosine of the embeddings; 1 is the same direction.");
    return el("div", {}, bars("Texts, closest first", rows), meaning);
  },
  say: (found) => `Closest: ${found[0].text}`,
};

const embed = {
  name: "Embed",
  cuts: true,
  many: true,
  fields: [text("texts", "Texts, one a line", 6, "A cat sleeps.\nThe kitten is resting.\nStocks fell on Monday.")],
  request({ texts }) {
    return lines(texts).length ? { inputs: lines(texts) } : wait("Write one text a line.");
  },
  show(vectors, _, { body, copy }) {
    return el(
      "div",
      {},
      similarities(body.inputs, vectors),
      note(`${embed.say(vectors)}; the table has their cosines.`),
      quiet("Copy vectors as JSON", (button) => copy(button, JSON.stringify(vectors))),
    );
  },
  say: (vectors) => `${count(vectors.length, "vector")} of ${count(vectors[0].length, "number")}`,
};

/** The server's parallel lists as one list; special tokens are those that stand for no bytes. */
function tokenList({ ids, tokens: names, bytes: written }) {
  return ids.map((id, i) => {
    const bytes = Uint8Array.from(written[i].match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
    return { id, text: names[i], bytes, special: bytes.length === 0 };
  });
}

const tokenize = {
  name: "Tokens",
  fields: [
    text("text", "Text", 4, "Unbelievable: a na\u00efve caf\u00e9 for 3.50 \u20ac \ud83d\ude00"),
    { key: "ids", label: "Show ids", kind: "check", start: "", local: true },
  ],
  request: (values) => (values.text ? { inputs: values.text } : wait("Write a text.")),
  show(found, values, { body }) {
    const list = tokenList(found);
    return el("div", {}, tokens(list, values.ids !== ""), note(tokenCount(list, body.inputs)));
  },
  say: (found) => count(found.ids.length, "token"),
};

const look = {
  name: "Attention",
  path: "encode",
  wide: true,
  fields: [
    text("text", "Text", 3, "The animal did not cross the street because it was too tired."),
    choice("layer", "Layer", (model) => range(model.num_layers)),
    choice("head", "Head", (model) => ["mean", ...range(model.num_heads)]),
  ],
  request(values) {
    if (!values.text.trim()) return wait("Write a text.");
    return { inputs: values.text, states: false, attentions: true, marked: true };
  },
  show(found, values, { memory }) {
    const heads = found.attentions[Math.min(Number(values.layer), found.attentions.length) - 1];
    const view = attention(tokenList(found), headWeights(heads, values.head), memory);
    return el("div", {}, view, note("Choose a token by pointer or arrow keys: bars show how much it looks at each; "
      + "the strongest has the deepest shade. "
      + "In the map, rows look at columns."));
  },
  say: (found) => `${count(found.tokens.length, "token")}; choose one to see what it looks at`,
};

const named = (names) => names.map((name) => ({ text: name.trim() || name, special: true }));

const write = {
  name: "Write",
  cuts: true,
  wide: true,
  fields: [
    text("text", "Text", 4, "Two young men are outside near many bushes."),
    { key: "beams", label: "Beams", kind: "number", min: 1, max: 16, start: "4" },
    { key: "longest", label: "Most tokens", kind: "number", min: 1, max: 512, start: "40" },
    choice("layer", "Layer", (model) => range(model.num_layers)),
    choice("head", "Head", (model) => ["mean", ...range(model.num_heads)]),
  ],
  request(values, model) {
    if (!values.text.trim()) return wait("Write a text.");
    const within = (value, most, start) => Math.max(1, Math.min(most, Math.round(Number(value)) || start));
    const body = { inputs: values.text, max_length: within(values.longest, 512, 40) };
    if (!model.decoder) return body; // an encoder alone fills masks, one by one
    return { ...body, beams: within(values.beams, 16, 4), attentions: true };
  },
  show(found, values, { memory }) {
    const sure = note(`${count(found.tokens, "token")}, ${decimal(found.score)} nats each on average`
      + `${found.finished ? "" : "; it did not come to an end"}.`);
    const verdict = el("p", { class: "verdict" }, found.text);
    if (found.how === "masks") {
      return el("div", {}, verdict, sure, note("This model has no decoder: it continues the text by filling masks from "
        + "left to right."));
    }
    if (!found.look) return el("div", {}, verdict, sure);
    const layers = found.look.attentions;
    const heads = layers[Math.min(Number(values.layer), layers.length) - 1];
    const view = attention(named(found.look.written), headWeights(heads, values.head), memory, named(found.look.source));
    return el("div", {}, verdict, sure, view, note("Choose a written token by pointer or arrow keys: shades and bars "
      + "show where in the source it looks. In the map, rows are written tokens, columns those of the source."));
  },
  say: (found) => `Written: ${found.text}`,
};

const search = {
  name: "Search",
  wide: true,
  fields: [
    line("query", "Look for", ""),
    { key: "top", label: "Passages", kind: "number", min: 1, max: 100, start: "5" },
    { ...choice("way", "Show", () => ["side by side", "both as one"]), start: "side by side" },
  ],
  request({ query, top }) {
    if (!query.trim()) return wait("Write what to look for.");
    const wanted = Math.max(1, Math.min(100, Math.round(Number(top)) || 5));
    return { inputs: query, top_k: wanted, lists: true, point: true };
  },
  show(found, values, { body, model }) {
    const one = (name, hits) => ranking(name, hits, body.inputs);
    const lists = values.way === "both as one"
      ? [one("Vectors and words as one", found.hits)]
      : [one("By vectors", found.vectors), one("By words", found.words)];
    const { passages, documents } = model.index;
    return el(
      "div",
      {},
      el("div", { class: lists.length > 1 ? "columns two" : "columns" }, ...lists),
      el("h2", { class: "part" }, `Map of ${count(passages, "passage")} of ${count(documents, "document")}`),
      collection(model.id, found),
    );
  },
  say({ hits }) {
    return hits.length ? `${count(hits.length, "passage")}, the first of ${hits[0].id}` : "Nothing found";
  },
};

export const TASKS = {
  search,
  "fill-mask": fillMask, prompt, classify, pairs, tag, answer: answerTask, choose, write, rank, embed, tokenize,
  attention: look,
};

/** The tasks that a model can do, in the order above. What a pair is, is shown only where a pair is what it takes. */
export function tasksOf(model) {
  const other = { text: "pairs", pair: "classify" }[model.takes];
  return Object.keys(TASKS).filter((key) => model.tasks.includes(TASKS[key].path ?? key) && key !== other);
}
