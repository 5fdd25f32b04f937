// Depth and context: measured errors, both bounds, and whether their condition holds.

import { categorical, dot, identity, matmul, matrix, matvec, maxAbs, mulberry32, normalized, range, softmax, solve, spectralRadius, transpose, zeros } from "./numerics.js";
import { chart, curve, explorer, format, html, quantity, svg, table, ticks } from "./controls.js";

const [LAYERS, WALKS, LONGEST, CONFIDENCE] = [60, 5, 2000, 0.9];
const BETAS = range(49).map((i) => 0.5 * i); // where the diagonality is drawn

/** Boyan's chain with one-hot features, or a ring with features on the circle. */
function drawProblem({ chain, seed }) {
  const draw = mulberry32(seed);
  const uniform = () => 1 - draw();
  if (chain === "ring") {
    const m = 8;
    const step = { 0: 0.2, 1: 0.7, [m - 1]: 0.1 };
    const angles = range(m).map((s) => (2 * Math.PI * s) / m);
    return {
      transition: matrix(m, m, (s, u) => step[(u - s + m) % m] ?? 0),
      reward: range(m).map(() => 1 - 2 * uniform()),
      features: angles.map((angle) => [Math.cos(angle), Math.sin(angle)]),
    };
  }
  const m = 6;
  const split = range(m - 2).map(uniform);
  const last = normalized(range(m).map(uniform));
  const reward = range(m).map(() => 1 - 2 * uniform());
  const transition = range(m).map((s) => {
    if (s === m - 1) return last;
    const row = zeros(m);
    row[s + 1] = s === m - 2 ? 1 : split[s];
    if (s < m - 2) row[s + 2] = 1 - split[s];
    return row;
  });
  return { transition, reward, features: identity(m) };
}

/** The first states of a walk that starts in state 0. */
function drawWalk(transition, seed, length) {
  const draw = mulberry32(seed);
  const states = [0];
  for (let k = 0; k < length; k++) states.push(categorical(transition[states[k]], draw()));
  return states;
}

/** How many first transitions are left when each must lead to a state that one of them leaves. */
function closedPrefix(states, discount) {
  const first = new Map();
  for (let k = states.length - 2; k >= 0; k--) first.set(states[k], k);
  let [closed, needed] = [0, -1];
  for (let k = 0; k + 1 < states.length; k++) {
    if (discount > 0) needed = Math.max(needed, first.get(states[k + 1]) ?? states.length);
    if (needed <= k) closed = k + 1;
  }
  return closed;
}

/** Visits N(s), and the mean discounted transitions, of the first transitions of a walk. */
function empiricalModel(states, length, discount, size) {
  const counts = zeros(size);
  const next = range(size).map(() => zeros(size));
  for (let k = 0; k < length; k++) {
    counts[states[k]] += 1;
    next[states[k]][states[k + 1]] += discount;
  }
  return { counts, next: next.map((row, s) => row.map((entry) => (counts[s] ? entry / counts[s] : 0))) };
}

/** How much each state attends to each other, if they weigh so much. */
const lumpedAttention = (weights, features, beta) =>
  features.map((query) =>
    softmax(
      features.map((key, u) => (weights[u] > 0 ? beta * dot(key, query) + Math.log(weights[u]) : -Infinity)),
    ),
  );

const without = (next) => next.map((row, s) => row.map((entry, u) => (s === u ? 1 : 0) - entry));
const among = (kept, M) => kept.map((s) => kept.map((u) => M[s][u]));
const pick = (kept, x) => kept.map((s) => x[s]);

/** The distance of v + αM(r + Gv - v), iterated from 0, to `truth` in every layer. */
function errorsOf({ attention, next, reward, truth }, alpha) {
  const errors = [];
  let values = zeros(reward.length);
  for (let l = 0; l <= LAYERS; l++) {
    errors.push(maxAbs(values.map((v, s) => v - truth[s])));
    const ahead = matvec(next, values);
    const moves = matvec(attention, reward.map((r, s) => r + ahead[s] - values[s]));
    values = values.map((v, s) => v + alpha * moves[s]);
  }
  return errors;
}

