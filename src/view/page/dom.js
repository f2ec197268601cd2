// Elements, numbers, addresses and requests. Text is only added as text nodes, so that no text of a model becomes HTML.

/**
 * Creates an element. A function is a listener of the event with its name, `style` is an object of CSS properties, `value` is set as a
 * property, and all other entries are attributes. Entries that are null, undefined or false are left out, as are such children.
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key === "style") Object.assign(element.style, value);
    else if (key === "value") element.value = value;
    else element.setAttribute(key === "class" ? "class" : key, value === true ? "" : value);
  }
  element.append(...renderable(children));
  return element;
}

/** Replaces the content of an element. Children that are null, undefined or false are left out. */
export function replaceContent(element, ...children) {
  element.replaceChildren(...renderable(children));
}

function renderable(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Returns the parts of a name, with a possible line break after each dot, slash and underscore. */
export function breakable(name) {
  return name.split(/(?<=[._/])/).flatMap((part) => [part, document.createElement("wbr")]);
}

/** Fetches JSON. Throws an error with the server's message if the request fails. */
export async function get(path, pairs = []) {
  const query = new URLSearchParams(pairs).toString();
  const response = await fetch(query ? `${path}?${query}` : path);
  const body = await response.json().catch(() => ({ error: `${response.status} ${response.statusText}` }));
  if (!response.ok) throw new Error(body.error ?? response.statusText);
  return body;
}

/** Returns the path of a request about a run, with further path segments. */
export function runPath(run, ...rest) {
  return ["/api/runs", encodeURIComponent(run), ...rest].join("/");
}

/** Returns the URL fragment of a page. Values that are null, undefined or empty are left out; a list gives one parameter per item. */
export function address(page, params = {}) {
  const pairs = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") pairs.append(key, one);
    }
  }
  const query = pairs.toString();
  return query ? `#/${page}?${query}` : `#/${page}`;
}

/** Changes parameters of the address without another entry in the history, and without building the page anew. */
export function updateAddress(changes) {
  const [page, query = ""] = location.hash.slice(2).split("?");
  const params = new URLSearchParams(query);
  for (const [key, value] of Object.entries(changes)) {
    params.delete(key);
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") params.append(key, one);
    }
  }
  const text = params.toString();
  history.replaceState(null, "", text ? `#/${page}?${text}` : `#/${page}`);
}

/**
 * Formats a number: integers below 1e7 in full, other numbers from 1000 to 1e6 as an integer, and below 1000 with four significant digits.
 * Numbers below 0.001, and other numbers from 1e6, have three digits and an exponent. Null, undefined and NaN
 * are shown as a dash.
 */
export function formatNumber(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en-US");
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(2);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(4)));
}

/** Formats a duration in seconds with the unit that suits its size, from microseconds to days. */
export function formatSeconds(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size < 1e-3) return `${(value * 1e6).toFixed(0)} µs`;
  if (size < 1) return `${(value * 1e3).toFixed(size < 0.01 ? 1 : 0)} ms`;
  if (size < 120) return `${value.toFixed(size < 10 ? 2 : 1)} s`;
  if (size < 7200) return `${(value / 60).toFixed(1)} min`;
  if (size < 172800) return `${(value / 3600).toFixed(1)} h`;
  return `${(value / 86400).toFixed(1)} days`;
}

/** Returns the colour `name` of the theme, as CSS text. */
export function themeColor(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Returns the colour of the run or series `index`, from 0. The colours repeat after eight. */
export function seriesColor(index) {
  return themeColor(`series-${index % 8}`);
}

/** Returns a function that calls `action` `pause` milliseconds after its own last call. */
export function debounced(action, pause = 150) {
  let timer;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...args), pause);
  };
}

/** Returns an element with the message of an error. */
export function errorElement(error) {
  return h("p", { class: "error", role: "alert" }, error.message ?? String(error));
}

/** Returns the last step of ascending ranges, which include both ends; null without ranges. */
export function lastStep(ranges) {
  return ranges.length ? ranges[ranges.length - 1][1] : null;
}

/** Returns the step of `ranges` that is nearest after `step`, or nearest before it if `direction` is negative; null if there is none. */
export function neighborStep(ranges, step, direction) {
  const ordered = direction > 0 ? ranges : [...ranges].reverse();
  for (const [low, high] of ordered) {
    if (direction > 0 && high > step) return Math.max(low, step + 1);
    if (direction < 0 && low < step) return Math.min(high, step - 1);
  }
  return null;
}
