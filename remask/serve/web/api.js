// Talking to the server: requests with the token, errors as one sentence, the same request as curl and Python.
// The token is kept in sessionStorage at most and never appears in a link or a copied request.

const TOKEN_KEY = "remask-token";

/** What went wrong, for people: `kind` is busy, offline, token, long (a text beyond the model's length), cannot (another
    model could) or refused. */
export class Trouble extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

let token = "";
try {
  token = sessionStorage.getItem(TOKEN_KEY) ?? "";
} catch {
  // a browser that keeps nothing: the token lives as long as the page
}

export function setToken(text) {
  token = text;
  try {
    sessionStorage.setItem(TOKEN_KEY, text);
  } catch {
    // as above
  }
}

export function wantsToken() {
  return token !== "";
}

export async function listModels() {
  return (await call("v1/models", {})).models;
}

const maps = new Map(); // id of an index -> its map, asked for once

/** The points of an index's map. */
export function collectionMap(id) {
  if (!maps.has(id)) {
    const asked = call(`v1/map?model=${encodeURIComponent(id)}`, {});
    asked.catch(() => maps.delete(id)); // the next one asks again
    maps.set(id, asked);
  }
  return maps.get(id);
}

/** The answers, one an input. */
export async function ask(path, body, signal) {
  const options = { method: "POST", body: JSON.stringify(body), signal };
  return (await call(path, { ...options, headers: { "Content-Type": "application/json" } })).outputs;
}

async function call(path, options) {
  const headers = { ...options.headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) };
  let response;
  let content;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
    content = await response.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble("offline", "The server does not answer. Is remask serve still running?");
  }
  const said = parsed(content);
  if (response.ok && said !== null) return said;
  const message = said?.error?.message ?? `The server answered ${response.status} ${response.statusText}`.trim();
  if (response.status === 401) throw new Trouble("token", token ? "The server does not know this token." : message);
  if (response.status === 429 || response.status === 503) {
    throw new Trouble("busy", `Busy, try again. ${sentence(message)}`);
  }
  throw new Trouble(said?.error?.code === "text_too_long" ? "long" : "refused", sentence(message));
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function sentence(text) {
  const clean = String(text).trim();
  const first = clean.charAt(0).toUpperCase() + clean.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

// ------------------------------------------------------------------------------------------------- to copy

export function asCurl(path, body) {
  const lines = [`curl -sS ${quoted(new URL(path, document.baseURI).href)}`, `-H 'Content-Type: application/json'`];
  if (wantsToken()) lines.push(`-H "Authorization: Bearer $REMASK_TOKEN"`);
  lines.push(`-d ${quoted(JSON.stringify(body))}`);
  return lines.join(" \\\n  ");
}

export function asPython(path, body) {
  const headers = [`"Content-Type": "application/json"`];
  if (wantsToken()) headers.push(`"Authorization": "Bearer " + os.environ["REMASK_TOKEN"]`);
  return [
    "import json",
    ...(wantsToken() ? ["import os"] : []),
    "import urllib.request",
    "",
    `body = ${literal(body)}`,
    "request = urllib.request.Request(",
    `    ${JSON.stringify(new URL(path, document.baseURI).href)},`,
    "    data=json.dumps(body).encode(),",
    `    headers={${headers.join(", ")}},`,
    ")",
    "with urllib.request.urlopen(request) as answer:",
    '    print(json.load(answer)["outputs"])',
    "",
  ].join("\n");
}

/** One word for a shell. */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** A value as Python writes it; JSON's strings are Python's, its names are not. */
function literal(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([key, inside]) => `${JSON.stringify(key)}: ${literal(inside)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
