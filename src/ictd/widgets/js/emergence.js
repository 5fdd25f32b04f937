// A pretraining run, played back: its weights from saved data, what they do on a task computed here.

import { dot, matrix, matvec, mean, range, softmax, solve, sum, zeros } from "./numerics.js";
import { chart, explorer, format, html, player, quantity, shade, svg, table, ticks } from "./controls.js";

const EVERY = 50; // steps between two records

const WEIGHTS = [
  { name: "reward", wanted: 1, color: "var(--ictd-blue)", dash: null },
  { name: "next value", wanted: 1, color: "var(--ictd-vermillion)", dash: "7 3" },
  { name: "own value", wanted: -1, color: "var(--ictd-green)", dash: "2 3" },
];

const signOf = (weight) => (weight > 0 ? "+" : weight < 0 ? "−" : "0");

/** How states attend to states: visits in the context times exp of the score φ(u)ᵀ A φ(s). */
function attend({ features, counts }, A) {
  return features.map((query) => {
    const read = matvec(A, query);
    return softmax(features.map((key, u) => (counts[u] > 0 ? dot(key, read) + Math.log(counts[u]) : -Infinity)));
  });
}

/** The values of all states after L equal layers of attention M and value weights w. */
function run({ reward, transition }, M, w, layers) {
  let values = zeros(reward.length);
  for (let layer = 0; layer < layers; layer++) {
    const next = matvec(transition, values);
    const read = values.map((v, s) => w[0] * reward[s] + w[1] * next[s] + w[2] * v);
    const change = matvec(M, read);
    values = values.map((v, s) => v + change[s]);
  }
  return values;
}

/** Everything that is displayed. */
export function compute({ run: name, seed, step, data }) {
  const { task } = data;
  const { config, seeds } = data.runs[name];
  const saved = seeds[seed];
  const record = step / EVERY;
  const attention = saved.attention.map((A) => attend(task, A));
  const values = attention.map((M, i) => run(task, M, saved.value_weights[i], config.num_layers));
  const errorOf = (v) => sum(v.map((value, s) => task.visits[s] * (value - task.true_values[s]) ** 2));
  const errors = values.map(errorOf);
  const weights = saved.value_weights[record];
  const M = attention[record];
  const system = matrix(M.length, M.length, (s, u) => (s === u ? 1 : 0) - task.transition[s][u]);
  return {
    weights,
    signs: weights.map(signOf).join(" "),
    kernel_diagonality: saved.kernel_diagonality[record],
    kernel_diagonality_uniform: saved.kernel_diagonality_uniform[record],
    spectral_radius: saved.spectral_radius[record],
    attention: M,
    own_attention: mean(M.map((row, s) => row[s])),
    values: values[record],
    true_values: task.true_values,
    errors,
    error: errors[record],
    context_error: errorOf(solve(system, task.reward)),
  };
}

const text = (content, attributes) => svg("text", attributes, content);

/** A curve over the steps of the run, and a mark where the player is. */
function drawCurve(axes, steps, values, { color, dash }) {
  const points = steps.map((step, i) => `${axes.x(step).toFixed(2)},${axes.y(values[i]).toFixed(2)}`);
  const look = { fill: "none", stroke: color, "stroke-width": 2, "stroke-dasharray": dash };
  axes.element.append(svg("polyline", { ...look, points: points.join(" ") }));
}

function drawStep({ element, x, box }, step) {
  const look = { stroke: "var(--ictd-ink)", "stroke-width": 1 };
  element.append(svg("line", { ...look, x1: x(step), x2: x(step), y1: box.top, y2: box.bottom }));
}

/** A chart over the steps with some curves. */
function overSteps(steps, curves, { step, width, ...options }) {
  const xRange = [0, steps.at(-1)];
  const axes = chart({ width, height: 190, xRange, xTicks: ticks(...xRange, 3), xLabel: "step", ...options });
  for (const { values, ...look } of curves) drawCurve(axes, steps, values, look);
  drawStep(axes, step);
  return axes;
}

function drawWeights({ weights }, saved, steps, step, width) {
  const all = saved.value_weights.flat();
  const yRange = [Math.min(-1, ...all), Math.max(1, ...all)];
  const curves = WEIGHTS.map((look, i) => ({ ...look, values: saved.value_weights.map((w) => w[i]) }));
  const axes = overSteps(steps, curves, { step, width, yRange, yTicks: ticks(...yRange, 4), yLabel: "value weights" });
  const zero = { stroke: "var(--ictd-muted)", x1: axes.box.left, x2: axes.box.right, y1: axes.y(0), y2: axes.y(0) };
  axes.element.append(svg("line", zero));
  const numbers = WEIGHTS.map(({ name }, i) => `${name} ${format(weights[i], 2)}`).join(", ");
  axes.element.setAttribute("aria-label", `The three value weights against steps; at step ${step}: ${numbers}.`);
  return axes.element;
}

