// The responses of a prompt in a step, side by side.

import { address, breakable, formatNumber, get, h, replaceContent, updateAddress, runPath } from "./dom.js";

const ORDERS = {
  sample: ["by sample", (one, other) => one.sample - other.sample],
  score: ["best first", (one, other) => (other.score ?? -Infinity) - (one.score ?? -Infinity) || one.sample - other.sample],
  length: ["longest first", (one, other) => other.tokens - one.tokens],
};

export async function show(root, params, shared) {
  const [name, step, prompt] = [params.get("run") ?? shared.run, params.get("step"), params.get("prompt")];
  const group = await get(runPath(name, "steps", step, "prompts", prompt));
  const asked = params.get("order");
  const state = { order: Object.hasOwn(ORDERS, asked ?? "") ? asked : "sample", marked: params.get("sample") };
  const cards = h("div", { class: "responses" });

  const at = group.prompts.indexOf(group.prompt);
  const open = (index) => () => {
    if (index >= 0 && index < group.prompts.length) location.hash = address("group", { run: name, step, prompt: group.prompts[index], order: state.order });
  };
  const up = () => (location.hash = address("round", { run: name, step }));

  function draw() {
    const sorted = [...group.responses].sort(ORDERS[state.order][1]);
    cards.replaceChildren(...sorted.map((response) => card(response, { name, step, prompt }, String(response.sample) === state.marked)));
  }

  const order = h("select", { "aria-label": "Order", change: (event) => {
    state.order = event.target.value;
    updateAddress({ order: state.order });
    draw();
  } }, Object.entries(ORDERS).map(([key, [text]]) => h("option", { value: key, selected: key === state.order }, text)));
  replaceContent(
    root,
    h("div", { class: "bar" },
      h("button", { title: "Previous prompt (k)", disabled: at <= 0, click: open(at - 1) }, "‹"),
      h("span", {}, `prompt ${group.prompt} of `, h("a", { href: address("round", { run: name, step }) }, `step ${step}`)),
      h("button", { title: "Next prompt (j)", disabled: at + 1 >= group.prompts.length, click: open(at + 1) }, "›"),
      order,
      h("span", { class: "quiet-text" }, [group.data_source, `row ${group.row}`, `${group.tokens} tokens`].filter(Boolean).join(" · "))),
    h("section", { class: "prompt" }, textBlock(group.text ?? "The run did not record the text of the prompt."),
      group.ground_truth !== null && h("p", {}, h("b", {}, "expected "), h("span", { class: "model-text" }, group.ground_truth)),
      group.extra_info && group.extra_info !== "{}" && h("details", {}, h("summary", {}, "extra_info"), h("pre", {}, group.extra_info))),
    cards,
  );
  draw();
  return { keys: { j: open(at + 1), k: open(at - 1), u: up }, onShown: () => cards.querySelector(".marked")?.scrollIntoView({ block: "nearest" }) };
}

/** Returns the CSS class of a score: `good` above 0, `bad` otherwise, and `none` for null. */
export function scoreClass(score) {
  return score === null ? "none" : score > 0 ? "good" : "bad";
}

export function responseBadges(response) {
  return [
    h("span", { class: `badge score ${scoreClass(response.score)}` }, response.score === null ? "no score" : `score ${formatNumber(response.score)}`),
    response.advantage !== null && h("span", { class: "badge" }, `advantage ${response.advantage > 0 ? "+" : ""}${formatNumber(response.advantage)}`),
    h("span", { class: `badge finish-${response.finish}` }, response.finish),
    h("span", { class: "badge" }, `${response.tokens} tokens`),
    response.weight !== null && response.weight !== 1 && h("span", { class: "badge" }, `weight ${formatNumber(response.weight)}`),
    response.resumed > 0 && h("span", { class: "badge" }, `${response.resumed} tokens of an earlier step`),
    response.preemptions > 0 && h("span", { class: "badge" }, `${response.preemptions} preemptions`),
    !response.trained && h("span", { class: "badge outcome-untrained" }, "not trained"),
  ];
}

function card(response, { name, step, prompt }, marked) {
  const link = address("response", { run: name, step, prompt, sample: response.sample });
  return h("article", { class: `response ${marked ? "marked" : ""}` },
    h("header", {}, h("h3", {}, `sample ${response.sample}`), h("a", { href: link }, "token by token")),
    h("div", { class: "badges" }, responseBadges(response)),
    textBlock(response.text),
    response.error && h("p", { class: "error" }, response.error),
    valuesTable("components", response.components),
    valuesTable("labels", response.labels),
  );
}

function valuesTable(title, all) {
  if (!all) return null;
  const rows = Object.entries(all).map(([key, value]) =>
    h("tr", {}, h("th", {}, breakable(key)), h("td", { class: "model-text" }, typeof value === "number" ? formatNumber(value) : String(value))));
  return h("table", { class: "pairs", "aria-label": title }, rows);
}

function textBlock(content) {
  return h("pre", { class: "model-text" }, content || "(empty)");
}
