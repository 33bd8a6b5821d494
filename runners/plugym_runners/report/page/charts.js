"use strict";
// Curves as SVG: lines, or areas that add up. A chart shows the series that have numbers; the legend follows the pointer.

const COLORS = ["#6d4fe0", "#e0702b", "#1d9a6c", "#d03a6a", "#2a86d1", "#b08c1a", "#7a8496", "#8d3fb0"];
const WIDTH = 420, HEIGHT = 210, LEFT = 46, RIGHT = 10, TOP = 8, BOTTOM = 22;

// A series is {name, points: [[step, value], ...]}, with a color where it has to mean something.
const colorOf = (item, i) => item.color || COLORS[i % COLORS.length];

function series(table, name, label = name) {
  const values = table[name] || [];
  const points = values.map((value, i) => [table.step[i], value]).filter((point) => point[1] !== null);
  return { name: label, points };
}

function stacked(list) {
  const sums = new Map();
  return list.map((item) => ({
    ...item,
    points: item.points.map(([x, y]) => {
      const below = sums.get(x) || 0;
      sums.set(x, below + y);
      return [x, below + y, below, y];
    }),
  }));
}

function ticks(low, high) {
  const step = 10 ** Math.floor(Math.log10((high - low) / 3));
  const size = [1, 2, 5, 10].map((factor) => factor * step).find((value) => (high - low) / value <= 4);
  const found = [];
  for (let k = Math.ceil(low / size); k * size <= high + size * 1e-9; k++) found.push(k * size);
  return found;
}

function range(values, zero) {
  let low = Math.min(...values), high = Math.max(...values);
  if (zero) low = Math.min(0, low);
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [zero && low === 0 ? 0 : low - margin, high + margin];
}

function chart(title, list, { stack = false, zero = stack } = {}) {
  list = list.filter((item) => item.points.length);
  if (!list.length) return null;
  if (stack) list = stacked(list);
  const xs = [...new Set(list.flatMap((item) => item.points.map((point) => point[0])))].sort((a, b) => a - b);
  const [low, high] = range(list.flatMap((item) => item.points.map((point) => point[1])), zero);
  const [first, last] = xs.length > 1 ? [xs[0], xs[xs.length - 1]] : [xs[0] - 1, xs[0] + 1];
  const x = (value) => LEFT + ((value - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const tick of ticks(low, high)) {
    svg.append(draw("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }));
    svg.append(draw("text", { class: "label", x: LEFT - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
  }
  for (const tick of ticks(first, last).filter(Number.isInteger)) {
    svg.append(draw("text", { class: "label", x: x(tick), y: HEIGHT - 6, "text-anchor": "middle" }, String(tick)));
  }
  list.forEach((item, i) => svg.append(...shapes(item, colorOf(item, i), x, y, stack)));
  const legend = make("div", { class: "legend" });
  const cursor = draw("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  svg.append(cursor);
  follow(svg, cursor, xs, x, (step) => showLegend(legend, list, step));
  showLegend(legend, list, null);
  return make("div", { class: "card chart" }, make("div", { class: "chart-head" }, make("h3", {}, title)), svg, legend);
}

function shapes(item, color, x, y, stack) {
  const line = item.points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`);
  const found = [];
  if (stack) {
    const below = item.points.map((point) => `${x(point[0]).toFixed(1)},${y(point[2]).toFixed(1)}`).reverse();
    found.push(draw("polygon", { points: [...line, ...below].join(" "), fill: color, "fill-opacity": 0.45 }));
  }
  found.push(draw("polyline", { points: line.join(" "), fill: "none", stroke: color, "stroke-width": 1.8 }));
  if (!stack && item.points.length <= 40) {
    found.push(...item.points.map((p) => draw("circle", { cx: x(p[0]), cy: y(p[1]), r: 2.4, fill: color })));
  }
  return found;
}

function follow(svg, cursor, xs, x, show) {
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    const step = xs.reduce((best, value) => (Math.abs(x(value) - at) < Math.abs(x(best) - at) ? value : best));
    cursor.setAttribute("x1", x(step));
    cursor.setAttribute("x2", x(step));
    cursor.setAttribute("visibility", "visible");
    show(step);
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    show(null);
  });
}

function showLegend(legend, list, step) {
  const entries = list.map((item, i) => {
    const point = step === null ? item.points[item.points.length - 1] : item.points.find((p) => p[0] === step);
    const swatch = make("i", { class: "swatch" });
    swatch.style.background = colorOf(item, i);
    return make("span", {}, swatch, `${item.name} ${point ? number(point[3] ?? point[1]) : "–"}`);
  });
  legend.replaceChildren(...entries, make("span", {}, step === null ? "last" : `step ${step}`));
}

function allCharts() {
  const M = D.metrics, E = D.evals;
  const under = (prefix, without = []) =>
    Object.keys(M).filter((name) => name.startsWith(prefix) && !without.includes(name));
  const some = (names, cut = 0) => names.map((name) => series(M, name, name.slice(cut)));
  const used = (list) => list.filter((item) => item.points.some((point) => point[1]));
  const parts = under("reward/", ["reward/mean", "reward/std", "reward/unscored"]);
  return [
    chart("Reward", [series(M, "reward/mean"), series(E, "eval/avg@k", "held-out avg@k")]),
    chart("Parts of the reward", some(parts, "reward/".length)),
    chart("Groups", groupSeries(M), { stack: true }),
    chart("Response length (tokens)", some(["tokens/response_mean", "tokens/response_max"], "tokens/".length), { zero: true }),
    chart("Stop reasons", used(some(under("stop/"), "stop/".length)), { stack: true }),
    chart("Entropy", some(["actor/entropy"]), { zero: true }),
    chart("Engine and learner disagree", some(["actor/mismatch_kl"])),
    chart("Gradient norm", some(["actor/grad_norm"]), { zero: true }),
    chart("Clipped tokens (share)", used(some(["actor/clip_low", "actor/clip_high"])), { zero: true }),
    chart("KL to the reference", some(["actor/kl"])),
    chart("Tool calls per episode", used(some(["tools/calls", "tools/success_rate"])), { zero: true }),
    chart("Infrastructure failures", used(some(under("infra/"))), { zero: true }),
    chart("Seconds per step", some(["time/rollout", "time/train"], "time/".length), { stack: true }),
  ].filter(Boolean);
}

function groupSeries(M) {
  const total = M["groups/total"] || [];
  const parts = ["groups/all_correct", "groups/all_wrong"].map((name) => M[name] || []);
  const point = (label, color, of) => ({
    name: label,
    color: COLORS[color],
    points: total.map((n, i) => [M.step[i], n ? of(i) / n : null]).filter((p) => Number.isFinite(p[1])),
  });
  return [
    point("all correct", 2, (i) => parts[0][i]),
    point("all wrong", 3, (i) => parts[1][i]),
    point("mixed", 0, (i) => total[i] - parts[0][i] - parts[1][i]),
  ];
}
