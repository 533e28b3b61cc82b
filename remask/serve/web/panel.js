// One task's panel: its fields, the answers of one model or of two side by side, and the request to copy.
// Typing asks again after a short rest; a request that is overtaken is aborted and its answer never shown.

import { asCurl, asPython, ask, Trouble } from "./api.js";
import { el, quiet } from "./dom.js";
import { TASKS } from "./tasks.js";

const REST = 250; // milliseconds without a key before the model is asked
const SLOW = 200; // milliseconds after which waiting is shown

export class Panel {
  /** `page`: {models() -> those to ask, changed() -> keep the state, say(text), wantToken()}. */
  constructor(key, page) {
    this.key = key;
    this.task = TASKS[key];
    this.page = page;
    this.path = `v1/${this.task.path ?? key}`;
    this.ticket = 0;
    this.cut = false;
    this.memories = [{ id: `${key}-first` }, { id: `${key}-second` }];
    this.inputs = new Map();
    this.columns = el("div", { class: "columns" });
    const progress = el("div", { class: "progress", "aria-hidden": "true" });
    this.results = el("section", { class: "results card", "aria-label": "Answer" }, progress, this.columns);
    const submit = (event) => this.submit(event);
    this.form = el("form", { class: "ask", "aria-label": this.task.name, on: { submit } });
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
      if (["number", "choice", "check"].includes(field.kind) || field.placeholder) small.push(made);
      else this.form.append(made);
    }
    if (small.length) this.form.append(el("div", { class: "row" }, ...small));
  }

  input(field, id, model) {
    const start = field.masks ? field.start.replaceAll("<mask>", model.mask_token) : field.start;
    const plain = { id, autocomplete: "off", spellcheck: "false", dir: "auto" };
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
    const kind = field.kind === "number" ? { type: "number", min: field.min, max: field.max } : { type: "text" };
    const input = el("input", { ...plain, ...kind, placeholder: field.placeholder });
    input.value = start;
    return input;
  }

  labelled(field, id, input, model) {
    if (field.kind === "check") return el("label", { class: "check", for: id }, input, el("span", {}, field.label));
    const label = el("label", { for: id }, field.label);
    if (field.masks) this.maskButton = quiet(`Insert ${model.mask_token}`, () => this.insertMask(input));
    const heading = el("div", { class: "heading" }, label, field.masks ? this.maskButton : null);
    const grows = field.kind === "text" || field.kind === "line";
    return el("div", { class: `field ${grows ? "grow" : "short"}` }, heading, input);
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
      const offered = input.tagName !== "SELECT" || [...input.options].some((option) => option.value === value);
      if (input.type === "checkbox") input.checked = value !== "";
      else if (offered) input.value = value;
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
    const own = { ...values };
    for (const { key, masks } of this.task.fields) {
      if (masks) own[key] = own[key].replaceAll(first.mask_token, model.mask_token);
    }
    const body = this.task.request(own, model);
    return body.wait ? body : { model: model.id, ...body, ...(this.cut ? { long_texts: "cut" } : {}) };
  }

  /** {model, body, found} or {model, body, trouble} or {model, body: {wait}}. */
  async answerOf(part, signal) {
    if (part.body.wait) return part;
    if (!part.model.tasks.includes(this.task.path ?? this.key)) {
      return { ...part, trouble: new Trouble("cannot", "This model has no such task.") };
    }
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
    this.columns.classList.toggle("two", answers.length > 1);
    this.element.classList.toggle("stacked", this.task.wide || answers.length > 1);
    const focused = this.columns.contains(document.activeElement) ? focusPath(this.columns) : null;
    this.columns.replaceChildren(...answers.map((answer, i) => {
      const heading = answers.length > 1 ? el("h3", {}, answer.model.id) : null;
      const content = this.content(answer, values, { memory: this.memories[i] });
      return el("article", { class: "column", "aria-label": answer.model.id }, heading, content);
    }));
    if (focused) this.columns.querySelectorAll(FOCUSABLE)[focused]?.focus();
    this.page.say(answers.map((answer) => this.spoken(answer, answers.length > 1)).filter(Boolean).join(". "));
  }

  content({ model, body, found, trouble }, values, { memory }) {
    if (body.wait) return el("p", { class: "soft" }, body.wait);
    if (trouble) {
      const again = trouble.kind === "cannot" ? null : quiet("Try again", () => this.run());
      const cut = trouble.kind === "long" && this.task.cuts ? quiet("Cut it to fit", () => this.setCut(true)) : null;
      const buttons = el("div", { class: "buttons" }, cut, again);
      return el("div", { class: "alert", role: "alert" }, el("p", {}, trouble.message), buttons);
    }
    const copy = (button, text) => this.copy(button, text);
    const shown = this.task.show(found, values, { memory, model, body, copy });
    if (!this.cut) return shown;
    const stop = quiet("Do not cut", () => this.setCut(false));
    return el("div", {}, shown, el("p", { class: "soft" }, `Texts beyond ${model.max_length} tokens are cut. `, stop));
  }

  /** Nothing is cut unless asked for: an answer about half a text must not look like one about all of it. */
  setCut(cut) {
    this.cut = cut;
    this.run();
  }

  spoken({ model, body, found }, named) {
    if (found === undefined) return body.wait ?? ""; // an alert speaks for itself
    return `${named ? `${model.id}: ` : ""}${this.task.say(found)}`;
  }

  // --------------------------------------------------------------------------------------------- to copy

  tools() {
    this.curl = el("pre", { tabindex: "0", role: "region", "aria-label": "curl" });
    this.python = el("pre", { tabindex: "0", role: "region", "aria-label": "Python" });
    const parts = [el("h3", {}, "curl"), this.curl, el("h3", {}, "Python"), this.python];
    this.shown = el("details", {}, el("summary", {}, "Show the request"), ...parts);
    const buttons = el(
      "div",
      { class: "buttons" },
      quiet("Copy as curl", (button) => this.copy(button, this.curl.textContent, this.curl)),
      quiet("Copy as Python", (button) => this.copy(button, this.python.textContent, this.python)),
      quiet("Copy link", (button) => this.copy(button, location.href)),
    );
    return el("div", { class: "tools" }, buttons, this.shown);
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
