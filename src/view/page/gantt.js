// The round of a step in time, on a canvas: lanes of responses, stages above them, rewards below their bars.

import { h, formatSeconds, themeColor } from "./dom.js";

/** The outcomes of responses: the name in the legend, and the colour in the theme. Responses with the outcome `kept` are not drawn. */
export const OUTCOMES = {
  trained: { name: "trained", color: "trained" },
  aborted: { name: "aborted (its group is trained)", color: "aborted" },
  surplus: { name: "ended, not needed", color: "surplus" },
  untrained: { name: "prompt not trained", color: "untrained" },
  paused: { name: "paused, continues later", color: "paused" },
};
const STAGES = { "weight sync": "stage-sync", rollout: "stage-rollout", "waiting for rewards": "stage-reward", "training alone": "stage-training", validation: "stage-validation" };
const TOP = 30;
const BOTTOM = 26;
const MAX_HEIGHT = 900;

/**
 * Returns the lanes of the chart. With the order `prompt`, each response has a lane. Otherwise each instance has as many lanes as it ran
 * responses at once.
 */
function lanes(responses, order) {
  if (order === "prompt") {
    const sorted = [...responses].sort((one, other) => one.prompt - other.prompt || one.sample - other.sample);
    return sorted.map((response) => ({ label: `prompt ${response.prompt}`, bars: [response] }));
  }
  const packed = [];
  const instances = Map.groupBy ? Map.groupBy(responses, (one) => one.instance) : groupBy(responses, (one) => one.instance);
  for (const instance of [...instances.keys()].sort((one, other) => one - other)) {
    const own = [];
    for (const response of instances.get(instance).sort((one, other) => one.started - other.started)) {
      let lane = own.find(({ until }) => until <= response.started + 1e-9);
      if (!lane) own.push((lane = { label: `instance ${instance}`, bars: [], until: 0 }));
      lane.bars.push(response);
      lane.until = response.finished;
    }
    packed.push(...own);
  }
  return packed;
}

function groupBy(items, key) {
  const groups = new Map();
  items.forEach((item) => groups.set(key(item), [...(groups.get(key(item)) ?? []), item]));
  return groups;
}

function scoreColor(response, range) {
  if (response.score === null) return themeColor("untrained");
  const share = range[1] > range[0] ? (response.score - range[0]) / (range[1] - range[0]) : 1;
  return `hsl(${Math.round(10 + share * 140)} 60% 48%)`;
}

/**
 * Draws a round, and returns the function that frees it.
 *
 * `options`: `order` (`instance` or `prompt`), `color` (`outcome` or `score`), `open(response)`.
 */
