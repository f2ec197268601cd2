// The table of runs, and the summary of one run.

import { address, breakable, debounced, formatNumber, get, h, replaceContent, runPath, formatSeconds } from "./dom.js";

/** Returns the seconds since the last write of a run. */
export function secondsSinceWrite(run) {
  return Math.max(0, Date.now() / 1000 - run.written);
}

/**
 * Returns the state of a run: `ended`, `live`, or `quiet` if it has not written for a minute and for five steps. A killed run is `quiet`,
 * because it writes no summary.
 */
export function stateOf(run) {
  if (run.ended) return { name: "ended", text: run.ended.replaceAll("_", " ") };
  const step = run.last["perf/time_per_step"] ?? 0;
  const quiet = secondsSinceWrite(run) > Math.max(60, 5 * step);
  return quiet ? { name: "quiet", text: `no write for ${formatSeconds(secondsSinceWrite(run))}` } : { name: "live", text: "live" };
}

function badge(run) {
  const state = stateOf(run);
  return h("span", { class: `badge ${state.name}` }, state.text);
}

const COLUMNS = [
  ["critic/score/mean", "score", ""],
  ["val/score", "val score", "wide"],
  ["response_length/mean", "length", "wide"],
  ["perf/time_per_step", "s/step", "wide"],
];
const SETTINGS = ["schedule.name", "model.path", "rollout.n", "actor.lr"];

export async function showAll(root, _params, shared) {
  const chosen = new Set();
  const body = h("tbody");
  const compare = h("a", { class: "button", href: "#/curves" }, "Compare curves");
  const search = h("input", { type: "search", placeholder: "Search runs and settings", "aria-label": "Search runs" });
  let marked = -1;

  function matching() {
    const words = search.value.toLowerCase().split(/\s+/);
    return shared.runs.filter((run) => {
      const text = `${run.name} ${Object.values(run.settings).join(" ")}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
  }

  function row(run, index) {
    const choose = h("input", {
      type: "checkbox",
      "aria-label": `Compare ${run.name}`,
      change: (event) => {
        if (event.target.checked) chosen.add(run.name);
        else chosen.delete(run.name);
        link();
      },
    });
    choose.checked = chosen.has(run.name);
    return h(
      "tr",
      { class: index === marked ? "marked" : "" },
      h("td", {}, choose),
      h("td", { class: "name" }, h("a", { href: address("curves", { run: run.name }) }, run.name)),
      h("td", {}, badge(run)),
      h("td", { class: "number" }, formatNumber(run.steps)),
      COLUMNS.map(([metric, , kind]) => h("td", { class: `number ${kind}` }, formatNumber(run.last[metric]))),
      SETTINGS.map((key) => h("td", { class: "widest" }, run.settings[key] ?? "")),
    );
  }

  function link() {
    const names = chosen.size ? [...chosen] : matching().map((run) => run.name).slice(0, 8);
    compare.href = address("curves", { run: names });
    compare.textContent = chosen.size ? `Compare ${chosen.size} runs` : "Compare these runs";
  }

  function update() {
    const runs = matching();
    body.replaceChildren(...runs.map(row));
    link();
  }

  search.addEventListener("input", debounced(update));
  const heads = ["", "run", "state", "steps"].map((name) => h("th", {}, name));
  root.append(
    h("div", { class: "bar" }, search, compare),
    h(
      "table",
      { class: "rows" },
      h("thead", {}, h("tr", {}, heads, COLUMNS.map(([, name, kind]) => h("th", { class: `number ${kind}` }, name)),
        SETTINGS.map((key) => h("th", { class: "widest" }, key)))),
      body,
    ),
  );
  update();
  const move = (by) => () => {
    marked = Math.min(Math.max(marked + by, 0), matching().length - 1);
    update();
  };
  const open = () => {
    const run = matching()[marked];
    if (run) location.hash = address("curves", { run: run.name });
  };
  return { update, keys: { j: move(1), k: move(-1), Enter: open } };
}

export async function showOne(root, params, shared) {
  const name = params.get("run") ?? shared.run;

  async function update() {
    const run = await get(runPath(name));
    replaceContent(
      root,
      h("h1", {}, run.name, " ", badge(run)),
      h("p", { class: "quiet-text path" }, run.folder),
      run.warnings.map((text) => h("p", { class: "error" }, text)),
      h("section", {}, h("h2", {}, "Findings over the last steps"), findings(run)),
      h("div", { class: "columns" },
        h("section", {}, h("h2", {}, "Settings"), pairs(run.settings)),
        h("section", {}, h("h2", {}, "Result"), run.summary ? pairs(flatten(run.summary)) : h("p", {}, "A run writes its summary at its end.")),
      ),
      run.recipe && h("details", {}, h("summary", {}, "recipe.toml"), h("pre", {}, run.recipe)),
    );
  }

  await update();
  return { update: debounced(() => update().catch(() => {}), 1000) };
}

function findings(run) {
  if (!run.findings.length) return h("p", {}, "None yet: a finding needs some steps.");
  const line = (finding) =>
    h("li", { class: finding.severity },
      h("strong", {}, finding.problem), " ", finding.advice, " ",
      h("a", { href: address("curves", { run: run.name, q: finding.metric }) }, finding.metric));
  return h("ul", { class: "findings" }, run.findings.map(line));
}

function pairs(values) {
  const rows = Object.entries(values).map(([key, value]) =>
    h("tr", {}, h("th", {}, breakable(key)), h("td", {}, typeof value === "number" ? formatNumber(value) : String(value ?? "–"))));
  return h("table", { class: "pairs" }, rows);
}

/** Returns the values of nested objects and lists by dotted names. */
function flatten(values, prefix = "") {
  return Object.entries(values).reduce((all, [key, value]) => {
    const nested = value !== null && typeof value === "object";
    return { ...all, ...(nested ? flatten(value, `${prefix}${key}.`) : { [prefix + key]: value }) };
  }, {});
}
