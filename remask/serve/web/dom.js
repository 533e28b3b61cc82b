// Elements made by hand: text goes in as text nodes and attributes by name, so nothing that a user, a model or a
// server says is ever read as markup. Also here: how numbers and invisible characters are written.

/** An element; children are elements or strings. `attributes`: on = {event: listener}, all others as they are named. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") {
      for (const [event, listener] of Object.entries(value)) made.addEventListener(event, listener);
    } else if (value === true) {
      made.setAttribute(key, "");
    } else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(key, String(value));
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function hidden(text) {
  return el("span", { class: "hidden" }, text);
}

/** A small button beside other things; `work` gets the button. */
export function quiet(name, work) {
  return el("button", { type: "button", class: "quiet", on: { click: (event) => work(event.currentTarget) } }, name);
}

export function percent(share) {
  if (share >= 0.9995) return "100%";
  if (share >= 0.1) return `${(100 * share).toFixed(1)}%`;
  if (share >= 0.001) return `${(100 * share).toFixed(2)}%`;
  return "<0.1%";
}

export function decimal(number) {
  // A minus sign as wide as the digits, and no "-0.00".
  const text = Math.abs(number).toFixed(3);
  return number < 0 && Number(text) !== 0 ? `\u2212${text}` : text;
}

export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
}

const SIGNS = {
  " ": ["\u00b7", "space"], "\n": ["\u23ce", "newline"], "\t": ["\u21e5", "tab"], "\r": ["\u240d", "return"],
};
// Characters without a picture of their own: controls, joiners, direction marks, odd spaces.
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Zl}\p{Zp}]|[^\S \n\t\r]/u;

/** A text with its spaces, line ends and unseen characters made visible, as nodes. */
export function visible(text) {
  const nodes = [];
  let plain = "";
  const flush = () => {
    if (plain) nodes.push(plain);
    plain = "";
  };
  for (const letter of text) {
    const sign = SIGNS[letter];
    if (sign) {
      flush();
      nodes.push(el("span", { class: "sign", "aria-hidden": "true" }, sign[0]));
      if (text === letter || letter !== " ") nodes.push(hidden(sign[1]));
    } else if (UNSEEN.test(letter)) {
      flush();
      nodes.push(el("span", { class: "byte" }, `U+${hex(letter.codePointAt(0), 4)}`));
    } else {
      plain += letter;
    }
  }
  flush();
  return nodes;
}

/** The nodes of a byte-level token: its whole characters as text, the bytes of broken ones in hexadecimal. */
export function visibleBytes(bytes) {
  const nodes = [];
  let at = 0;
  while (at < bytes.length) {
    const size = wholeCharacters(bytes, at);
    if (size > 0) {
      nodes.push(...visible(new TextDecoder().decode(bytes.subarray(at, at + size))));
      at += size;
    } else {
      nodes.push(el("span", { class: "byte" }, hex(bytes[at], 2)));
      at += 1;
    }
  }
  return nodes;
}

function hex(number, digits) {
  return number.toString(16).toUpperCase().padStart(digits, "0");
}

/** How many bytes from `at` on are whole UTF-8 characters. */
function wholeCharacters(bytes, at) {
  let end = at;
  while (end < bytes.length) {
    const first = bytes[end];
    const size = first < 0x80 ? 1 : first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 0;
    const letter = bytes.subarray(end, end + size);
    if (size === 0 || letter.length < size || !isText(letter)) break;
    end += size;
  }
  return end - at;
}

function isText(bytes) {
  try {
    new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}
