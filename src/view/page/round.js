// The round of a step: its responses in time, scores and lengths, prompts, and all metrics of the step.

import { binsOf, binCounts, histogram, legend } from "./charts.js";
import { address, breakable, formatNumber, get, h, lastStep, neighborStep, updateAddress, runPath, formatSeconds, themeColor } from "./dom.js";
import { OUTCOMES, gantt } from "./gantt.js";

const TILES = [
  ["critic/score/mean", "score", formatNumber],
  ["response_length/mean", "length", formatNumber],
  ["perf/time_per_step", "step", formatSeconds],
  ["timing_s/gen", "rollout", formatSeconds],
  ["rollout/bubble_ratio", "idle slots", (value) => `${(value * 100).toFixed(0)} %`],
  ["schedule/deferred_prompts", "deferred", formatNumber],
  ["schedule/queue_length", "queue", formatNumber],
  ["timing_s/gradient", "gradient, busy", formatSeconds],
  ["timing_s/update", "update, busy", formatSeconds],
];

export async function show(root, params, shared) {
  const name = params.get("run") ?? shared.run;
  const currentRun = () => shared.runs.find((run) => run.name === name);
  const ranges = () => currentRun()?.rollouts ?? [];
  const newest = () => lastStep(ranges()) ?? currentRun()?.steps ?? 0;
  const asked = params.get("step");
  const state = { step: Number(asked ?? newest()), order: params.get("order") ?? "instance", color: params.get("color") === "score" ? "score" : "outcome", following: asked === null };
  let closers = [];
  let round = null;

  function close() {
    closers.forEach((own) => own());
    closers = [];
  }

  async function load() {
    if (!state.step) {
      root.replaceChildren(h("p", {}, "No step is complete yet."));
      return;
    }
    round = await get(runPath(name, "steps", state.step));
    draw();
  }

  function goToStep(step) {
    if (step === null || step === undefined || Number.isNaN(step)) return;
    Object.assign(state, { step, following: false });
    updateAddress({ run: name, step });
    load().catch((error) => root.append(h("p", { class: "error" }, error.message)));
  }

  function neighbor(direction) {
    const known = ranges();
    return known.length ? neighborStep(known, state.step, direction) : Math.min(Math.max(state.step + direction, 1), currentRun()?.steps ?? 1);
  }

  function choose(key, value) {
    state[key] = value;
    updateAddress({ [key]: value });
    draw();
  }

  function draw() {
    close();
    const chart = h("div", { class: "gantt" });
    const parts = h("div", { class: "columns" });
    root.replaceChildren(
      stepBar(),
      h("div", { class: "tiles" }, TILES.filter(([key]) => round.metrics[key] !== undefined).map(([key, text, format]) =>
        h("div", { class: "tile", title: key }, h("b", {}, format(round.metrics[key])), text))),
    );
    if (!round.responses.length) {
      root.append(h("p", { class: "quiet-text" }, "This step has no rollouts in the run folder (trainer.write_rollouts), so that only its metrics are known."), metricsTable());
      return;
    }
    root.append(h("section", {}, controls(), chart, note()), parts, promptTable(), metricsTable());
    closers.push(gantt(chart, round, { ...state, open: (one) => (location.hash = address("group", { run: name, step: state.step, prompt: one.prompt, sample: one.sample })) }));
    drawHistograms(parts);
  }

  function stepBar() {
    const [before, after] = [neighbor(-1), neighbor(1)];
    const input = h("input", { type: "number", min: 1, value: state.step, "aria-label": "Step", change: (event) => goToStep(Number(event.target.value)) });
    return h("div", { class: "bar" },
      h("button", { title: "Previous step (k)", disabled: before === null, click: () => goToStep(before) }, "‹"),
      h("label", {}, "Step ", input, ` of ${newest()}`),
      h("button", { title: "Next step (j)", disabled: after === null, click: () => goToStep(after) }, "›"),
      h("button", { click: () => goToStep(newest()) }, "last"),
      round.kind && h("span", { class: "badge" }, `${round.kind} round`));
  }

  function controls() {
    const select = (key, values) =>
      h("select", { "aria-label": key, change: (event) => choose(key, event.target.value) },
        Object.entries(values).map(([value, text]) => h("option", { value, selected: state[key] === value }, text)));
    const counts = (outcome) => round.responses.filter((one) => one.outcome === outcome).length;
    const outcomes = Object.entries(OUTCOMES).filter(([outcome]) => counts(outcome));
    const named = ([outcome, { name: text, color }]) => ({ name: `${outcome === "untrained" ? `prompt ${untrained()}` : text} ${counts(outcome)}`, color: themeColor(color) });
    const rewards = round.responses.some((one) => one.reward_s !== null) ? [{ name: "reward", color: themeColor("reward") }] : [];
    return h("div", { class: "bar" },
      select("order", { instance: "by instance", prompt: "by prompt" }),
      select("color", { outcome: "coloured by use", score: "coloured by score" }),
      state.color === "outcome" ? legend([...outcomes.map(named), ...rewards]) : h("p", { class: "legend" }, "low score ", h("i", { class: "scale" }), " high score"));
  }

  /** Returns the outcome that all untrained prompts of the round share; `not trained` if there are none. */
  function untrained() {
    return round.prompts.find((prompt) => prompt.outcome !== "trained")?.outcome ?? "not trained";
  }

  function note() {
    const stages = round.stages
      ? "The run records how long each stage took, not when it began; the bar above places the stages around the last response."
      : "The stages of this step are not drawn: its rollout ended within the previous step.";
    const parts = [stages, "When gradients of single groups, the update and the loading of weights by single instances began is not recorded."];
    const kept = round.responses.filter((one) => one.outcome === "kept").length;
    if (kept) parts.push(`${kept} responses ended in an earlier step and have no time in this one.`);
    if (untrained() === "not trained" && round.prompts.some((prompt) => prompt.outcome !== "trained")) parts.push("The rollouts do not say which prompts were deferred and which were rejected.");
    return h("p", { class: "quiet-text" }, parts.join(" "));
  }

  function drawHistograms(container) {
    const lengths = (matches) => round.responses.filter(matches).map((one) => one.tokens);
    const scores = round.responses.map((one) => one.score).filter((score) => score !== null);
    const bins = binsOf(round.responses.map((one) => one.tokens));
    const layers = [
      { name: "trained", color: themeColor("trained"), counts: binCounts(bins, lengths((one) => one.outcome === "trained")) },
      { name: "not trained", color: themeColor("untrained"), counts: binCounts(bins, lengths((one) => one.outcome !== "trained" && !isCensored(one))) },
      { name: "cut", color: themeColor("aborted"), counts: binCounts(bins, lengths((one) => one.outcome !== "trained" && isCensored(one))), title: "aborted or paused: the policy's lengths are larger" },
    ];
    const [left, right] = [h("div"), h("div")];
    container.append(h("section", {}, h("h2", {}, "Lengths, tokens"), legend(layers), left), h("section", {}, h("h2", {}, "Scores of trained responses"), right));
    closers.push(histogram(left, bins, layers));
    const scoreBins = binsOf(scores, 20);
    closers.push(histogram(right, scoreBins, [{ name: "responses", color: themeColor("series-0"), counts: binCounts(scoreBins, scores) }]));
  }

  function isCensored(one) {
    return one.finish === "abort" || one.finish === "pause";
  }

  function promptTable() {
    const lines = round.prompts.map((prompt) => {
      const responses = round.responses.filter((one) => one.prompt === prompt.id);
      const trained = responses.filter((one) => one.outcome === "trained");
      const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
      return { ...prompt, responses, trained, score: mean(trained.map((one) => one.score)), length: mean(responses.map((one) => one.tokens)) };
    });
    lines.sort((one, other) => (one.outcome !== "trained") - (other.outcome !== "trained") || one.id - other.id);
    const row = (line) =>
      h("tr", {},
        h("td", { class: "number" }, h("a", { href: address("group", { run: name, step: state.step, prompt: line.id }) }, line.id)),
        h("td", { class: "wide" }, line.data_source ?? ""),
        h("td", {}, h("span", { class: `badge outcome-${line.outcome === "trained" ? "trained" : "untrained"}` }, line.outcome)),
        h("td", { class: "number" }, `${line.trained.length}/${line.responses.length}`),
        h("td", { class: "number" }, formatNumber(line.score)),
        h("td", { class: "number wide" }, formatNumber(line.length)));
    const head = [["prompt", "number"], ["source", "wide"], ["use", ""], ["trained", "number"], ["score", "number"], ["mean length", "number wide"]];
    return h("section", {}, h("h2", {}, `${lines.length} prompts`),
      h("table", { class: "rows" }, h("thead", {}, h("tr", {}, head.map(([text, kind]) => h("th", { class: kind }, text)))), h("tbody", {}, lines.map(row))));
  }

  function metricsTable() {
    const rows = Object.entries(round.metrics).map(([key, value]) =>
      h("tr", {}, h("th", {}, h("a", { href: address("curves", { run: name, q: key, focus: key }) }, breakable(key))), h("td", { class: "number" }, formatNumber(value))));
    return h("details", {}, h("summary", {}, `All metrics of step ${state.step}`, h("span", { class: "count" }, rows.length)), h("table", { class: "pairs" }, rows));
  }

  await load();
  return {
    close,
    update: () => {
      if (state.following && newest() !== state.step) {
        state.step = newest();
        load().catch(() => {});
      }
    },
    keys: { j: () => goToStep(neighbor(1)), k: () => goToStep(neighbor(-1)), u: () => (location.hash = address("curves", { run: name })) },
  };
}
