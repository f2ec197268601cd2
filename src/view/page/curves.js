// Curves of all metrics, in groups by prefix, of one or several runs.

import { curveChart } from "./charts.js";
import { address, breakable, debounced, formatNumber, get, h, replaceContent, updateAddress, runPath, seriesColor } from "./dom.js";

/** The most important metrics, which the first group shows. */
const KEY_METRICS = [
  "critic/score/mean", "val/score", "response_length/mean", "reward/frac_zero_std", "actor/entropy", "actor/grad_norm",
  "rollout_corr/k3_kl", "perf/time_per_step",
];
const FIRST_GROUPS = ["critic", "val", "reward", "response_length", "actor"];
const HEIGHT = 150;
const TALL_HEIGHT = 420;
const MAX_RUNS = 8;

export async function show(root, params, shared) {
  const asked = params.getAll("run");
  const state = {
    runs: (asked.length ? asked : [shared.run]).filter((name) => name !== undefined && name !== null),
    search: params.get("q") ?? "",
    smoothing: Number(params.get("smoothing") ?? 0),
    from: numberOr(params.get("from"), null),
    to: numberOr(params.get("to"), null),
    focus: params.get("focus"),
  };
  if (!state.runs.length) {
    root.append(h("p", {}, "No run has begun yet."));
    return {};
  }
  const page = new CurvesPage(root, state, shared);
  await page.open();
  return page;
}

function numberOr(text, otherwise) {
  return text === null || text === "" || Number.isNaN(Number(text)) ? otherwise : Number(text);
}

class CurvesPage {
  constructor(root, state, shared) {
    Object.assign(this, { root, state, shared });
    this.cards = new Map();
    this.pendingCards = new Set();
    this.groups = h("div", { class: "groups" });
    this.visibilityObserver = new IntersectionObserver((entries) => this.onVisibilityChange(entries), { rootMargin: "200px" });
    this.fetchSoon = debounced(() => this.fetch(), 20);
    this.refreshSoon = debounced(() => this.refresh(), 50);
    this.update = debounced(() => this.refreshIfChanged(), 300);
    this.keys = { 0: () => this.zoom(null, null), u: () => (location.hash = address("runs")) };
  }

  async open() {
    await this.loadMetrics();
    replaceContent(this.root, this.bar(), this.runChips(), this.groups);
    this.buildGroups();
  }

  /** Reads the metrics of the runs, the versions of their data, and their maximum number of steps. */
  async loadMetrics() {
    const details = await Promise.all(this.state.runs.map((run) => get(runPath(run))));
    this.metrics = new Map(details.flatMap((run) => run.metrics).map((metric) => [metric.name, metric]));
    this.versions = this.versionsOf(details);
    this.steps = Math.max(1, ...details.map((run) => run.steps));
  }

  versionsOf(runs) {
    return runs.filter((run) => this.state.runs.includes(run.name)).map((run) => `${run.generation}:${run.lines}`).join();
  }