const KINDS = [
  { key: "kernel_diagonality", name: "own visits", color: "var(--ictd-blue)", dash: null },
  { key: "kernel_diagonality_uniform", name: "equal weights", color: "var(--ictd-vermillion)", dash: "7 3" },
];

function drawDiagonality(shown, saved, steps, step, width) {
  const curves = KINDS.map(({ key, ...look }) => ({ ...look, values: saved[key] }));
  const options = { step, width, yRange: [0, 1], yTicks: ticks(0, 1, 4), yLabel: "kernel diagonality" };
  const { element } = overSteps(steps, curves, options);
  const numbers = KINDS.map(({ key, name }) => `${format(shown[key], 2)} (${name})`).join(" and ");
  element.setAttribute("aria-label", `Kernel diagonality against steps; at step ${step}: ${numbers}.`);
  return element;
}

function drawErrors({ errors, error, context_error: floor }, steps, step, width) {
  const low = 10 ** Math.floor(Math.log10(Math.min(floor, ...errors)));
  const high = 10 ** Math.ceil(Math.log10(Math.max(...errors)));
  const powers = Math.round(Math.log10(high / low));
  const jump = Math.ceil(powers / 4);
  const yTicks = range(Math.floor(powers / jump) + 1).map((i) => low * 10 ** (jump * i));
  const curves = [
    { values: errors, color: "var(--ictd-blue)", dash: null },
    { values: errors.map(() => floor), color: "var(--ictd-ink)", dash: "2 3" },
  ];
  const options = { step, width, yRange: [low, high], yTicks, isLog: true, yLabel: "mean squared error", left: 70 };
  const { element } = overSteps(steps, curves, options);
  element.setAttribute(
    "aria-label",
    `Error of the values against steps; at step ${step} it is ${format(error)}, beside ${format(floor)} of the values that fit the context exactly.`,
  );
  return element;
}

/** Values as round marks, true values as ticks. */
function drawValues({ values, true_values: truth }, width) {
  const [low, high] = [Math.min(0, ...truth), Math.max(0, ...truth)];
  const margin = 0.3 * (high - low);
  const yRange = [low - margin, high + margin];
  const axes = chart({
    width, height: 190, xRange: [-0.5, values.length - 0.5], yRange, yTicks: ticks(...yRange, 4),
    xTicks: range(values.length), xLabel: "state", yLabel: "value",
  });
  const half = 0.3 * (axes.x(1) - axes.x(0));
  const fits = (value) => value >= yRange[0] && value <= yRange[1];
  values.forEach((value, s) => {
    const [x, y] = [axes.x(s), axes.y(truth[s])];
    const look = { stroke: "var(--ictd-ink)", "stroke-width": 2.5 };
    axes.element.append(svg("line", { ...look, x1: x - half, x2: x + half, y1: y, y2: y }));
    const fill = fits(value) ? "var(--ictd-blue)" : "var(--ictd-card)"; // hollow: outside the drawing
    const mark = { cx: x, cy: axes.y(value), r: 4.5, fill, stroke: "var(--ictd-blue)", "stroke-width": 2 };
    axes.element.append(svg("circle", mark));
  });
  const out = values.filter((value) => !fits(value)).length;
  axes.element.setAttribute(
    "aria-label",
    `Values of the ${values.length} states as the network gives them, beside the true ones; the numbers stand in the table.` +
      (out ? ` ${out} of them lie outside the drawing.` : ""),
  );
  return axes.element;
}

/** A square for each pair of states, dark for 0, light for 1. */
function drawAttention({ attention, own_attention: own }, width) {
  const [left, top, m] = [40, 22, attention.length];
  const side = Math.min(14, (width - left - 60) / m);
  const drawing = svg("svg", { width, height: top + m * side + 40, role: "img" });
  drawing.append(text("attention of the states", { x: 4, y: 12 }));
  attention.forEach((row, s) => {
    const middle = top + (s + 0.5) * side + 4;
    drawing.append(text(String(s), { x: left - 6, y: middle, "text-anchor": "end" }));
    drawing.append(text(String(s), { x: left + (s + 0.5) * side, y: top + m * side + 14, "text-anchor": "middle" }));
    row.forEach((weight, u) => {
      const place = { x: left + u * side, y: top + s * side, width: side, height: side };
      drawing.append(svg("rect", { ...place, fill: shade(weight).color, stroke: "var(--ictd-card)", "stroke-width": 0.5 }));
    });
  });
  drawing.append(text("attended to", { x: left + (m * side) / 2, y: top + m * side + 32, "text-anchor": "middle" }));
  drawScale(drawing, left + m * side + 12, top, m * side);
  drawing.setAttribute("aria-label", `Attention of ${m} states to each other; a state attends to itself with ${format(own, 2)} on average.`);
  return drawing;
}

