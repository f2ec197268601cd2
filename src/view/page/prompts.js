// The table of prompts of some steps, one line per row of the dataset.

import { address, debounced, formatNumber, get, h, updateAddress, runPath } from "./dom.js";

const COLUMNS = [
  ["row", "row", "number wide"],
  ["data_source", "source", "wide"],
  ["text", "prompt", ""],
  ["tokens", "tokens", "number widest"],
  ["responses", "responses", "number wide"],
  ["trained", "trained", "number wide"],
  ["cut", "cut", "number widest"],
  ["score", "score", "number"],
  ["length", "length", "number"],
  ["step", "step", "number wide"],
];
const PAGE_SIZE = 100;

export async function show(root, params, shared) {
  const name = params.get("run") ?? shared.run;
  const state = {
    search: params.get("q") ?? "",
    sort: params.get("sort") ?? "row",
    down: params.get("down") === "1",
    from: params.get("from") ?? "",
    to: params.get("to") ?? "",
  };
  let found = { steps: [], prompts: [], unreadable: [] };
  let marked = -1;
  let count = PAGE_SIZE;
  const body = h("tbody");
  const heads = h("tr");
  const summary = h("p", { class: "quiet-text" });
  const unreadable = h("div");
  const more = h("button", { click: () => { count += 5 * PAGE_SIZE; draw(); } }, "more");

  async function load() {
    const range = ["from", "to"].filter((key) => state[key] !== "").map((key) => [key, state[key]]);
    found = await get(runPath(name, "prompts"), range);
    draw();
  }

  function matching() {
    const words = state.search.toLowerCase().split(/\s+/);
    const own = found.prompts.filter((line) => {
      const text = `${line.row} ${line.data_source ?? ""} ${line.text}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const value = (line) => line[state.sort];
    const order = (one, other) => {
      const [left, right] = [value(one), value(other)];
      if (left === null || right === null) return (left === null) - (right === null);
      return (typeof left === "string" ? left.localeCompare(right) : left - right) * (state.down ? -1 : 1);
    };
    return own.sort(order);
  }

  function target(line) {
    return address("group", { run: name, step: line.step, prompt: line.prompt });
  }

  function row(line, index) {
    const cell = ([key, , kind]) => {
      const text = typeof line[key] === "number" || line[key] === null ? formatNumber(line[key]) : line[key];
      return h("td", { class: key === "text" ? "text" : kind }, key === "text" ? h("a", { href: target(line) }, text || "(no text)") : text);
    };
    return h("tr", { class: index === marked ? "marked" : "" }, COLUMNS.map(cell));
  }

  function head([key, text, kind]) {
    const arrow = key === state.sort ? (state.down ? " ↓" : " ↑") : "";
    const sort = () => {
      Object.assign(state, { down: key === state.sort && !state.down, sort: key });
      updateAddress({ sort: key, down: state.down ? 1 : null });
      draw();
    };
    return h("th", { class: kind, "aria-sort": arrow && (state.down ? "descending" : "ascending") }, h("button", { class: "plain", click: sort }, text + arrow));
  }

  function draw() {
    const lines = matching();
    marked = Math.min(marked, lines.length - 1);
    heads.replaceChildren(...COLUMNS.map(head));
    body.replaceChildren(...lines.slice(0, count).map(row));
    more.hidden = lines.length <= count;
    const { steps } = found;
    unreadable.replaceChildren(...found.unreadable.map((text) => h("p", { class: "error" }, text)));
    const range = steps.length ? `steps ${steps[0]} to ${steps.at(-1)}` : "no step with rollouts";
    summary.textContent = `${lines.length} prompts of ${range}${steps.length === 64 ? " (64 steps at most)" : ""}. A line leads to the prompt's last group.`;
  }

  function move(by) {
    return () => {
      marked = Math.max(0, Math.min(marked + by, body.childElementCount - 1));
      [...body.children].forEach((line, index) => line.classList.toggle("marked", index === marked));
      body.children[marked]?.scrollIntoView({ block: "nearest" });
    };
  }

  const search = h("input", { type: "search", placeholder: "Search prompts  ( / )", "aria-label": "Search prompts", value: state.search });
  search.addEventListener("input", debounced(() => {
    state.search = search.value;
    updateAddress({ q: state.search });
    draw();
  }));
  const input = (key) => h("input", { type: "number", min: 1, value: state[key], placeholder: key === "from" ? "first" : "last", "aria-label": `${key} step`, change: (event) => {
    state[key] = event.target.value;
    updateAddress({ [key]: state[key] });
    load().catch((error) => (summary.textContent = error.message));
  } });
  root.append(h("div", { class: "bar" }, search, h("label", {}, "Steps ", input("from"), " to ", input("to"))), unreadable, summary,
    h("table", { class: "rows prompts" }, h("thead", {}, heads), body), more);
  await load();
  const open = () => {
    const line = matching()[marked];
    if (line) location.hash = target(line);
  };
  return {
    update: debounced(() => (state.to === "" ? load().catch(() => {}) : null), 3000),
    keys: { j: move(1), k: move(-1), Enter: open },
  };
}
