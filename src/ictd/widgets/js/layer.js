// Inside the layer: the prompt matrix, and where the update of one column comes from.

import { dot, maxAbs, mulberry32, range, softmax, sum, zeros } from "./numerics.js";
import { explorer, format, html, quantity, svg } from "./controls.js";

const [TOKENS, LAYERS, MIDDLE, END, QUERY] = [7, 20, 2, 4, 3];
const H = Math.SQRT1_2;
const FEATURES = [[0, -1], [H, -H], [1, 0], [H, H], [0, 1]]; // of the states 0..4

/** Seven tokens of a walk between two ends, and a query: as ictd.widgets.layer draws them. */
function drawTokens(seed) {
  const draw = mulberry32(seed);
  const isEnd = (s) => s === 0 || s === END;
  const states = [MIDDLE];
  while (states.length < TOKENS) {
    const s = states.at(-1);
    states.push(isEnd(s) ? MIDDLE : draw() < 0.5 ? s - 1 : s + 1);
  }
  const isTransition = states.map((s, j) => j + 1 < TOKENS && !isEnd(s));
  const rewards = states.map((_, j) => (!isTransition[j] ? 0 : states[j + 1] === END ? 1 : -0.1));
  return {
    states: [...states, QUERY],
    rewards: [...rewards, 0],
    isTransition: [...isTransition, false],
    isTerminal: [...states.map(isEnd), false],
  };
}

const add = (x, y) => x.map((entry, i) => entry + y[i]);
const subtract = (x, y) => x.map((entry, i) => entry - y[i]);

/** One layer in both its forms, on a prompt whose keys are given. */
function makeLayer({ beta, discount, step_size: alpha }, { states, rewards, isTransition, isTerminal }, isKey) {
  const features = states.map((s) => FEATURES[s]);
  const scores = (query) => features.map((key, k) => (isKey[k] ? beta * dot(key, query) : -Infinity));
  const attention = features.map((query, j) => (isTerminal[j] ? zeros(states.length) : softmax(scores(query))));
  const gamma = isTransition.map((leaves, j) => (leaves && !isTerminal[j + 1] ? discount : 0));
  /** The row x Π Γ: in every column the discounted entry of its successor. */
  const shift = (row) => row.map((_, j) => (gamma[j] ? gamma[j] * row[j + 1] : 0));
  /** What the keys hold for the readers: w_R reward, w_tgt target, w_cur current. */
  const read = ({ target, current }) => {
    const weighted = (weight, row) => row.map((entry, k) => (isKey[k] ? weight * entry : 0));
    const parts = {
      reward: weighted(alpha, rewards),
      target: weighted(alpha, target),
      current: weighted(-alpha, current),
    };
    const errors = add(add(parts.reward, parts.target), parts.current);
    return { ...parts, errors, updates: attention.map((weights) => dot(weights, errors)) };
  };
  const forms = {
    one(memory) {
      const current = add(memory.current, read(memory).updates);
      return { target: shift(current), current };
    },
    two(memory) {
      const { updates } = read(memory);
      return { target: add(memory.target, shift(updates)), current: add(memory.current, updates) };
    },
  };
  const run = (form) => {
    const history = [{ target: zeros(states.length), current: zeros(states.length) }];
    for (let l = 0; l <= LAYERS; l++) history.push(forms[form](history[l]));
    return history;
  };
  return { features, attention, gamma, read, run };
}

const gap = (a, b) =>
  Math.max(maxAbs(subtract(a.target, b.target)), maxAbs(subtract(a.current, b.current)));

/** Everything that is displayed. */
export function compute(settings) {
  const { layer, column, heads, mask } = settings;
  const tokens = drawTokens(settings.seed);
  const isKey = tokens.isTransition.map((leaves) => leaves || !mask);
  const model = makeLayer(settings, tokens, isKey);
  const other = makeLayer(settings, tokens, mask ? isKey.map(() => true) : tokens.isTransition);
  const [one, two] = [model.run("one"), model.run("two")];
  const history = heads === "one" ? one : two;
  const { target, current } = history[layer];
  const { updates, ...parts } = model.read(history[layer]);
  const attention = model.attention[column];
  const share = (row) => row.map((entry, k) => attention[k] * entry);
  const received = model.gamma[column] ? model.gamma[column] * updates[column + 1] : 0;
  return {
    states: tokens.states,
    is_key: isKey,
    is_terminal: tokens.isTerminal,
    discounts: model.gamma,
    matrix: [...range(2).map((i) => model.features.map((phi) => phi[i])), tokens.rewards, target, current],
    attention,
    parts,
    contributions: share(parts.errors),
    from_reward: sum(share(parts.reward)),
    from_target: sum(share(parts.target)),
    from_current: sum(share(parts.current)),
    update: updates[column],
    next_value: history[layer + 1].current[column],
    handed_on: column > 0 ? model.gamma[column - 1] * updates[column] : 0,
    received,
    next_target: history[layer + 1].target[column],
    forms_differ: Math.max(...one.map((memory, l) => gap(memory, two[l]))),
    mask_matters: gap(history[layer], other.run(heads)[layer]),
  };
}

