// One task's panel: its fields, the answers of one model or of two side by side, and the request to copy.
// Typing asks again after a short rest; a request that is overtaken is aborted and its answer never shown.

import { asCurl, asPython, ask, Trouble } from "./api.js";
import { el } from "./dom.js";
import { TASKS } from "./tasks.js";

const REST = 250; // milliseconds without a key before the model is asked
const SLOW = 200; // milliseconds after which waiting is shown

export class Panel {
  /** `page`: {models() -> those to ask, changed() -> keep the state, say(text), wantToken(), copyLink(button)}. */
  constructor(key, page) {
    this.key = key;
    this.task = TASKS[key];
    this.page = page;
    this.path = `v1/${this.task.path ?? key}`;
    this.ticket = 0;
    this.memories = [{ id: `${key}-first` }, { id: `${key}-second` }];
    this.inputs = new Map();
    this.columns = el("div", { class: "columns" });
    this.results = el("section", { class: "results card", "aria-label": "Answer" }, el("div", { class: "progress", "aria-hidden": "true" }), this.columns);
    this.form = el("form", { class: "ask", "aria-label": this.task.name, on: { submit: (event) => this.submit(event) } });
    this.element = el(
      "div",
      { role: "tabpanel", id: `panel-${key}`, "aria-labelledby": `tab-${key}`, hidden: true },
      el("div", { class: "split" }, this.form, this.results, this.tools()),
    );
    this.build();
  }

  // ------------------------------------------------------------------------------------------------ fields

  build() {
    const model = this.page.models()[0];
    const small = [];
    for (const field of this.task.fields) {
      const id = `${this.key}-${field.key}`;
      const input = this.input(field, id, model);
      this.inputs.set(field.key, input);
      input.addEventListener("input", () => this.edited(field));
      const made = this.labelled(field, id, input, model);
      if (["number", "choice", "check"].includes(field.kind) || field.hint) small.push(made);
      else this.form.append(made);
    }
    if (small.length) this.form.append(el("div", { class: "row" }, ...small));
  }

  input(field, id, model) {
    const start = field.masks ? field.start.replaceAll("<mask>", model.mask_token) : field.start;
    const plain = { id, autocomplete: "off", spellcheck: "false" };
    if (field.kind === "text") {
      const area = el("textarea", { ...plain, rows: field.rows });
      area.value = start;
      return area;
    }
    if (field.kind === "choice") {
      const select = el("select", { id });
      fillOptions(select, field.options(model), start);
      return select;
    }
    if (field.kind === "check") return el("input", { id, type: "checkbox" });
    const input = el("input", field.kind === "number" ? { ...plain, type: "number", min: field.min, max: field.max } : { ...plain, type: "text" });
    input.value = start;
    return input;
  }

  labelled(field, id, input, model) {
    const hint = field.hint ? el("small", { class: "soft" }, ` ${field.hint}`) : null;
    if (field.kind === "check") return el("label", { class: "check", for: id }, input, el("span", {}, field.label));
    const label = el("label", { for: id }, field.label, hint);
    const button = field.masks ? el("button", { type: "button", class: "quiet", on: { click: () => this.insertMask(input) } }, `Insert ${model.mask_token}`) : null;
    if (button) this.maskButton = button;
    const grows = field.kind === "text" || field.kind === "line";
    return el("div", { class: `field ${grows ? "grow" : "short"}` }, el("div", { class: "heading" }, label, button), input);
  }

  insertMask(area) {
    const { mask_token: mask } = this.page.models()[0];
    area.setRangeText(mask, area.selectionStart, area.selectionEnd, "end");
    area.focus();
    this.edited(this.task.fields[0]);
  }

  values() {
    const read = (input) => (input.type === "checkbox" ? (input.checked ? "1" : "") : input.value);
    return Object.fromEntries([...this.inputs].map(([key, input]) => [key, read(input)]));
  }

  setValues(given) {
    for (const [key, input] of this.inputs) {
      if (!given.has(key)) continue;
      const value = given.get(key);
      if (input.type === "checkbox") input.checked = value !== "";
      else if (input.tagName !== "SELECT" || [...input.options].some((option) => option.value === value)) input.value = value;
    }
  }

  /** Another model: its layers, heads and mask. */
  modelChanged(before) {
    const model = this.page.models()[0];
    for (const field of this.task.fields) {
      const input = this.inputs.get(field.key);
      if (field.kind === "choice") fillOptions(input, field.options(model), input.value);
      if (field.masks) {
        input.value = input.value.replaceAll(before.mask_token, model.mask_token);
        this.maskButton.textContent = `Insert ${model.mask_token}`;
      }
    }
  }

  edited(field) {
    this.page.changed();
    if (field.local && this.answered) this.show(this.answered);
    else if (field.kind === "text" || field.kind === "line" || field.kind === "number") this.later();
    else this.run();
  }

  submit(event) {
    event.preventDefault();
    this.run();
  }