/** What the condition says of this iteration, and what its eigenvalues do. */
function ratesOf({ attention, next }, { discount, step_size: alpha }) {
  const diagonality = Math.min(...attention.map((row, s) => row[s]));
  const drift = matmul(attention, without(next));
  return {
    diagonality,
    factor: Math.max(1 - alpha * (2 * diagonality - 1 - discount), alpha * (1 + discount) - 1),
    radius: spectralRadius(without(drift.map((row) => row.map((entry) => alpha * entry)))),
  };
}

/** Everything that is displayed. */
export function compute(settings) {
  const { context_length: length, num_layers: layers, discount, beta, step_size: alpha, walk } = settings;
  const { transition, reward, features } = drawProblem(settings);
  const m = reward.length;
  const onward = transition.map((row) => row.map((p) => discount * p));
  const truth = solve(without(onward), reward);

  // μ(P - I) = 0, with one equation, which the others imply, replaced by Σμ = 1.
  const balance = transpose(without(transition));
  balance[m - 1] = range(m).map(() => 1);
  const stationary = solve(balance, [...zeros(m - 1), 1]);
  const attention = lumpedAttention(stationary, features, beta);
  const population = { attention, next: onward, reward, truth };
  const populationErrors = errorsOf(population, alpha);

  const contexts = range(WALKS).map((i) => {
    const states = drawWalk(transition, settings.seed + 1000 * (i + 1), length);
    const closed = closedPrefix(states, discount);
    const { counts, next } = empiricalModel(states, closed, discount, m);
    const kept = range(m).filter((s) => counts[s] > 0);
    const weights = lumpedAttention(counts, features, beta);
    return {
      closed,
      counts,
      kept,
      attention: among(kept, weights),
      next: among(kept, next),
      reward: pick(kept, reward),
      truth: pick(kept, truth),
    };
  });
  const chosen = contexts[walk];
  const { counts, kept } = chosen;
  const limit = solve(without(chosen.next), chosen.reward);
  const errors = contexts.map((context) => errorsOf(context, alpha));
  const rates = ratesOf(chosen, settings);

  const spread = discount * (Math.max(...truth) - Math.min(...truth));
  const term = Math.log((2 * m * length) / (1 - CONFIDENCE));
  const widths = kept.map((s) => spread * Math.sqrt(term / (2 * counts[s])));
  const contextBound = Math.max(...widths) / (1 - discount);
  const depthBounds = range(LAYERS + 1).map((l) => rates.factor ** l * maxAbs(limit));
  const isCertified = rates.factor < 1;
  const diagonalities = BETAS.map((b) => {
    const M = lumpedAttention(counts, features, b);
    return Math.min(...kept.map((s) => M[s][s]));
  });
  return {
    true_values: truth,
    stationary,
    counts,
    closed: chosen.closed,
    errors,
    population_errors: populationErrors,
    error: errors[walk][layers],
    population_error: populationErrors[layers],
    certainty_error: maxAbs(limit.map((v, i) => v - chosen.truth[i])),
    depth_bounds: depthBounds,
    depth_bound: isCertified ? depthBounds[layers] : null,
    context_bound: contextBound,
    bound: isCertified ? depthBounds[layers] + contextBound : null,
    threshold: (1 + discount) / 2,
    is_certified: isCertified,
    rates,
    population: ratesOf(population, settings),
    diagonalities,
  };
}

const LOOKS = {
  errors: { stroke: "var(--ictd-blue)", "stroke-width": 3 },
  others: { stroke: "var(--ictd-blue)", "stroke-width": 1, "stroke-opacity": 0.7 },
  population: { stroke: "var(--ictd-green)", "stroke-width": 2, "stroke-dasharray": "8 3" },
  depth: { stroke: "var(--ictd-vermillion)", "stroke-width": 2, "stroke-dasharray": "2 3" },
  context: { stroke: "var(--ictd-purple)", "stroke-width": 2, "stroke-dasharray": "10 3 2 3" },
  both: { stroke: "var(--ictd-ink)", "stroke-width": 2, "stroke-dasharray": "5 2" },
};
// What is not certified is drawn pale and without a claim.
const PALE = { stroke: "var(--ictd-muted)", "stroke-width": 1, "stroke-dasharray": "2 3" };