const ROWS = ["φ₀", "φ₁", "reward", "target memory", "current memory"];
const READS = [
  ["attention", "attention weight"],
  ["parts.reward", "α · reward"],
  ["parts.target", "α · target"],
  ["parts.current", "−α · current"],
  ["contributions", "weight · sum"],
];
const at = (shown, path) => path.split(".").reduce((part, name) => part[name], shown);
const nameOf = ({ states, is_terminal: isTerminal }, j) =>
  `${j === states.length - 1 ? "query" : isTerminal[j] ? "end" : "state"} ${states[j]}`;

/** The columns as nodes; arcs above show what one reads, the arrow below what it hands on. */
function drawReading(shown, j, width) {
  const { states, attention, is_key: isKey, is_terminal: isTerminal, discounts } = shown;
  const [radius, y] = [13, 44 + 0.08 * width];
  const height = y + 64;
  const x = (k) => 26 + (k * (width - 52)) / (states.length - 1);
  const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  attention.forEach((weight, k) => {
    if (weight < 0.005) return;
    const rise = k === j ? 40 : 24 + 0.1 * Math.abs(x(k) - x(j));
    const [from, to] = k === j ? [x(j) - 7, x(j) + 7] : [x(k), x(j)];
    const top = y - radius - rise;
    const [lean, foot] = [k === j ? 16 : 0, y - radius];
    drawing.append(
      svg("path", {
        d: `M${from},${foot} C${from - lean},${top} ${to + lean},${top} ${to},${foot}`,
        fill: "none", stroke: "var(--ictd-blue)", "stroke-width": 0.5 + 9 * weight, "stroke-opacity": 0.75,
      }),
    );
  });
  if (j > 0 && discounts[j - 1] !== 0) {
    const [from, to, foot] = [x(j) - 4, x(j - 1) + 4, y + radius + 2];
    drawing.append(
      svg("path", {
        d: `M${from},${foot} C${from},${foot + 26} ${to},${foot + 26} ${to},${foot} m-5,7 l5,-7 l5,7`,
        fill: "none", stroke: "var(--ictd-vermillion)", "stroke-width": 2.5,
      }),
      svg("text", { x: (from + to) / 2, y: foot + 36, "text-anchor": "middle" }, "γ · update"),
    );
  }
  states.forEach((state, k) => {
    const isHere = k === j;
    const look = { cx: x(k), cy: y, stroke: "var(--ictd-ink)", "stroke-width": 1.5 };
    const fill = isHere ? "var(--ictd-ink)" : "var(--ictd-card)";
    drawing.append(svg("circle", { ...look, r: radius, fill, "stroke-dasharray": isKey[k] ? "none" : "3 3" }));
    const ring = isHere ? "var(--ictd-card)" : "var(--ictd-ink)";
    if (isTerminal[k]) drawing.append(svg("circle", { ...look, r: radius - 3.5, fill: "none", stroke: ring }));
    const style = isHere ? "fill: var(--ictd-card)" : "";
    const text = k === states.length - 1 ? `${state}?` : String(state);
    drawing.append(svg("text", { x: x(k), y: y + 4, "text-anchor": "middle", style }, text));
  });
  const weights = attention.flatMap((weight, k) => (weight >= 0.005 ? [`${k} (${format(weight, 2)})`] : []));
  const passes = j > 0 && discounts[j - 1] !== 0 ? ` It hands its update on to column ${j - 1}.` : "";
  drawing.setAttribute(
    "aria-label",
    `Column ${j}, ${nameOf(shown, j)}, ` +
      (weights.length ? `reads from columns ${weights.join(", ")}.` : "reads nothing.") + passes,
  );
  return drawing;
}

