// The kernel: states in the plane, and how much each learns from each.

import { dot, matrix, maxAbs, normalized, softmax } from "./numerics.js";
import { explorer, format, html, quantity, shade, svg } from "./controls.js";

const METRICS = { identity: [1, 1], anisotropic: [1, 4], indefinite: [1, -1] };
const PRESETS = {
  "Tabular limit": { score: "gaussian", metric: "identity", bandwidth: 0.1 },
  Softmax: { score: "dot", metric: "identity", bandwidth: 0.7 },
  "Linear limit": { score: "dot", metric: "identity", bandwidth: 10 },
};

/** Everything that is displayed. */
export function compute({ positions, score, metric, bandwidth, weights, selected }) {
  const m = positions.length;
  const square = (x, y) => METRICS[metric].reduce((total, w, i) => total + w * x[i] * y[i], 0);
  const g = matrix(m, m, (s, u) => {
    const [a, b] = [positions[s], positions[u]];
    const apart = [a[0] - b[0], a[1] - b[1]];
    const form = score === "dot" ? square(a, b) : -square(apart, apart) / 2;
    return form / bandwidth ** 2;
  });
  const visits = positions.map((_, s) => (weights === "equal" ? 1 : s + 1));
  const share = normalized(visits);
  const attention = g.map((row) => softmax(row.map((entry, u) => entry + Math.log(visits[u]))));
  const linear = g.map((row) => row.map((entry, u) => share[u] * (1 + entry - dot(share, row))));
  const distance = (other) =>
    maxAbs(attention.flatMap((row, s) => row.map((entry, u) => entry - other(s, u))));
  const chosen = Math.min(selected, m - 1);
  const diagonal = attention.map((row, s) => row[s]);
  return {
    attention,
    weights: share,
    selected: chosen,
    diagonality: diagonal,
    least_diagonality: Math.min(...diagonal),
    from_tabular: distance((s, u) => (s === u ? 1 : 0)),
    from_linear: distance((s, u) => linear[s][u]),
    from_constant: distance((s, u) => share[u]),
  };
}

const REACH = 1.6; // of the plane, in each direction

/** The axes, a line from the chosen state to each other, and discs as large as its attention. */
function drawPlane({ attention, selected }, { positions }, side) {
  const at = (x) => ((x + REACH) / (2 * REACH)) * side;
  const drawing = svg("svg", { width: side, height: side, viewBox: `0 0 ${side} ${side}`, role: "img" });
  const middle = side / 2;
  drawing.append(
    svg("line", { class: "ictd-axis", x1: 0, x2: side, y1: middle, y2: middle }),
    svg("line", { class: "ictd-axis", x1: middle, x2: middle, y1: 0, y2: side }),
    svg("circle", { class: "ictd-axis", cx: middle, cy: middle, r: at(1) - middle, fill: "none", "stroke-dasharray": "2 4" }),
  );
  const [x, y] = positions[selected];
  positions.forEach(([px, py], u) => {
    const weight = attention[selected][u];
    const place = { cx: at(px), cy: side - at(py) };
    drawing.append(
      svg("line", {
        x1: at(x), y1: side - at(y), x2: place.cx, y2: place.cy, stroke: "var(--ictd-blue)", "stroke-width": 8 * weight,
      }),
      svg("circle", { ...place, r: 14 + 26 * Math.sqrt(weight), fill: "var(--ictd-blue)", "fill-opacity": 0.25 }),
    );
  });
  const shares = attention[selected].map((weight, u) => `${format(weight, 2)} to state ${u}`);
  drawing.setAttribute("aria-label", `Attention of state ${selected}: ${shares.join(", ")}.`);
  return { drawing, at };
}