  // ----------------------------------------------------------------------------------------------- answers

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.run(), REST);
  }

  async run() {
    clearTimeout(this.timer);
    this.controller?.abort();
    this.controller = new AbortController();
    this.ticket += 1;
    const { ticket } = this;
    const { signal } = this.controller;
    const values = this.values();
    const parts = this.page.models().map((model) => ({ model, body: this.body(values, model) }));
    this.writeRequest(parts[0].body);
    this.results.setAttribute("aria-busy", "true");
    if (!this.columns.firstChild) this.columns.append(el("p", { class: "soft" }, "Asking the model\u2026"));
    const slow = setTimeout(() => ticket === this.ticket && this.results.classList.add("busy"), SLOW);
    const answers = await Promise.all(parts.map((part) => this.answerOf(part, signal)));
    clearTimeout(slow);
    if (ticket !== this.ticket) return;
    this.results.removeAttribute("aria-busy");
    this.results.classList.remove("busy");
    this.show(answers);
  }

  body(values, model) {
    const first = this.page.models()[0];
    const masked = this.task.fields.find((field) => field.masks);
    const own = masked ? { ...values, [masked.key]: values[masked.key].replaceAll(first.mask_token, model.mask_token) } : values;
    const body = this.task.request(own, model);
    return body.wait ? body : { model: model.id, ...body };
  }

  /** {model, body, found} or {model, body, trouble} or {model, body: {wait}}. */
  async answerOf(part, signal) {
    if (part.body.wait) return part;
    const needed = this.task.path ?? this.key;
    if (!part.model.tasks.includes(needed)) return { ...part, trouble: new Trouble("refused", "This model has no such task.") };
    try {
      const outputs = await ask(this.path, part.body, signal);
      return { ...part, found: this.task.many ? outputs : outputs[0] };
    } catch (trouble) {
      if (trouble.name !== "AbortError" && !(trouble instanceof Trouble)) throw trouble;
      return { ...part, trouble };
    }
  }

  show(answers) {
    this.answered = answers.some((answer) => answer.trouble || answer.body.wait) ? null : answers;
    if (answers.some((answer) => answer.trouble?.kind === "token")) this.page.wantToken();
    const values = this.values();
    const found = answers.filter((answer) => answer.found !== undefined);
    const peak = this.task.peak ? Math.max(0, ...found.map((answer) => this.task.peak(answer.found))) : 1;
    this.columns.classList.toggle("two", answers.length > 1);
    this.element.classList.toggle("stacked", this.task.wide || answers.length > 1);
    const focused = this.columns.contains(document.activeElement) ? focusPath(this.columns) : null;
    this.columns.replaceChildren(...answers.map((answer, i) => {
      const heading = answers.length > 1 ? el("h3", {}, answer.model.id) : null;
      return el("article", { class: "column", "aria-label": answer.model.id }, heading, this.content(answer, values, { peak, memory: this.memories[i] }));
    }));
    if (focused) this.columns.querySelectorAll(FOCUSABLE)[focused]?.focus();
    this.page.say(answers.map((answer) => this.spoken(answer, answers.length > 1)).filter(Boolean).join(". "));
  }

  content({ model, body, found, trouble }, values, { peak, memory }) {
    if (body.wait) return el("p", { class: "soft" }, body.wait);
    if (trouble) {
      const again = el("button", { type: "button", class: "quiet", on: { click: () => this.run() } }, "Try again");
      return el("div", { class: "alert", role: "alert" }, el("p", {}, trouble.message), again);
    }
    return this.task.show(found, values, { peak, memory, model, body, copy: (button, text) => this.copy(button, text) });
  }

  spoken({ model, body, found }, named) {
    if (found === undefined) return body.wait ?? ""; // an alert speaks for itself
    return `${named ? `${model.id}: ` : ""}${this.task.say(found)}`;
  }

  // --------------------------------------------------------------------------------------------- to copy

  tools() {
    this.curl = el("pre", { tabindex: "0", role: "region", "aria-label": "curl" });
    this.python = el("pre", { tabindex: "0", role: "region", "aria-label": "Python" });
    const button = (name, work) => el("button", { type: "button", class: "quiet", on: { click: (event) => work(event.currentTarget) } }, name);
    this.shown = el("details", {}, el("summary", {}, "Show the request"), el("h3", {}, "curl"), this.curl, el("h3", {}, "Python"), this.python);
    return el(
      "div",
      { class: "tools" },
      el(
        "div",
        { class: "buttons" },
        button("Copy as curl", (target) => this.copy(target, this.curl.textContent, this.curl)),
        button("Copy as Python", (target) => this.copy(target, this.python.textContent, this.python)),
        button("Copy link", (target) => this.copy(target, location.href)),
      ),
      this.shown,
    );
  }

  writeRequest(body) {
    this.curl.textContent = body.wait ? body.wait : asCurl(this.path, body);
    this.python.textContent = body.wait ? body.wait : asPython(this.path, body);
  }

  /** Where the browser forbids it (a page without https from elsewhere), the text is shown and selected instead. */
  async copy(button, text, source) {
    const name = button.dataset.name ?? button.textContent;
    button.dataset.name = name;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      this.page.say("Copied");
    } catch {
      button.textContent = "Not allowed here";
      if (source) {
        this.shown.open = true;
        getSelection().selectAllChildren(source);
        this.page.say("The browser does not allow copying; the request is shown and selected");
      }
    }
    setTimeout(() => (button.textContent = name), 1600);
  }
}

const FOCUSABLE = "button, summary, [tabindex='0']";

/** The place of the focused element among those of its kind, to find it again after drawing anew. */
function focusPath(inside) {
  return [...inside.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement);
}

export function fillOptions(select, options, value) {
  select.replaceChildren(...options.map((option) => el("option", { value: option }, option)));
  select.value = options.includes(value) ? value : options[0];
}