/** The matrix and what is read from it; a radio button, or the mouse, chooses a column. */
function makeTable(choose) {
  const columns = range(TOKENS + 1);
  const name = `ictd-column-${Math.random().toString(36).slice(2)}`;
  const radios = columns.map((j) => html("input", { type: "radio", name, value: j }));
  radios.forEach((radio, j) => radio.addEventListener("change", () => choose(j)));
  const names = columns.map(() => html("span"));
  const heads = columns.map((j) =>
    html("th", { scope: "col" }, html("label", {}, radios[j], ` ${j}`, html("br"), names[j])),
  );
  const row = (text) => {
    const cells = columns.map(() => html("td"));
    return { cells, element: html("tr", {}, html("th", { scope: "row" }, text), ...cells) };
  };
  const [matrix, reads] = [ROWS.map(row), READS.map(([, text]) => row(text))];
  const band = html("th", { scope: "rowgroup", colspan: columns.length + 1 });
  const element = html(
    "table",
    { class: "ictd-prompt" },
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "column"), ...heads)),
    html("tbody", {}, ...matrix.map((line) => line.element)),
    html("tbody", {}, html("tr", {}, band), ...reads.map((line) => line.element)),
  );
  for (const cells of [heads, ...matrix.map((line) => line.cells)]) {
    cells.forEach((cell, j) => cell.addEventListener("pointerenter", () => choose(j)));
  }

  const draw = (shown, { layer, column }) => {
    band.textContent = `What column ${column} reads in layer ${layer + 1}`;
    radios[column].checked = true;
    const lines = [
      ...matrix.map(({ cells }, i) => [cells, `matrix.${i}`, shown.matrix[i]]),
      ...reads.map(({ cells }, i) => [cells, READS[i][0], at(shown, READS[i][0])]),
    ];
    for (const [cells, path, entries] of lines) {
      cells.forEach((cell, j) => cell.replaceChildren(quantity(`${path}.${j}`, entries[j])));
    }
    for (const j of columns) {
      names[j].textContent = nameOf(shown, j);
      for (const cell of [heads[j], ...matrix.map(({ cells }) => cells[j])]) {
        cell.classList.toggle("ictd-masked", !shown.is_key[j]);
        cell.classList.toggle("ictd-chosen", j === column);
      }
      matrix[3].cells[j].classList.toggle("ictd-receives", j === column - 1 && shown.discounts[j] !== 0);
      reads[0].cells[j].style.setProperty("--ictd-share", `${100 * shown.attention[j]}%`);
    }
    reads[0].element.classList.add("ictd-shares");
  };
  return { element, draw };
}

/** In words and numbers: the update, and where it goes. */
function explain(shown, { layer, column: j }) {
  const number = (path) => quantity(path, shown[path]);
  const reader = `Column ${j} (${nameOf(shown, j)})`;
  if (shown.is_terminal[j]) return [html("p", {}, `${reader} is an end: its value is pinned to 0 and it reads nothing.`)];
  const sources = [
    `${reader} reads `, number("from_reward"), " from the rewards, ", number("from_target"),
    " from the target memories and ", number("from_current"), " from the current memories: an update of ",
    number("update"), `. Layer ${layer + 1} writes `, number("next_value"), " into its current memory",
  ];
  const passes = j > 0 && shown.discounts[j - 1] !== 0;
  const back = passes
    ? [` and, by the shift, `, number("handed_on"), ` more into the target memory of column ${j - 1}.`]
    : [j > 0 ? `; column ${j - 1} has no discounted transition to here, and gets nothing.` : "."];
  const own = shown.discounts[j] !== 0
    ? [`The target memory of column ${j} gains `, number("received"), ` from column ${j + 1} and becomes `, number("next_target"), "."]
    : [`The target memory of column ${j} gains nothing and stays `, number("next_target"), "."];
  return [html("p", {}, ...sources, ...back), html("p", {}, ...own)];
}

export default explorer({
  compute,
  build({ read, change, controls, root }) {
    const move = (by) => () => change("layer", Math.min(Math.max(read().layer + by, 0), LAYERS));
    const buttons = [["Previous layer", -1], ["Next layer", 1]].map(([text, by]) => {
      const button = html("button", { type: "button" }, text);
      button.addEventListener("click", move(by));
      return button;
    });
    const prompt = makeTable((j) => change("column", j));
    const region = { class: "ictd-scroll", role: "region", "aria-label": "Prompt matrix", tabindex: 0 };
    const [caption, checks] = [html("p"), html("p")];
    const [drawing, words] = [html("div"), html("div")];
    const order = ["layer", "heads", "seed", "beta", "step_size", "discount", "mask"];
    root.append(
      html("div", { class: "ictd-controls" }, ...order.map((name) => controls[name].element)),
      html("div", { class: "ictd-buttons" }, ...buttons),
      caption,
      html("div", region, prompt.element),
      drawing,
      words,
      checks,
    );
    return {
      summary: (shown, { layer, column }) =>
        `Layer ${layer + 1} changes the value in column ${column} by ${format(shown.update)} to ${format(shown.next_value)}.`,
      draw(shown, settings, width) {
        const { layer, mask } = settings;
        caption.textContent =
          (layer === 0 ? "The prompt, before the first layer." : `The prompt matrix after layer ${layer}.`) +
          (mask ? " Hatched columns are no keys." : " Nothing is masked: every column is a key.");
        prompt.draw(shown, settings);
        drawing.replaceChildren(drawReading(shown, settings.column, width));
        words.replaceChildren(...explain(shown, settings));
        checks.replaceChildren(
          "Largest difference between the two forms, over all layers and entries: ",
          quantity("forms_differ", shown.forms_differ),
          `. The mask is ${mask ? "on; without it" : "off; with it"} an entry of this matrix would differ by `,
          quantity("mask_matters", shown.mask_matters),
          ".",
        );
      },
    };
  },
});
