// The page: which models there are, which task is open, and the address that keeps both. Each task's own part is in
// panel.js. The address (after #) holds the task, the models and what was typed, never the token.

import { listModels, setToken } from "./api.js";
import { count, el, quiet } from "./dom.js";
import { Panel } from "./panel.js";
import { TASKS, tasksOf } from "./tasks.js";

const $ = (id) => document.getElementById(id);
const LONGEST = 4000; // characters of a field that are kept in the address
const NOBODY = "";

const models = new Map(); // id -> what the server says about it; a training step is an entry of its own
const panels = new Map(); // task -> Panel, made when first opened
let open = null; // the task that is shown
let last = null; // the model that the panels were made for

// ------------------------------------------------------------------------------------------------- models

function readModels(list) {
  models.clear();
  for (const model of list) {
    models.set(model.id, model);
    for (const step of model.steps.toReversed()) {
      const id = `${model.id}@${step}`;
      models.set(id, { ...model, id, step });
    }
  }
}

function chosen() {
  const first = models.get($("model").value);
  const second = models.get($("other").value);
  return second && second !== first ? [first, second] : [first];
}

function offer(select, ids, names, value) {
  select.replaceChildren(...ids.map((id, i) => el("option", { value: id }, names[i])));
  select.value = ids.includes(value) ? value : ids[0];
}

function showModels(first, second) {
  const ids = [...models.keys()];
  offer($("model"), ids, ids, first);
  showOthers(second);
}

function showOthers(value) {
  const others = [...models.keys()].filter((id) => id !== $("model").value);
  offer($("other"), [NOBODY, ...others], ["nothing", ...others], value);
  $("other").closest(".field").hidden = others.length === 0;
  const lines = chosen().map((model, _, all) => `${all.length > 1 ? `${model.id}: ` : ""}${facts(model)}`);
  $("facts").replaceChildren(...lines.map((line) => el("span", {}, line)));
}

function facts({ num_layers: layers, hidden_size: width, parameters, max_length: length, step }) {
  const size = parameters >= 1e6 ? `${(parameters / 1e6).toFixed(1)}M` : parameters.toLocaleString("en");
  const parts = [`${count(layers, "layer")} \u00d7 ${width}`, `${size} parameters`, `at most ${length} tokens`];
  if (step !== null) parts.push(`step ${step.toLocaleString("en")}`);
  return parts.join(", ");
}

function modelChanged() {
  showOthers($("other").value);
  for (const panel of panels.values()) panel.modelChanged(last);
  [last] = chosen();
  const tasks = tasksOf(chosen()[0]);
  showTabs(tasks);
  openTask(tasks.includes(open) ? open : tasks[0]);
}

// --------------------------------------------------------------------------------------------------- tabs

function showTabs(tasks) {
  $("tabs").replaceChildren(...tasks.map((key) => el(
    "button",
    {
      type: "button",
      role: "tab",
      id: `tab-${key}`,
      "aria-controls": `panel-${key}`,
      on: { click: () => openTask(key), keydown: moveTab },
    },
    TASKS[key].name,
  )));
  for (const key of tasks) panelOf(key);
  for (const [key, panel] of panels) panel.element.hidden = key !== open;
}

function panelOf(key) {
  if (!panels.has(key)) {
    const panel = new Panel(key, { models: chosen, changed: keepState, say, wantToken: () => askForToken() });
    panels.set(key, panel);
    $("panels").append(panel.element);
  }
  return panels.get(key);
}

function openTask(key) {
  open = key;
  for (const tab of $("tabs").children) {
    const selected = tab.id === `tab-${key}`;
    tab.setAttribute("aria-selected", String(selected));
    tab.tabIndex = selected ? 0 : -1;
  }
  for (const [name, panel] of panels) panel.element.hidden = name !== key;
  document.title = `${TASKS[key].name} \u00b7 ${$("model").value} \u00b7 remask`;
  keepState();
  panelOf(key).run();
}

function moveTab(event) {
  const tabs = [...$("tabs").children];
  const at = tabs.indexOf(event.currentTarget);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  const tab = tabs[(next + tabs.length) % tabs.length];
  tab.focus();
  tab.click();
}

// ----------------------------------------------------------------------------------------------- address

function keepState() {
  const state = new URLSearchParams({ task: open, model: $("model").value });
  if ($("other").value !== NOBODY) state.set("with", $("other").value);
  for (const [key, value] of Object.entries(panelOf(open).values())) {
    if (value.length <= LONGEST) state.set(`in.${key}`, value);
  }
  if (location.hash !== `#${state}`) history.replaceState(null, "", `#${state}`);
}

function readState() {
  const state = new URLSearchParams(location.hash.slice(1));
  showModels(state.get("model"), state.get("with"));
  const tasks = tasksOf(chosen()[0]);
  const task = tasks.includes(state.get("task")) ? state.get("task") : tasks[0];
  open = task;
  if (last) for (const panel of panels.values()) panel.modelChanged(last);
  [last] = chosen();
  showTabs(tasks);
  const inputs = [...state].filter(([key]) => key.startsWith("in.")).map(([key, value]) => [key.slice(3), value]);
  panelOf(task).setValues(new Map(inputs));
  openTask(task);
}

// ------------------------------------------------------------------------------------------------- start

function say(text) {
  $("said").textContent = text;
}

function askForToken() {
  $("door").hidden = false;
  $("token").focus();
}

async function start() {
  $("trouble").replaceChildren();
  try {
    readModels(await listModels());
  } catch (trouble) {
    if (trouble.kind === undefined) throw trouble;
    const token = trouble.kind === "token";
    const again = token ? null : quiet("Try again", start);
    const said = el("div", { class: "alert" }, el("p", {}, trouble.message), again);
    if (!token || !$("door").hidden) $("trouble").replaceChildren(said); // the first time asking for it says enough
    if (token) askForToken();
    return;
  }
  const opened = !$("door").hidden;
  $("door").hidden = true;
  $("models").hidden = $("tabs").hidden = false;
  readState();
  if (opened) $("model").focus();
}

$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken($("token").value);
  $("token").value = "";
  start();
});

$("model").addEventListener("change", modelChanged);
$("other").addEventListener("change", modelChanged);
window.addEventListener("hashchange", () => models.size && readState());

function isDark() {
  const { theme } = document.documentElement.dataset;
  return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function showTheme() {
  $("theme").textContent = isDark() ? "Switch to light" : "Switch to dark";
  for (const canvas of document.querySelectorAll("canvas")) canvas.dispatchEvent(new Event("redraw"));
}

$("theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("remask-theme", theme);
  } catch {
    // a browser that keeps nothing: until the page is closed
  }
  showTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showTheme);
showTheme();
start();