  bar() {
    const { state } = this;
    const search = h("input", { type: "search", placeholder: "Search metrics  ( / )", "aria-label": "Search metrics", value: state.search });
    search.addEventListener("input", debounced(() => {
      state.search = search.value;
      updateAddress({ q: search.value });
      this.buildGroups();
    }));
    const amount = h("output", {}, state.smoothing.toFixed(2));
    const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smoothing, "aria-label": "Smoothing" });
    slider.addEventListener("input", () => {
      state.smoothing = Number(slider.value);
      amount.textContent = state.smoothing.toFixed(2);
      updateAddress({ smoothing: state.smoothing || null });
      this.refreshSoon();
    });
    this.range = h("button", { click: () => this.zoom(null, null), title: "Whole range (0)" });
    this.showRange();
    return h("div", { class: "bar" }, search, h("label", { class: "smoothing" }, "Smoothing", slider, amount), this.range);
  }

  /** Returns the list of the shown runs, and a choice of further runs; null if there is only one run. */
  runChips() {
    const { runs } = this.state;
    const others = this.shared.runs.map((run) => run.name).filter((name) => !runs.includes(name));
    if (runs.length < 2 && !others.length) return null;
    const chip = (run, index) =>
      h("span", { class: "chip" }, h("i", { style: { background: seriesColor(index) } }), run,
        runs.length > 1 && h("button", { "aria-label": `Remove ${run}`, click: () => this.selectRuns(runs.filter((own) => own !== run)) }, "×"));
    const more = h("select", { "aria-label": "Lay another run over these", change: (event) => this.selectRuns([...runs, event.target.value]) },
      h("option", { value: "" }, "+ run"), others.map((name) => h("option", { value: name }, name)));
    return h("div", { class: "chips" }, runs.map(chip), others.length > 0 && runs.length < MAX_RUNS && more);
  }

  selectRuns(runs) {
    const { search, smoothing, focus } = this.state;
    location.hash = address("curves", { run: runs.filter(Boolean), q: search, smoothing: smoothing || null, focus });
  }

  /** Builds the groups of cards again. A chart is drawn when its card comes into view. */
  buildGroups() {
    this.dropCards();
    const names = this.matchingMetrics();
    const groups = new Map();
    const keys = this.state.search ? [] : KEY_METRICS.filter((name) => this.metrics.has(name));
    if (keys.length) groups.set("key figures", keys);
    for (const name of names) {
      const prefix = name.split("/")[0];
      groups.set(prefix, [...(groups.get(prefix) ?? []), name]);
    }
    const rank = (name) => (name === "key figures" ? -1 : FIRST_GROUPS.includes(name) ? FIRST_GROUPS.indexOf(name) : FIRST_GROUPS.length);
    const ordered = [...groups].sort(([one], [other]) => rank(one) - rank(other) || one.localeCompare(other));
    this.groups.replaceChildren(...ordered.map(([name, own], index) => this.group(name, own, index)));
    if (!ordered.length) {
      const text = this.metrics.size ? `No metric matches “${this.state.search}”.` : "No step is complete yet.";
      this.groups.replaceChildren(h("p", { class: "quiet-text" }, text));
    }
    this.root.querySelector(".card.tall")?.scrollIntoView({ block: "center" });
  }

  matchingMetrics() {
    const words = this.state.search.toLowerCase().split(/\s+/);
    return [...this.metrics.keys()].filter((name) => words.every((word) => name.toLowerCase().includes(word)));
  }

  group(name, metrics, index) {
    const key = `group ${name}`;
    const stored = sessionStorage.getItem(key);
    const open = Boolean(this.state.search) || metrics.includes(this.state.focus) || (stored === null ? index < 3 : stored === "open");
    const grid = h("div", { class: "grid" });
    const details = h("details", { open }, h("summary", {}, name, h("span", { class: "count" }, metrics.length)), grid);
    const fill = () => {
      if (details.open && !grid.childElementCount) grid.append(...metrics.map((metric) => this.card(name, metric)));
    };
    details.addEventListener("toggle", () => {
      if (!this.state.search) sessionStorage.setItem(key, details.open ? "open" : "closed");
      fill();
    });
    fill();
    return details;
  }

  card(group, name) {
    const metric = this.metrics.get(name);
    const readout = h("span", { class: "readout" });
    const plot = h("div", { class: "plot" });
    const tall = name === this.state.focus && (group === "key figures" || !KEY_METRICS.includes(name) || Boolean(this.state.search));
    const enlarge = h("button", { class: "plain", title: "Enlarge", "aria-label": `Enlarge ${name}`, click: () => this.focus(name, element) }, "⤢");
    const unit = metric.unit && metric.unit !== "1" ? metric.unit.replace(/[{}]/g, "") : "";
    const element = h("article", { class: tall ? "card tall" : "card" },
      h("header", {}, h("h3", { title: metric.description || name }, breakable(name)), unit && h("span", { class: "unit" }, unit), enlarge), readout, plot);
    this.cards.set(element, { name, readout, plot, visible: false, chart: null });
    this.visibilityObserver.observe(element);
    return element;
  }

  focus(name, element) {
    const tall = !element.classList.contains("tall");
    this.root.querySelectorAll(".card.tall").forEach((other) => other.classList.remove("tall"));
    element.classList.toggle("tall", tall);
    this.state.focus = tall ? name : null;
    updateAddress({ focus: this.state.focus });
    this.request(this.cards.get(element));
  }

  onVisibilityChange(entries) {
    for (const { target, isIntersecting } of entries) {
      const card = this.cards.get(target);
      if (!card) continue;
      card.visible = isIntersecting;
      if (isIntersecting && (!card.chart || card.stale)) this.request(card);
    }
  }

  request(card) {
    this.pendingCards.add(card);
    this.fetchSoon();
  }

  /** Fetches the curves of all pending cards with one request. */
  async fetch() {
    const cards = [...this.pendingCards];
    this.pendingCards.clear();
    if (!cards.length) return;
    const { runs, smoothing, from, to } = this.state;
    const pairs = [
      ...runs.map((run) => ["run", run]),
      ...[...new Set(cards.map((card) => card.name))].map((name) => ["metric", name]),
      ["smoothing", smoothing],
      ["points", cards.some((card) => card.plot.clientWidth > 700) ? 1000 : 400],
    ];
    if (from !== null) pairs.push(["from", from]);
    if (to !== null) pairs.push(["to", to]);
    try {
      const curves = await get("/api/curves", pairs);
      for (const card of cards) this.draw(card, runs.map((run) => curves.find((own) => own.run === run && own.metric === card.name)));
    } catch (error) {
      cards.forEach((card) => (card.readout.textContent = error.message));
    }
  }

  draw(card, curves) {
    card.stale = false;
    card.last = curves.map((curve) => curve.y.at(-1) ?? null);
    card.chart ??= curveChart(card.plot, {
      height: () => (card.plot.closest(".tall") ? TALL_HEIGHT : HEIGHT),
      colors: this.state.runs.map((_, index) => seriesColor(index)),
      domain: () => [this.state.from ?? 0, Math.max(this.state.to ?? this.steps, (this.state.from ?? 0) + 1)],
      onZoom: (first, last) => this.zoom(Math.max(first, 0), last),
      onCursor: (step, values) => this.read(card, step, values),
    });
    card.chart.set(curves);
    this.read(card, null, []);
  }

  read(card, step, values) {
    const shown = step === null ? card.last : values;
    const parts = shown.map((value, index) =>
      h("span", { style: { color: shown.length > 1 ? seriesColor(index) : "" } }, formatNumber(value)));
    card.readout.replaceChildren(h("small", {}, step === null ? "last" : `step ${step}`), ...parts);
  }

  zoom(from, to) {
    Object.assign(this.state, { from, to });
    updateAddress({ from, to });
    this.showRange();
    this.refresh();
  }

  showRange() {
    const { from, to } = this.state;
    this.range.hidden = from === null && to === null;
    this.range.textContent = `steps ${from ?? 0} to ${to ?? this.steps}  ×`;
  }

  /** Fetches the curves in view again; other curves are fetched when they come into view. */
  refresh() {
    for (const card of this.cards.values()) {
      card.stale = true;
      if (card.visible) this.request(card);
    }
  }

  /** Reads the metrics and the curves again if a run has new lines. */
  async refreshIfChanged() {
    if (this.versions === this.versionsOf(this.shared.runs)) return;
    const before = this.metrics.size;
    await this.loadMetrics().catch(() => {});
    if (this.metrics.size !== before) this.buildGroups();
    this.refresh();
  }

  dropCards() {
    this.visibilityObserver.disconnect();
    this.cards.forEach((card) => card.chart?.close());
    this.cards.clear();
  }

  close() {
    this.dropCards();
    this.root.replaceChildren();
  }
}
