// TD on Boyan's chain: values move towards the truth, or towards what a record says of it.

import { categorical, dot, matvec, mulberry32, normalized, range, rms, solve, zeros } from "./numerics.js";
import { chart, curve, explorer, html, player, quantity, svg, table, ticks } from "./controls.js";

/** The chain, as ictd.widgets.td draws it. */
function drawChain({ chain, num_states: m, seed }) {
  if (chain === "classic") {
    const last = m - 1;
    const transition = range(m).map((s) => {
      const row = zeros(m);
      if (s === last) row[0] = 1;
      else if (s === last - 1) row[last] = 1;
      else row[s + 1] = row[s + 2] = 0.5;
      return row;
    });
    const reward = range(m).map((s) => (s === last ? 0 : s === last - 1 ? -2 : -3));
    const initial = range(m).map((s) => (s === 0 ? 1 : 0));
    return { transition, reward, initial, terminal: range(m).map((s) => s === last) };
  }
  const draw = mulberry32(seed);
  const uniform = () => 1 - draw();
  const split = range(m - 2).map(uniform);
  const last = normalized(range(m).map(uniform));
  const reward = range(m).map(() => 1 - 2 * uniform());
  const initial = normalized(range(m).map(uniform));
  const transition = range(m).map((s) => {
    if (s === m - 1) return last;
    const row = zeros(m);
    row[s + 1] = s === m - 2 ? 1 : split[s];
    if (s < m - 2) row[s + 2] = 1 - split[s];
    return row;
  });
  return { transition, reward, initial, terminal: new Array(m).fill(false) };
}

/** A record of the chain, without the tail from which nothing returns. */
function drawRecord(problem, { num_transitions: length, discount, seed }) {
  const draw = mulberry32(seed + 1000);
  const states = [categorical(problem.initial, draw())];
  for (let k = 0; k < length; k++) {
    const s = states[k];
    states.push(categorical(problem.terminal[s] ? problem.initial : problem.transition[s], draw()));
  }
  let end = length;
  const sources = () => states.slice(0, end).filter((s) => !problem.terminal[s]);
  while (end > 0 && !problem.terminal[states[end]] && !sources().includes(states[end])) end--;
  const isTransition = states.map((s, k) => k < end && !problem.terminal[s]);
  const discounts = states.map((_, k) => (isTransition[k] && !problem.terminal[states[k + 1]] ? discount : 0));
  return { states, isTransition, discounts };
}

/** How often each state was left, and what followed on average; rows of unvisited states are 0. */
function count({ states, isTransition, discounts }, reward) {
  const m = reward.length;
  const counts = zeros(m);
  const next = range(m).map(() => zeros(m));
  isTransition.forEach((leaves, k) => {
    if (!leaves) return;
    counts[states[k]] += 1;
    next[states[k]][states[k + 1]] += discounts[k];
  });
  const average = (row, s) => row.map((entry) => (counts[s] ? entry / counts[s] : 0));
  return { counts, reward: reward.map((r, s) => (counts[s] ? r : 0)), next: next.map(average) };
}

const system = (next) => next.map((row, s) => row.map((entry, u) => (s === u ? 1 : 0) - entry));
const errorsOf = (reward, next, values) => matvec(next, values).map((ahead, s) => reward[s] + ahead - values[s]);