function drawScale(drawing, x, top, height) {
  const bands = 20;
  range(bands).forEach((i) => {
    const place = { x, y: top + height * (1 - (i + 1) / bands), width: 12, height: height / bands + 0.5 };
    drawing.append(svg("rect", { ...place, fill: shade((i + 0.5) / bands).color }));
  });
  drawing.append(text("1", { x: x + 17, y: top + 9 }), text("0", { x: x + 17, y: top + height }));
}

/** A short piece of a curve, and what it is. */
function key({ color, dash }, ...content) {
  const line = { x1: 1, x2: 25, y1: 6, y2: 6, stroke: color, "stroke-width": 2.5, "stroke-dasharray": dash };
  const mark = svg("svg", { width: 26, height: 12, "aria-hidden": "true", style: "display: inline-block" }, svg("line", line));
  return html("span", { style: "margin-right: 1em" }, mark, " ", ...content);
}

function describe(shown) {
  const weights = WEIGHTS.map(({ name, wanted, ...look }, i) =>
    key(look, `${name} `, quantity(`weights.${i}`, shown.weights[i]), ` (TD: ${signOf(wanted)})`),
  );
  const kinds = KINDS.map(({ key: path, name, ...look }) => key(look, `${name} `, quantity(path, shown[path])));
  return [
    html("p", {}, html("strong", {}, "Value weights: "), ...weights),
    html("p", {}, html("strong", {}, "Kernel diagonality, mean of 64 tasks: "), ...kinds),
    html(
      "p", {}, html("strong", {}, "One task: "),
      "a state attends to itself with ", quantity("own_attention", shown.own_attention), " on average; the error of the values is ",
      quantity("error", shown.error), ", that of the values that fit the context exactly (dotted) ",
      quantity("context_error", shown.context_error), ". Mean spectral radius of a layer: ",
      quantity("spectral_radius", shown.spectral_radius), ".",
    ),
  ];
}

function numbers({ values, true_values: truth }) {
  const rows = values.map((value, s) => [
    String(s),
    quantity(`values.${s}`, value),
    quantity(`true_values.${s}`, truth[s]),
  ]);
  return table("Values in reward units", ["State", "Network", "True"], rows);
}

export default explorer({
  compute,
  build({ read, change, controls, root }) {
    const steps = () => read().data.runs[read().run].steps;
    const play = player({
      name: "record",
      read: () => ({ record: read().step / EVERY }),
      change: (name, record) => change("step", record * EVERY),
      last: () => steps().length - 1,
      period: 200,
      unit: "record",
    });
    const words = html("div");
    const panels = html("div", { style: "display: flex; flex-wrap: wrap; gap: 0.4rem 1rem" });
    const all = html("div");
    root.append(
      html("div", { class: "ictd-controls" }, ...Object.values(controls).map(({ element }) => element)),
      play.element,
      words,
      panels,
      html("details", {}, html("summary", {}, "All numbers"), all),
    );
    return {
      stop: play.stop,
      isPlaying: play.isPlaying,
      summary({ signs, kernel_diagonality: diagonality, error }, { step }) {
        const isTd = signs === WEIGHTS.map(({ wanted }) => signOf(wanted)).join(" ");
        return (
          `Step ${step}: the value weights have the signs ${signs}, ${isTd ? "as in TD" : "not those of TD"}; ` +
          `kernel diagonality ${format(diagonality, 2)}; error of the values ${format(error)}.`
        );
      },
      draw(shown, { run: name, seed, step, data }, whole) {
        const saved = data.runs[name].seeds[seed];
        const width = whole < 560 ? whole : Math.floor((whole - 18) / 2);
        words.replaceChildren(...describe(shown));
        panels.replaceChildren(
          drawWeights(shown, saved, steps(), step, width),
          drawDiagonality(shown, saved, steps(), step, width),
          drawAttention(shown, width),
          drawValues(shown, width),
          drawErrors(shown, steps(), step, width),
        );
        all.replaceChildren(numbers(shown));
      },
    };
  },
});