function legend({ is_certified: isCertified }) {
  const entries = [
    [LOOKS.errors, "error of the chosen context"],
    [LOOKS.others, "of the others"],
    [LOOKS.population, "of the infinite context"],
    [isCertified ? LOOKS.depth : PALE, isCertified ? "depth bound" : "depth formula, no bound here"],
    [LOOKS.context, "context bound"],
    ...(isCertified ? [[LOOKS.both, "sum of both bounds"]] : []),
  ];
  const mark = (look) =>
    svg("svg", { width: 30, height: 12, "aria-hidden": "true" }, svg("line", { x1: 2, x2: 28, y1: 6, y2: 6, ...look }));
  return html("p", { class: "ictd-legend" }, ...entries.map(([look, text]) => html("span", {}, mark(look), text)));
}

/** Errors and bounds against depth, on a logarithmic axis. */
function drawErrors(shown, { walk, num_layers: layers }, width) {
  const { errors, population_errors: population, depth_bounds: depth, context_bound: context } = shown;
  const largest = Math.max(context, depth[0] + (shown.is_certified ? context : 0), maxAbs(errors.flat()), 1e-3);
  const high = Math.min(Math.ceil(Math.log10(largest)), 4);
  const least = Math.min(...[...errors.flat(), ...population].filter((error) => error > 0), 1);
  const low = Math.max(Math.floor(Math.log10(least)), high - 6);
  const yTicks = range(high - low + 1).map((i) => 10 ** (low + i));
  const axes = chart({
    width, height: 300, xRange: [0, LAYERS], yRange: [10 ** low, 10 ** high], xTicks: ticks(0, LAYERS, 6),
    yTicks, isLog: true, xLabel: "depth (layers)", yLabel: "error",
  });
  const place = axes.x(layers);
  axes.element.append(
    svg("line", { class: "ictd-axis", x1: place, x2: place, y1: axes.box.top, y2: axes.box.bottom }),
    svg("text", { x: place, y: axes.box.top - 6, "text-anchor": "middle" }, `L = ${layers}`),
  );
  // Up to where they leave the drawing for good.
  const isOut = (value) => value < 10 ** low || value > 10 ** high;
  const draw = (values, look) => {
    let end = values.length;
    while (end > 1 && isOut(values[end - 1]) && isOut(values[end - 2])) end--;
    axes.element.append(curve(axes, values.slice(0, end), look));
  };
  errors.forEach((values, i) => i !== walk && draw(values, LOOKS.others));
  draw(population, LOOKS.population);
  draw(errors[walk], LOOKS.errors);
  draw(depth, shown.is_certified ? LOOKS.depth : PALE);
  draw(depth.map(() => context), LOOKS.context);
  if (shown.is_certified) draw(depth.map((bound) => bound + context), LOOKS.both);
  axes.element.append(
    svg("circle", { cx: place, cy: axes.y(errors[walk][layers]), r: 5, fill: "var(--ictd-blue)" }),
  );
  axes.element.setAttribute(
    "aria-label",
    `Error against depth: ${format(errors[walk][0])} before the first layer, ${format(shown.error)} after ` +
      `${layers}, ${format(errors[walk][LAYERS])} after ${LAYERS}. The context bound is ${format(context)}` +
      (shown.is_certified ? `, both bounds after ${layers} layers ${format(shown.bound)}.` : "; depth has none here."),
  );
  return axes.element;
}

