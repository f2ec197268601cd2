// A response token by token, coloured by log-probability, advantage, policy version or other values per token.

import { address, formatNumber, get, h, replaceContent, updateAddress, runPath, themeColor } from "./dom.js";
import { responseBadges } from "./group.js";

/**
 * The values by which tokens can be coloured: the list of values in the view of the response, the colour of a value, and the text of the
 * legend. The server sends all lists except `ratios`, which the page computes.
 */
const COLORINGS = {
  logprob: { title: "log-probability", list: "logprobs", color: (value) => withOpacity("bad", Math.min(1, -value / 5)), text: "the stronger, the less probable; full at −5 nats" },
  advantage: { title: "advantage", list: "advantages", color: diverging, text: "green above 0, red below" },
  version: { title: "policy version", list: "versions", color: (value, { versions }) => withOpacity(`series-${versions.indexOf(value) % 8}`, 0.4), text: "" },
  score: { title: "token score", list: "token_scores", color: diverging, text: "green above 0, red below" },
  value: { title: "critic's value", list: "values", color: diverging, text: "green above 0, red below" },
  reference: { title: "log-ratio to the reference", list: "ratios", color: diverging, text: "green: more probable than under the reference policy" },
};

function withOpacity(name, share) {
  const percent = Math.round(Math.max(0, Math.min(1, share)) * 75);
  return `color-mix(in srgb, ${themeColor(name)} ${percent}%, transparent)`;
}

function diverging(value, { max }) {
  return withOpacity(value < 0 ? "bad" : "good", Math.abs(value) / (max || 1));
}

export async function show(root, params, shared) {
  const [name, step, prompt, sample] = [params.get("run") ?? shared.run, params.get("step"), params.get("prompt"), params.get("sample")];
  const [view, group] = await Promise.all([
    get(runPath(name, "steps", step, "prompts", prompt, sample)),
    get(runPath(name, "steps", step, "prompts", prompt)),
  ]);
  view.ratios = view.ref_logprobs.length === view.logprobs.length ? view.logprobs.map((own, at) => own - view.ref_logprobs[at]) : [];
  const offered = Object.entries(COLORINGS).filter(([, { list }]) => view[list].length > 0);
  const asked = params.get("color") ?? "logprob";
  const state = { color: offered.some(([own]) => own === asked) ? asked : "none" };
  const container = h("div", { class: "tokens model-text" });
  const key = h("p", { class: "legend" });
  const tip = h("div", { class: "tip", hidden: true });

  function draw() {
    const coloring = COLORINGS[state.color];
    const values = coloring ? view[coloring.list] : [];
    const context = { versions: [...new Set(view.versions)].sort((one, other) => one - other), max: Math.max(0, ...values.map(Math.abs)) };
    const color = (at) => (values[at] === undefined || values[at] === null ? "" : coloring.color(values[at], context));
    container.replaceChildren(...view.ids.map((id, at) => token(id, at, color(at))));
    const versions = state.color === "version" ? context.versions.map((version) => h("span", {}, h("i", { style: { background: coloring.color(version, context) } }), `policy ${version}`)) : [];
    key.replaceChildren(...versions, coloring?.text ?? "");
  }

  function token(id, at, background) {
    const piece = view.pieces?.[at];
    const content = piece === undefined ? `${id} ` : piece === "" ? "∅" : piece.replaceAll("\n", "⏎\n");
    return h("span", { "data-at": at, class: piece === "" ? "token empty" : "token", style: { background } }, content);
  }

  function describe(at) {
    const value = (list, text) => (list[at] === undefined || list[at] === null ? null : `${text} ${formatNumber(list[at])}`);
    const logprob = view.logprobs[at];
    return [
      `token ${at} of ${view.ids.length}, id ${view.ids[at]}: ${JSON.stringify(view.pieces?.[at] ?? null)}`,
      logprob !== undefined && `log-probability ${formatNumber(logprob)}, probability ${formatNumber(Math.exp(logprob))}`,
      value(view.advantages, "advantage"),
      value(view.versions, "policy version"),
      value(view.ref_logprobs, "reference log-probability"),
      value(view.token_scores, "token score"),
      value(view.values, "critic's value"),
    ].filter(Boolean);
  }

  function showTip(event) {
    const at = event.target.dataset?.at;
    tip.hidden = at === undefined;
    if (at === undefined) return;
    tip.replaceChildren(...describe(Number(at)).map((line) => h("div", {}, line)));
    const box = root.getBoundingClientRect();
    tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left, box.width - tip.offsetWidth - 4))}px`;
    tip.style.top = `${event.clientY - box.top + 18}px`;
  }

  container.addEventListener("mousemove", showTip);
  container.addEventListener("click", showTip);
  container.addEventListener("mouseleave", () => (tip.hidden = true));

  const samples = group.responses.map((response) => response.sample);
  const index = samples.indexOf(Number(sample));
  const link = (at) => address("response", { run: name, step, prompt, sample: samples[at], color: state.color });
  const open = (at) => () => {
    if (samples[at] !== undefined) location.hash = link(at);
  };
  const up = () => (location.hash = address("group", { run: name, step, prompt, sample }));
  const choose = h("select", { "aria-label": "Colour by", change: (event) => {
    state.color = event.target.value;
    updateAddress({ color: state.color });
    draw();
  } }, offered.map(([own, { title }]) => h("option", { value: own, selected: own === state.color }, title)), h("option", { value: "none", selected: state.color === "none" }, "no colour"));

  replaceContent(
    root,
    h("div", { class: "bar" },
      h("button", { title: "Previous response (k)", disabled: index <= 0, click: open(index - 1) }, "‹"),
      h("span", {}, `sample ${sample} of `, h("a", { href: address("group", { run: name, step, prompt, sample }) }, `prompt ${prompt}`), ", ",
        h("a", { href: address("round", { run: name, step }) }, `step ${step}`)),
      h("button", { title: "Next response (j)", disabled: index + 1 >= samples.length, click: open(index + 1) }, "›"),
      h("label", {}, "Colour by ", choose)),
    h("div", { class: "badges" }, responseBadges(view.response)),
    key,
    !view.pieces && h("p", { class: "notice" }, "Token ids are shown, because there is no tokenizer (", view.without_pieces, "). Start with ",
      h("code", {}, "--tokenizer FOLDER"), ", for example the folder of model.path; the run folder has one only after its end."),
    !view.logprobs.length && h("p", { class: "notice" }, "The engine of this run reports no log-probabilities."),
    container,
    tip,
  );
  draw();
  return { keys: { j: open(index + 1), k: open(index - 1), u: up } };
}