/** Everything that is displayed. */
export function compute(settings) {
  const { algorithm, discount, step_size: alpha } = settings;
  const problem = drawChain(settings);
  const m = settings.num_states;
  const discounted = problem.transition.map((row, s) =>
    row.map((p, u) => (problem.terminal[s] || problem.terminal[u] ? 0 : discount * p)),
  );
  const truth = solve(system(discounted), problem.reward);
  const record = drawRecord(problem, settings);
  const model = count(record, problem.reward);
  const seen = (x) => x.map((entry, s) => (model.counts[s] ? entry : null));
  const fit = solve(system(model.next), model.reward); // 0 at the end, as it should be
  const limit = algorithm === "expected" ? null : fit.map((v, s) => (model.counts[s] || problem.terminal[s] ? v : null));

  const total = model.counts.reduce((a, b) => a + b, 0);
  const last = algorithm === "online" ? settings.num_transitions : 200;
  const step = Math.min(settings.step, last);
  let values = zeros(m);
  let lastError = null;
  const history = [values];
  for (let t = 0; t < step; t++) {
    if (algorithm === "online") {
      lastError = null;
      if (record.isTransition[t]) {
        const s = record.states[t];
        const u = record.states[t + 1];
        lastError = problem.reward[s] + record.discounts[t] * values[u] - values[s];
        values = values.map((v, i) => (i === s ? v + alpha * lastError : v));
      }
    } else if (algorithm === "batch") {
      const errors = errorsOf(model.reward, model.next, values);
      values = values.map((v, s) => (model.counts[s] ? v + (alpha * model.counts[s] * errors[s]) / total : v));
    } else {
      const errors = errorsOf(problem.reward, discounted, values);
      values = values.map((v, s) => v + alpha * errors[s]);
    }
    history.push(values);
  }

  let errors = errorsOf(problem.reward, discounted, values);
  if (algorithm === "batch") errors = seen(errorsOf(model.reward, model.next, values));
  if (algorithm === "online") {
    errors = range(m).map((s) => (lastError !== null && s === record.states[step - 1] ? lastError : null));
  }
  const states = range(m).filter((s) => !problem.terminal[s]);
  const visited = states.filter((s) => model.counts[s]);
  const distance = (from, over) => history.map((v) => rms(over.map((s) => v[s] - from[s])));
  return {
    transition: problem.transition,
    reward: problem.reward,
    terminal: problem.terminal,
    counts: algorithm === "expected" ? null : model.counts,
    true_values: truth,
    record_values: limit,
    values,
    td_errors: errors,
    state: algorithm === "online" ? record.states[step] : null,
    step,
    last_step: last,
    rms_errors: distance(truth, states),
    rms_to_record: limit && distance(limit, visited),
  };
}

/** An arrow along a quadratic curve that bends by `bend` pixels, from node to node. */
function arrow(from, to, y, bend, width, radius) {
  const middle = { x: (from + to) / 2, y: y + 2 * bend };
  const end = (at) => {
    const length = Math.hypot(middle.x - at, middle.y - y) || 1;
    return { x: at + (radius * (middle.x - at)) / length, y: y + (radius * (middle.y - y)) / length };
  };
  const [start, tip] = [end(from), end(to)];
  const angle = Math.atan2(tip.y - middle.y, tip.x - middle.x);
  const size = 4 + width;
  const wing = (turn) => `${tip.x - size * Math.cos(angle + turn)},${tip.y - size * Math.sin(angle + turn)}`;
  return svg(
    "g",
    {},
    svg("path", {
      d: `M${start.x},${start.y} Q${middle.x},${middle.y} ${tip.x},${tip.y}`,
      fill: "none",
      stroke: "var(--ictd-blue)",
      "stroke-width": width,
    }),
    svg("polygon", { points: `${tip.x},${tip.y} ${wing(0.45)} ${wing(-0.45)}`, fill: "var(--ictd-blue)" }),
  );
}

/** Nodes in a row, at the same places as their values; wide arrows are probable steps. */
function drawNodes({ transition, terminal, state }, width, x) {
  const m = transition.length;
  const [y, radius] = [42, Math.min(13, 0.36 * (x(1) - x(0)))];
  const drawing = svg("svg", { width, height: 108, role: "img", viewBox: `0 0 ${width} 108` });
  transition.forEach((row, s) =>
    row.forEach((probability, u) => {
      if (probability === 0 || terminal[s]) return;
      const bend = u === s + 1 ? 0 : u > s ? -34 : 16 + (40 * (s - u)) / m;
      if (u === s) {
        drawing.append(
          svg("path", {
            d: `M${x(s) - 6},${y + radius} C${x(s) - 16},${y + 34} ${x(s) + 16},${y + 34} ${x(s) + 6},${y + radius}`,
            fill: "none", stroke: "var(--ictd-blue)", "stroke-width": 0.4 + 3.6 * probability,
          }),
        );
      } else drawing.append(arrow(x(s), x(u), y, bend / 2, 0.4 + 3.6 * probability, radius));
    }),
  );
  range(m).forEach((s) => {
    const isHere = s === state;
    const look = { cx: x(s), cy: y, stroke: "var(--ictd-ink)", "stroke-width": 1.5 };
    drawing.append(svg("circle", { ...look, r: radius, fill: isHere ? "var(--ictd-ink)" : "var(--ictd-card)" }));
    if (terminal[s]) drawing.append(svg("circle", { ...look, r: radius - 3, fill: "none" }));
    const style = isHere ? "fill: var(--ictd-card)" : "";
    drawing.append(svg("text", { x: x(s), y: y + 4, "text-anchor": "middle", style }, String(s)));
  });
  const place = state === null ? "" : ` The record is in state ${state}.`;
  drawing.setAttribute("aria-label", `The chain of ${m} states in a row; all steps lead forward.${place}`);
  return drawing;
}