/** A button for each state, over the plane: choose it, drag it, or move it with the arrow keys. */
function stateButtons(count, read, change) {
  const clamp = (x) => Math.min(Math.max(Math.round(100 * x) / 100, -1.5), 1.5);
  const move = (s, place) =>
    change("positions", read().positions.map((old, u) => (u === s ? place.map(clamp) : old)));
  const KEYS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  return Array.from({ length: count }, (_, s) => {
    const button = html("button", { type: "button", class: "ictd-state" }, String(s));
    button.addEventListener("click", () => change("selected", s));
    button.addEventListener("keydown", (event) => {
      if (!(event.key in KEYS)) return;
      event.preventDefault();
      const size = event.shiftKey ? 0.2 : 0.05;
      move(s, read().positions[s].map((x, i) => x + size * KEYS[event.key][i]));
    });
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      change("selected", s);
    });
    button.addEventListener("pointermove", (event) => {
      if (!button.hasPointerCapture(event.pointerId)) return;
      const box = button.parentElement.getBoundingClientRect();
      const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
      move(s, [(2 * x - 1) * REACH, (1 - 2 * y) * REACH]);
    });
    return button;
  });
}

/** The whole matrix, with its numbers. */
function heatMap({ attention, weights, selected }) {
  const head = (content, scope) => html("th", { scope }, content);
  const row = (entries, s) =>
    html(
      "tr",
      { class: s === selected ? "ictd-chosen" : false },
      head(String(s), "row"),
      ...entries.map((weight, u) => {
        const { color, ink } = shade(weight);
        const style = `background: ${color}; color: ${ink}`;
        return html("td", { style }, quantity(`attention.${s}.${u}`, weight, 2));
      }),
    );
  const share = weights.map((weight, u) => html("td", {}, quantity(`weights.${u}`, weight, 2)));
  return html(
    "table",
    { class: "ictd-heat" },
    html("caption", {}, "Attention: the row attends, the column is attended to"),
    html("thead", {}, html("tr", {}, html("td"), ...attention.map((_, u) => head(String(u), "col")))),
    html("tbody", {}, ...attention.map(row)),
    html("tfoot", {}, html("tr", {}, head("share", "row"), ...share)),
  );
}

export default explorer({
  compute,
  build({ read, change, controls, root, status }) {
    const presets = Object.entries(PRESETS).map(([name, settings]) => {
      const button = html("button", { type: "button" }, name);
      button.addEventListener("click", () => Object.entries(settings).forEach((pair) => change(...pair)));
      return button;
    });
    const plane = html("div", { class: "ictd-plane" });
    const map = html("div");
    root.append(
      html("div", { class: "ictd-controls" }, ...Object.values(controls).map(({ element }) => element)),
      html("div", { class: "ictd-buttons" }, ...presets),
      status,
      html("p", {}, "Choose a state; drag it, or move it with the arrow keys (with Shift: farther)."),
      html("div", { class: "ictd-beside" }, plane, map),
    );
    let buttons = []; // kept from one drawing to the next, and with them the focus
    return {
      summary: ({ selected, attention, least_diagonality: least, from_tabular, from_linear, from_constant }) => [
        `State ${selected} attends to itself with `,
        quantity(`attention.${selected}.${selected}`, attention[selected][selected]),
        "; the least that a state gives itself is ",
        quantity("least_diagonality", least),
        ". Largest difference from a table: ",
        quantity("from_tabular", from_tabular),
        ", from the linear limit: ",
        quantity("from_linear", from_linear),
        ", from equal treatment: ",
        quantity("from_constant", from_constant),
        ".",
      ],
      draw(shown, settings, width) {
        const { positions } = settings;
        const side = Math.min(width, 320);
        const { drawing, at } = drawPlane(shown, settings, side);
        if (buttons.length !== positions.length) {
          buttons = stateButtons(positions.length, read, change);
          plane.replaceChildren(drawing, ...buttons);
        } else plane.firstElementChild.replaceWith(drawing);
        plane.style.width = `${side}px`;
        positions.forEach(([x, y], s) => {
          buttons[s].style.left = `${at(x)}px`;
          buttons[s].style.top = `${side - at(y)}px`;
          buttons[s].setAttribute("aria-pressed", s === shown.selected);
          buttons[s].setAttribute("aria-label", `State ${s} at ${format(x, 2)}, ${format(y, 2)}`);
        });
        map.replaceChildren(heatMap(shown));
      },
    };
  },
});