export function gantt(container, round, { order, color, open }) {
  const responses = round.responses.filter((response) => response.outcome !== "kept");
  const rows = lanes(responses, order);
  const spans = round.stages ?? [];
  const low = Math.min(0, ...spans.map((span) => span.from), ...responses.map((one) => one.started));
  const high = Math.max(1e-9, ...spans.map((span) => span.to), ...responses.map((one) => Math.max(one.finished, one.scored ?? 0)));
  const scores = responses.map((one) => one.score).filter((score) => score !== null);
  const range = [Math.min(...scores), Math.max(...scores)];
  const room = (MAX_HEIGHT - TOP - BOTTOM) / Math.max(rows.length, 1);
  const lane = Math.min(16, Math.max(2, room));
  const height = TOP + BOTTOM + Math.max(rows.length, 2) * lane;
  const canvas = h("canvas", { role: "img", "aria-label": `${responses.length} responses in time` });
  const tip = h("div", { class: "tip", hidden: true });
  container.replaceChildren(canvas, tip);
  const view = {};

  function draw() {
    const width = container.clientWidth;
    if (!width) return;
    const left = width < 600 ? 24 : 80;
    const scale = (width - left - 8) / (high - low);
    Object.assign(view, { left, x: (at) => left + (at - low) * scale });
    const ratio = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: width * ratio, height: height * ratio });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    drawAxis(pen, width);
    drawStages(pen);
    drawLabels(pen);
    rows.forEach((row, index) => row.bars.forEach((bar) => drawBar(pen, bar, TOP + index * lane)));
    drawPlacement(pen);
  }

  function drawAxis(pen, width) {
    const steps = [1, 2, 5].flatMap((digit) => [-6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5].map((power) => digit * 10 ** power)).sort((one, other) => one - other);
    const apart = ((high - low) / (width - view.left)) * 80;
    const step = steps.find((one) => one >= apart) ?? high;
    pen.strokeStyle = themeColor("line");
    pen.fillStyle = themeColor("quiet");
    pen.textAlign = "center";
    for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
      const x = Math.round(view.x(at)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, TOP - 4);
      pen.lineTo(x, height - BOTTOM + 4);
      pen.stroke();
      if (x > view.left + 10 && x < width - 24) pen.fillText(Math.abs(at) < 1e-12 ? "0 s" : formatSeconds(at), x, height - BOTTOM / 2 + 2);
    }
  }

  function drawStages(pen) {
    for (const span of spans) {
      const [from, to] = [view.x(span.from), view.x(span.to)];
      pen.fillStyle = themeColor(STAGES[span.name]);
      pen.fillRect(from, 4, Math.max(to - from, 1), 16);
      const text = `${span.name} ${formatSeconds(span.to - span.from)}`;
      const shown = [text, span.name].find((own) => pen.measureText(own).width < to - from - 8);
      pen.fillStyle = themeColor("stage-text");
      pen.textAlign = "left";
      if (shown) pen.fillText(shown, from + 4, 12.5);
    }
  }

  function drawLabels(pen) {
    let before = null;
    let free = 0;
    pen.textAlign = "right";
    rows.forEach((row, index) => {
      if (row.label === before) return;
      before = row.label;
      const y = TOP + index * lane;
      pen.strokeStyle = themeColor("line");
      pen.beginPath();
      pen.moveTo(0, Math.round(y) - 0.5);
      pen.lineTo(canvas.clientWidth, Math.round(y) - 0.5);
      if (order === "instance") pen.stroke();
      if (y < free) return;
      free = y + 13;
      pen.fillStyle = themeColor("quiet");
      pen.fillText(view.left < 40 ? row.label.split(" ")[1] : row.label, view.left - 6, y + Math.max(lane / 2, 6));
    });
  }

  function drawBar(pen, bar, y) {
    const [from, to] = [view.x(bar.started), view.x(bar.finished)];
    const gap = lane > 4 ? 1 : 0;
    pen.fillStyle = color === "score" ? scoreColor(bar, range) : themeColor(OUTCOMES[bar.outcome].color);
    pen.fillRect(from, y, Math.max(to - from - 0.5, 1), lane - gap);
    if (bar.scored !== null && bar.reward_s !== null && lane >= 4) {
      const begun = view.x(Math.max(bar.scored - bar.reward_s, bar.finished));
      pen.fillStyle = themeColor("reward");
      pen.fillRect(begun, y + lane - gap - 2, Math.max(view.x(bar.scored) - begun, 1.5), 2);
    }
  }

  function drawPlacement(pen) {
    for (const decision of round.placement?.decisions ?? []) {
      const x = Math.round(view.x((decision.at_ns - round.origin_ns) / 1e9)) + 0.5;
      if (x < view.left) continue;
      pen.strokeStyle = themeColor("accent");
      pen.setLineDash([3, 3]);
      pen.beginPath();
      pen.moveTo(x, TOP - 8);
      pen.lineTo(x, height - BOTTOM);
      pen.stroke();
      pen.setLineDash([]);
    }
  }

  function hitTest(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const row = rows[Math.floor((y - TOP) / lane)];
    const found = row?.bars.find((bar) => x >= view.x(bar.started) - 1 && x <= view.x(bar.finished) + 1);
    const stage = y < TOP - 6 && spans.find((span) => x >= view.x(span.from) && x <= view.x(span.to));
    return { x, y, found, stage };
  }

  function describe(bar) {
    const score = bar.failed ? "reward failed" : bar.score === null ? "no score" : `score ${Number(bar.score.toPrecision(4))}`;
    const lines = [
      `prompt ${bar.prompt}, sample ${bar.sample}: ${OUTCOMES[bar.outcome].name}`,
      `${bar.tokens} tokens${bar.resumed ? `, ${bar.resumed} of them before` : ""}, ${bar.finish}, ${score}`,
      `${formatSeconds(bar.started)} to ${formatSeconds(bar.finished)} on instance ${bar.instance}, policy ${bar.policy}`,
    ];
    if (bar.scored !== null) lines.push(`score known at ${formatSeconds(bar.scored)}, reward took ${formatSeconds(bar.reward_s)}`);
    if (bar.preemptions) lines.push(`${bar.preemptions} preemptions`);
    return lines;
  }

  canvas.addEventListener("mousemove", (event) => {
    const { x, y, found, stage } = hitTest(event);
    const lines = found ? describe(found) : stage ? [`${stage.name}: ${formatSeconds(stage.to - stage.from)}`] : null;
    tip.hidden = !lines;
    canvas.style.cursor = found ? "pointer" : "";
    if (!lines) return;
    tip.replaceChildren(...lines.map((line) => h("div", {}, line)));
    tip.style.left = `${Math.max(0, Math.min(x + 12, container.clientWidth - tip.offsetWidth - 4))}px`;
    tip.style.top = `${y + 14}px`;
  });
  canvas.addEventListener("mouseleave", () => (tip.hidden = true));
  canvas.addEventListener("click", (event) => {
    const { found } = hitTest(event);
    if (found) open(found);
  });
  const observer = new ResizeObserver(draw);
  observer.observe(container);
  return () => observer.disconnect();
}
