// Charts on uPlot: curves over steps, and histograms.

import { formatNumber, h, themeColor } from "./dom.js";

/* global uPlot */

/** Returns uPlot's options for both axes, in the colours of the theme. `labels.x` is the label of the x axis. */
function axes(labels = {}) {
  const common = { stroke: themeColor("quiet"), font: "11px system-ui, sans-serif", grid: { stroke: themeColor("line"), width: 1 }, ticks: { show: false } };
  const widest = (_, values) => Math.max(28, ...(values ?? []).map((text) => String(text).length * 6.5 + 10));
  return [
    { ...common, size: labels.x ? 40 : 24, space: 60, label: labels.x, labelSize: 16, labelGap: 0, labelFont: "11px system-ui, sans-serif" },
    { ...common, size: widest, space: 28, values: (_, ticks) => ticks.map(axisText) },
  ];
}

/**
 * Formats a tick with up to five significant digits, because neighboring ticks of large numbers differ only in their last digits. From 1e6,
 * and below 0.001, a tick has two digits and an exponent.
 */
function axisText(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(5)));
}

/** Keeps a chart as wide as its container. Returns a function that frees the chart. */
function fitToContainer(container, chart, height) {
  const observer = new ResizeObserver(() => {
    if (container.clientWidth > 0) chart.setSize({ width: container.clientWidth, height: height() });
  });
  observer.observe(container);
  return () => {
    observer.disconnect();
    chart.destroy();
  };
}

/**
 * Creates a chart of curves. Returns `set(curves)`, which replaces the data, and `close()`, which frees the chart.
 *
 * `options`: `height()` in pixels; `colors`, one per curve; `domain()`, which returns the first and the last step; `onZoom(from, to)`;
 * `onCursor(step, values)`, whose `step` is null when the cursor leaves the chart.
 */
export function curveChart(container, options) {
  const count = options.colors.length;
  const isSingle = count === 1;
  const series = [{}];
  options.colors.forEach((color) => series.push({ stroke: color, width: 1.6, spanGaps: true, points: { size: 4 } }));
  // The band between the minimum and the maximum of a point is shown for one run only: several bands would hide each other.
  const bands = isSingle ? [{ series: [3, 2], fill: `${options.colors[0]}33` }] : [];
  if (isSingle) series.push({ stroke: "transparent", points: { show: false } }, { stroke: "transparent", points: { show: false } });
  const hooks = {
    setSelect: [
      (chart) => {
        if (chart.select.width < 4) return;
        const at = (left) => Math.round(chart.posToVal(left, "x"));
        const [from, to] = [at(chart.select.left), at(chart.select.left + chart.select.width)];
        chart.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        options.onZoom?.(from, to);
      },
    ],
    setCursor: [
      (chart) => {
        const at = chart.cursor.idx;
        const values = options.colors.map((_, index) => (at === null || at === undefined ? null : lastKnownValue(chart.data[index + 1], at)));
        options.onCursor?.(at === null || at === undefined ? null : chart.data[0][at], values);
      },
    ],
  };
  const settings = {
    width: Math.max(container.clientWidth, 50),
    height: options.height(),
    series,
    bands,
    axes: axes(),
    legend: { show: false },
    scales: { x: { time: false, range: () => options.domain() }, y: { range: paddedRange } },
    cursor: { sync: { key: "curves" }, drag: { x: true, y: false, setScale: false }, y: false },
    hooks,
  };
  const chart = new uPlot(settings, [[], ...series.slice(1).map(() => [])], container);
  const close = fitToContainer(container, chart, options.height);
  return { set: (curves) => chart.setData(alignedSeries(curves, isSingle)), close };
}

function paddedRange(_, low, high) {
  if (low === null || high === null) return [0, 1];
  // Smoothing leaves rounding errors on a constant, which no axis can resolve.
  const size = Math.max(Math.abs(low), Math.abs(high));
  const room = (high - low > size * 1e-6 ? high - low : size || 1) * 0.06;
  return [low - room, high + room];
}

function lastKnownValue(values, at) {
  for (let back = at; back >= 0; back--) {
    if (values[back] !== null && values[back] !== undefined) return values[back];
  }
  return null;
}

function alignedSeries(curves, isSingle) {
  if (isSingle) return [curves[0].x, curves[0].y, curves[0].min, curves[0].max];
  return uPlot.join(curves.map((curve) => [curve.x, curve.y]));
}

/**
 * Draws histograms with shared bins over each other, as steps. Layers without counts are left out. Returns a function that frees the chart.
 *
 * `bins` has `low`, `high` and `count`; `layers` have a `name`, a `color` and `counts`. With `share`, each layer is divided by its sum.
 */
export function histogram(container, bins, layers, { share = false, height = 150, label = "" } = {}) {
  const width = (bins.high - bins.low) / bins.count;
  const edges = Array.from({ length: bins.count + 1 }, (_, index) => bins.low + index * width);
  const filled = layers.filter((layer) => layer.counts.some((count) => count > 0));
  const values = ({ counts }) => {
    const sum = share ? counts.reduce((all, count) => all + count, 0) || 1 : 1;
    return [...counts, counts[counts.length - 1]].map((count) => count / sum);
  };
  const stepped = uPlot.paths.stepped({ align: 1 });
  const series = filled.map(({ color }) => ({ stroke: color, fill: `${color}30`, width: 1.5, paths: stepped, points: { show: false } }));
  const readout = h("p", { class: "readout" }, "\u00a0");
  const settings = {
    width: Math.max(container.clientWidth, 50),
    height,
    series: [{}, ...series],
    axes: axes({ x: label }),
    legend: { show: false },
    scales: { x: { time: false, range: () => [bins.low, bins.high] }, y: { range: (_, __, high) => [0, (high || 1) * 1.08] } },
    cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
    hooks: {
      setCursor: [
        ({ cursor: { idx } }) => {
          if (idx === null || idx === undefined) {
            readout.textContent = "\u00a0";
            return;
          }
          const at = Math.min(idx, bins.count - 1);
          const counts = filled.map(({ name, counts }) => `${name} ${formatNumber(counts[at])}`).join(" · ");
          readout.textContent = `${formatNumber(edges[at])} to ${formatNumber(edges[at + 1])}: ${counts}`;
        },
      ],
    },
  };
  const chart = new uPlot(settings, [edges, ...filled.map(values)], container);
  container.append(readout);
  return fitToContainer(container, chart, () => height);
}

/** Returns the counts of values by bin. A value outside of the bins counts in the nearest bin. */
export function binCounts(bins, values) {
  const counts = new Array(bins.count).fill(0);
  for (const value of values) {
    const at = Math.floor(((value - bins.low) / (bins.high - bins.low)) * bins.count);
    counts[Math.min(Math.max(at, 0), bins.count - 1)] += 1;
  }
  return counts;
}

/** Returns `count` bins of equal width that cover all values, and also 0 unless all values are negative. */
export function binsOf(values, count = 30) {
  const low = Math.min(0, ...values);
  const high = Math.max(low, ...values);
  return { low, high: high > low ? high : low + 1, count };
}

/** Returns a legend: the `name` and the `color` of each layer, with `title` as its tooltip. */
export function legend(layers) {
  return h("p", { class: "legend" }, layers.map(({ name, color, title }) =>
    h("span", { title }, h("i", { style: { background: color } }), name)));
}
