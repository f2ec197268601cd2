// Scores and lengths by data source, trained against policy lengths, and the long-prompt queue.

import { curveChart, histogram, legend } from "./charts.js";
import { address, debounced, formatNumber, get, h, replaceContent, updateAddress, runPath, seriesColor, themeColor } from "./dom.js";

/** The charts of curves. The metrics of an entry share a chart. */
const CURVES = [
  { title: "Mean length: trained, and of the policy", metrics: ["response_length/mean", "bias/policy_mean"] },
  { title: "Trained length divided by the policy's", metrics: ["bias/mean_ratio", "bias/p90_ratio", "bias/p99_ratio"] },
  { title: "Long-prompt queue: prompts that wait", metrics: ["schedule/queue_length", "schedule/deferred_prompts"] },
  { title: "Long-prompt queue: age of the oldest, steps", metrics: ["schedule/queue_age", "ledger/mean_wait"] },
];

export async function show(root, params, shared) {
  const name = params.get("run") ?? shared.run;
  const run = await get(runPath(name));
  const known = new Set(run.metrics.map((metric) => metric.name));
  const state = { from: params.get("from") ?? "", to: params.get("to") ?? "" };
  let closers = [];
  const histograms = h("div");
  const charts = h("div", { class: "grid wide-grid" });

  function close() {
    closers.forEach((own) => own());
    closers = [];
  }

  function range() {
    return Object.entries(state).filter(([, value]) => value !== "");
  }

  async function load() {
    const [found, curves] = await Promise.all([
      get(runPath(name, "distributions"), range()),
      get("/api/curves", [["run", name], ...range(), ...CURVES.flatMap(({ metrics }) => metrics).map((metric) => ["metric", metric])]),
    ]);
    close();
    drawHistograms(found);
    drawCurves(curves);
  }

  function drawHistograms(found) {
    const unreadable = found.unreadable.map((text) => h("p", { class: "error" }, text));
    if (!found.steps.length) {
      histograms.replaceChildren(...unreadable, h("p", { class: "quiet-text" }, "No rollouts of these steps (trainer.write_rollouts)."));
      return;
    }
    const sources = found.sources.map((own) => {
      const layers = [
        { name: "trained", color: themeColor("trained"), counts: own.trained },
        { name: "ended, not trained", color: themeColor("untrained"), counts: own.untrained },
        { name: "aborted or paused at", color: themeColor("aborted"), counts: own.cut, title: "The policy's lengths are larger: these were cut." },
      ];
      const [lengths, scores] = [h("div"), h("div")];
      const section = h("section", {}, h("h2", {}, own.source || "without data source"),
        h("div", { class: "columns" },
          h("div", {}, h("h3", {}, "Lengths, tokens"), legend(layers), lengths),
          h("div", {}, h("h3", {}, `Scores of ${formatNumber(own.scores.reduce((sum, count) => sum + count, 0))} trained responses`), scores)));
      return { section, lengths, scores, layers, own };
    });
    const [first, last] = [found.steps[0], found.steps.at(-1)];
    const all = last - first + 1 === found.steps.length;
    const text = `Responses of ${all ? "" : `${found.steps.length} of the `}steps ${first} to ${last}${all ? "" : ", evenly spread"}.`;
    histograms.replaceChildren(...unreadable, h("p", { class: "quiet-text" }, text), ...sources.map(({ section }) => section));
    for (const { lengths, scores, layers, own } of sources) {
      closers.push(histogram(lengths, found.lengths, layers));
      closers.push(histogram(scores, found.scores, [{ name: "responses", color: themeColor("series-0"), counts: own.scores }]));
    }
  }

  function drawCurves(curves) {
    charts.replaceChildren();
    for (const { title, metrics } of CURVES) {
      const own = metrics.filter((metric) => known.has(metric));
      if (!own.length) continue;
      const found = own.map((metric) => curves.find((curve) => curve.metric === metric));
      const plot = h("div", { class: "plot" });
      const readout = h("span", { class: "readout" });
      charts.append(h("article", { class: "card" }, h("header", {}, h("h3", {}, title)), readout, plot));
      const read = (step, values) => {
        const shown = step === null ? found.map((curve) => curve.y.at(-1) ?? null) : values;
        readout.replaceChildren(h("small", {}, step === null ? "last" : `step ${step}`),
          ...own.map((metric, index) => h("a", { style: { color: seriesColor(index) }, href: address("curves", { run: name, q: metric }) }, `${metric} ${formatNumber(shown[index])}`)));
      };
      const steps = found.flatMap((curve) => [curve.x[0] ?? 0, curve.x.at(-1) ?? 1]);
      const chart = curveChart(plot, {
        height: () => 160,
        colors: own.map((_, index) => seriesColor(index)),
        domain: () => [Math.min(...steps), Math.max(...steps, Math.min(...steps) + 1)],
        onCursor: read,
        onZoom: (from, to) => set(Math.max(from, 0), to),
      });
      chart.set(found);
      read(null, []);
      closers.push(chart.close);
    }
    charts.hidden = !charts.childElementCount;
  }

  function set(from, to) {
    Object.assign(state, { from: String(from), to: String(to) });
    updateAddress(state);
    [inputs[0].value, inputs[1].value] = [state.from, state.to];
    load().catch(() => {});
  }

  const inputs = ["from", "to"].map((key) =>
    h("input", { type: "number", min: 1, value: state[key], placeholder: key === "from" ? "first" : "last", "aria-label": `${key} step`, change: (event) => {
      state[key] = event.target.value;
      updateAddress(state);
      load().catch(() => {});
    } }));
  replaceContent(root, h("div", { class: "bar" }, h("label", {}, "Steps ", inputs[0], " to ", inputs[1]),
    h("button", { click: () => set("", "") }, "all"), h("button", { click: () => set(Math.max(1, run.steps - 9), run.steps) }, "last 10")), histograms, inclusionNote(run, known, name), charts);
  return { close, onShown: () => load().catch((error) => histograms.replaceChildren(h("p", { class: "error" }, error.message))), update: debounced(() => (state.to === "" ? load().catch(() => {}) : null), 3000) };
}

/** Returns a link to the run's own estimates of how often it trains on each length; null if it has none. */
function inclusionNote(run, known, name) {
  const bands = [...known].filter((metric) => metric.startsWith("bias/inclusion/"));
  if (!bands.length) return null;
  return h("p", { class: "quiet-text" }, "How much more often or more rarely lengths are trained than the policy has them: ",
    h("a", { href: address("curves", { run: name, q: "bias/inclusion" }) }, "bias/inclusion"), ".");
}