/** A round mark for each value, ticks for what it should become, an arrow for each TD error. */
function drawValues(shown, width) {
  const { values, true_values: truth, record_values: limit, td_errors: errors } = shown;
  const m = values.length;
  const all = [...truth, ...(limit ?? []).filter((v) => v !== null), 0];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const margin = 0.3 * (high - low || 1);
  const yRange = [low - margin, high + margin];
  const axes = chart({
    width, height: 210, xRange: [-0.5, m - 0.5], yRange, yTicks: ticks(...yRange), yLabel: "value",
  });
  const half = 0.3 * (axes.x(1) - axes.x(0));
  const tick = (value, s, look) =>
    svg("line", { x1: axes.x(s) - half, x2: axes.x(s) + half, y1: axes.y(value), y2: axes.y(value), ...look });
  for (let s = 0; s < m; s++) {
    axes.element.append(tick(truth[s], s, { stroke: "var(--ictd-ink)", "stroke-width": 2.5 }));
    if (limit && limit[s] !== null) {
      const look = { stroke: "var(--ictd-vermillion)", "stroke-width": 2.5, "stroke-dasharray": "5 3" };
      axes.element.append(tick(limit[s], s, look));
    }
    const x = axes.x(s);
    if (errors[s] !== null) {
      const [y, tip] = [axes.y(values[s]), axes.y(values[s] + errors[s])];
      const back = tip > y ? -5 : 5;
      if (Math.abs(tip - y) > 2) {
        axes.element.append(
          svg("path", {
            d: `M${x},${y} V${tip} M${x - 4},${tip + back} L${x},${tip} L${x + 4},${tip + back}`,
            fill: "none", stroke: "var(--ictd-green)", "stroke-width": 1.5,
          }),
        );
      }
    }
  }
  const fits = (v) => v >= yRange[0] && v <= yRange[1];
  const out = values.filter((v) => !fits(v)).length;
  axes.element.setAttribute(
    "aria-label",
    `Values of ${m} states beside their true values; the numbers stand in the table.` +
      (out ? ` ${out} of them lie outside the drawing.` : ""),
  );
  return { ...axes, fits };
}

/** The root-mean-square errors up to now, on a logarithmic axis. */
function drawErrors({ rms_errors: toTruth, rms_to_record: toRecord, last_step: last, step }, width) {
  const seen = [...toTruth, ...(toRecord ?? [])].filter((e) => e > 0);
  const low = Math.max(Math.floor(Math.log10(Math.min(1, ...seen))), -12);
  const high = Math.max(Math.ceil(Math.log10(Math.max(...seen)) + 1e-9), low + 1);
  const jump = Math.ceil((high - low) / 4);
  const between = high - low <= 2 ? [1, 2, 5] : [1];
  const yTicks = range(Math.floor((high - low) / jump) + 1)
    .flatMap((i) => between.map((factor) => factor * 10 ** (low + jump * i)))
    .filter((tick) => tick <= 1.01 * 10 ** high);
  const axes = chart({
    width, height: 180, xRange: [0, last], yRange: [10 ** low, 10 ** high], xTicks: ticks(0, last),
    yTicks, isLog: true, xLabel: "steps", yLabel: "root-mean-square error",
  });
  axes.element.append(curve(axes, toTruth, { stroke: "var(--ictd-ink)", "stroke-width": 2 }));
  if (toRecord) {
    const look = { stroke: "var(--ictd-vermillion)", "stroke-width": 2, "stroke-dasharray": "5 3" };
    axes.element.append(curve(axes, toRecord, look));
  }
  const where = axes.x(step);
  axes.element.append(svg("circle", { cx: where, cy: axes.y(toTruth[step]), r: 4, fill: "var(--ictd-ink)" }));
  axes.element.setAttribute("aria-label", `Error against steps, up to step ${step} of ${last}.`);
  return axes.element;
}