/** The smallest own share against β, and the line that it has to exceed. */
function drawDiagonality(shown, { beta }, width) {
  const last = BETAS.at(-1);
  const axes = chart({
    width, height: 190, xRange: [0, last], yRange: [0, 1], xTicks: ticks(0, last, 6), yTicks: ticks(0, 1, 4),
    xLabel: "β", yLabel: "m₀, the smallest share that a state keeps for itself",
  });
  const { box } = axes;
  const line = axes.y(shown.threshold);
  const along = { x: (i) => axes.x(BETAS[i]), y: axes.y };
  const crossing = BETAS.findIndex((_, i) => shown.diagonalities[i] > shown.threshold);
  axes.element.append(
    svg("rect", { x: box.left, y: line, width: box.right - box.left, height: box.bottom - line, fill: "var(--ictd-grid)", "fill-opacity": 0.6 }),
    svg("line", { x1: box.left, x2: box.right, y1: line, y2: line, stroke: "var(--ictd-vermillion)", "stroke-width": 2, "stroke-dasharray": "6 3" }),
    svg("text", { x: box.right - 4, y: box.bottom - 8, "text-anchor": "end" }, `condition fails: m₀ ≤ ${format(shown.threshold)}`),
    curve(along, shown.diagonalities, { stroke: "var(--ictd-blue)", "stroke-width": 2 }),
    svg("circle", { cx: axes.x(beta), cy: axes.y(shown.rates.diagonality), r: 5, fill: "var(--ictd-blue)" }),
  );
  axes.element.setAttribute(
    "aria-label",
    `The smallest own share m₀ against β, now ${format(shown.rates.diagonality)}. The condition asks for more than ` +
      `${format(shown.threshold)}` +
      (crossing < 0 ? ", which no β shown gives." : `; it has that from β = ${format(BETAS[crossing], 1)} on.`),
  );
  return axes.element;
}

function numbers(shown, { num_layers: layers }) {
  const number = (path) => quantity(path, path.split(".").reduce((part, name) => part[name], shown));
  return table("In numbers", ["Quantity", "Context", "Infinite"], [
    [`error after ${layers} layers`, number("error"), number("population_error")],
    ["error of certainty equivalence", number("certainty_error"), "0"],
    ["smallest own share m₀", number("rates.diagonality"), number("population.diagonality")],
    ["certified factor per layer, ρ", number("rates.factor"), number("population.factor")],
    ["spectral radius", number("rates.radius"), number("population.radius")],
    [`depth bound after ${layers} layers`, number("depth_bound"), ""],
    ["context bound", number("context_bound"), ""],
    ["sum of both bounds", number("bound"), ""],
  ]);
}

/** Whether depth is certified, in words. */
function verdict({ is_certified: isCertified, rates, threshold }) {
  const [share, line] = [quantity("rates.diagonality", rates.diagonality), quantity("threshold", threshold)];
  if (isCertified) return ["The condition holds: m₀ = ", share, " > (1 + γ)/2 = ", line, ". Every layer leaves at most the share ρ of the distance to certainty equivalence."];
  const converges = rates.radius < 1 ? "the layers converge all the same." : "the layers do not converge.";
  if (rates.diagonality > threshold) {
    return ["m₀ = ", share, " > (1 + γ)/2 = ", line, ", but the step is too long, α ≥ 2/(1 + γ): nothing is certified; ", converges];
  }
  return ["The condition fails: m₀ = ", share, " ≤ (1 + γ)/2 = ", line, ". Nothing is certified; ", converges];
}

export default explorer({
  compute,
  build({ controls, root }) {
    const order = ["num_layers", "context_length", "discount", "beta", "step_size", "walk", "chain", "seed"];
    const [words, drawings] = [html("p"), html("div")];
    const all = html("div", { class: "ictd-scroll", role: "region", "aria-label": "Numbers", tabindex: 0 });
    root.append(
      html("div", { class: "ictd-controls" }, ...order.map((name) => controls[name].element)),
      words,
      drawings,
      all,
    );
    return {
      summary: (shown, { num_layers: layers }) =>
        `The error after ${layers} layers is ${format(shown.error)}; ` +
        (shown.is_certified ? `both bounds together are ${format(shown.bound)}.` : "nothing is certified of the depth."),
      draw(shown, settings, width) {
        words.replaceChildren(...verdict(shown));
        drawings.replaceChildren(
          legend(shown),
          drawErrors(shown, settings, width),
          drawDiagonality(shown, settings, width),
        );
        all.replaceChildren(numbers(shown, settings));
      },
    };
  },
});