function key(look, text) {
  const mark = svg("svg", { width: 26, height: 12, "aria-hidden": "true" }, look);
  return html("span", { class: "ictd-key" }, mark, text);
}

function legend(hasRecord) {
  const line = (look) => svg("line", { x1: 2, x2: 24, y1: 6, y2: 6, "stroke-width": 2.5, ...look });
  const parts = [
    key(svg("circle", { cx: 13, cy: 6, r: 4.5, fill: "var(--ictd-blue)" }), "value"),
    key(line({ stroke: "var(--ictd-ink)" }), "true value"),
    key(line({ stroke: "var(--ictd-green)", "stroke-width": 1.5 }), "TD error"),
  ];
  const dashed = { stroke: "var(--ictd-vermillion)", "stroke-dasharray": "5 3" };
  if (hasRecord) parts.splice(2, 0, key(line(dashed), "value that fits the record"));
  return html("p", { class: "ictd-legend" }, ...parts);
}

function numbers({ values, true_values: truth, record_values: limit, td_errors: errors }) {
  const heads = ["State", "Value", "True", ...(limit ? ["Record"] : []), "TD error"];
  const rows = values.map((_, s) => [
    String(s),
    quantity(`values.${s}`, values[s]),
    quantity(`true_values.${s}`, truth[s]),
    ...(limit ? [quantity(`record_values.${s}`, limit[s])] : []),
    quantity(`td_errors.${s}`, errors[s]),
  ]);
  return table("Values in reward units", heads, rows);
}

const LAST = { online: ({ num_transitions: n }) => n, batch: () => 200, expected: () => 200 };

export default explorer({
  compute,
  build({ read, change, controls, root, status }) {
    const play = player({ name: "step", read, change, last: () => LAST[read().algorithm](read()) });
    const drawing = html("div");
    const all = html("div");
    root.append(
      html("div", { class: "ictd-controls" }, ...Object.values(controls).map(({ element }) => element)),
      play.element,
      status,
      drawing,
      html("details", {}, html("summary", {}, "All numbers"), all),
    );
    // Kept from one drawing to the next, so that they move.
    let dots = [];
    return {
      stop: play.stop,
      isPlaying: play.isPlaying,
      summary: ({ step, last_step: last, rms_errors: toTruth, rms_to_record: toRecord }) => [
        `Step ${step} of ${last}. Root-mean-square error to the true values: `,
        quantity(`rms_errors.${step}`, toTruth[step]),
        ...(toRecord ? [", to those that fit the record: ", quantity(`rms_to_record.${step}`, toRecord[step])] : []),
        ".",
      ],
      draw(shown, settings, width) {
        const axes = drawValues(shown, width);
        if (dots.length !== shown.values.length) {
          const look = { class: "ictd-moves", r: 5.5, "stroke-width": 2.5, stroke: "var(--ictd-blue)" };
          dots = shown.values.map(() => svg("circle", look));
        }
        axes.element.append(...dots);
        dots.forEach((mark, s) => {
          mark.style.transform = `translate(${axes.x(s)}px, ${axes.y(shown.values[s])}px)`;
          // Hollow where the value lies outside the drawing.
          mark.style.fill = axes.fits(shown.values[s]) ? "var(--ictd-blue)" : "var(--ictd-card)";
        });
        drawing.replaceChildren(
          legend(shown.record_values !== null),
          axes.element,
          drawNodes(shown, width, axes.x),
          drawErrors(shown, width),
        );
        all.replaceChildren(numbers(shown));
      },
    };
  },
});
