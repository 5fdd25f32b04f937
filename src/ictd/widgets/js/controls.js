// What all explorers share: elements, controls, charts, and the life of a widget.

import { range } from "./numerics.js";

const SVG = "http://www.w3.org/2000/svg";

function make(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === undefined || value === null) continue;
    element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** An HTML element: html("p", { class: "note" }, "text", child). */
export const html = (tag, attributes = {}, ...children) =>
  make(document.createElement(tag), attributes, children);

/** An SVG element. */
export const svg = (tag, attributes = {}, ...children) =>
  make(document.createElementNS(SVG, tag), attributes, children);

/** A number for people: a true minus sign, three decimals, powers of ten where they do not fit. */
export function format(value, decimals = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  const far = size >= 1e5 || (size > 0 && size < 0.5 * 10 ** -decimals);
  return (far ? value.toExponential(2) : value.toFixed(decimals)).replaceAll("-", "−");
}

/** Text that shows the quantity at a path of `shown`, "values.3" say; the tests follow the path. */
export const quantity = (path, value, decimals = 3) =>
  html("span", { "data-shown": path }, format(value, decimals));

/** A table with heads for columns and rows. */
export function table(caption, heads, rows) {
  // An empty corner heads nothing.
  const head = (content) => (content === "" ? html("td") : html("th", { scope: "col" }, content));
  const cell = (content, i) => html(i === 0 ? "th" : "td", i === 0 ? { scope: "row" } : {}, content);
  return html(
    "table",
    {},
    html("caption", {}, caption),
    html("thead", {}, html("tr", {}, ...heads.map(head))),
    html("tbody", {}, ...rows.map((row) => html("tr", {}, ...row.map(cell)))),
  );
}

const CIVIDIS = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74",
  "#c3b369", "#e1cc55", "#fee838"];

/** The colour of a share in [0, 1], and the ink that reads best on it. */
export function shade(share) {
  const place = Math.min(Math.max(share, 0), 1) * (CIVIDIS.length - 1);
  const from = Math.min(Math.floor(place), CIVIDIS.length - 2);
  const channels = (color) => [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  const [low, high] = [channels(CIVIDIS[from]), channels(CIVIDIS[from + 1])];
  const rgb = low.map((c, i) => Math.round(c + (place - from) * (high[i] - c)));
  const linear = rgb.map((c) => (c / 255 <= 0.04045 ? c / 3294.6 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  const onBlack = (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05);
  return { color: `rgb(${rgb.join(", ")})`, ink: onBlack ? "#000000" : "#ffffff" };
}

/** One labelled native control for one setting, as Python describes it. */
function control(spec, id, change) {
  const label = html("label", { for: id }, spec.label);
  if (spec.kind === "select") {
    const options = spec.options.map(([value, text]) => html("option", { value }, text));
    const input = html("select", { id }, ...options);
    input.addEventListener("change", () => change(spec.name, input.value));
    const show = (value) => (input.value = value);
    return { element: html("div", { class: "ictd-control" }, label, input), show };
  }
  if (spec.kind === "check") {
    const input = html("input", { id, type: "checkbox" });
    input.addEventListener("change", () => change(spec.name, input.checked));
    const show = (value) => (input.checked = value);
    return { element: html("div", { class: "ictd-control ictd-check" }, input, label), show };
  }
  const [to, from] = spec.log ? [Math.log10, (x) => 10 ** x] : [(x) => x, (x) => x];
  const step = spec.log ? (to(spec.max) - to(spec.min)) / 100 : spec.step;
  const input = html("input", { id, type: "range", min: to(spec.min), max: to(spec.max), step });
  // No <output>, which is read out at every change; the slider's own text is not.
  const number = html("span", { class: "ictd-value", "aria-hidden": "true" });
  // The ends exactly, whatever the logarithm rounds to.
  const clamp = (x) => Math.min(Math.max(x, spec.min), spec.max);
  input.addEventListener("input", () => change(spec.name, clamp(from(input.valueAsNumber))));
  const show = (value) => {
    input.value = to(value);
    number.textContent = format(value, spec.decimals);
    input.setAttribute("aria-valuetext", number.textContent);
  };
  return { element: html("div", { class: "ictd-control" }, label, number, input), show };
}

/** Buttons that step through an integer setting, play it, and go back to 0. */
export function player({ name, read, change, last, period = 250, unit = "step" }) {
  let timer = null;
  const play = html("button", { type: "button" }, "Play");
  const step = html("button", { type: "button" }, `One ${unit}`);
  const reset = html("button", { type: "button" }, "Reset");
  const isDone = () => read()[name] >= last();
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  const forward = () => {
    if (!isDone()) change(name, read()[name] + 1);
    if (isDone()) stop();
  };
  step.addEventListener("click", () => {
    stop();
    forward();
  });
  reset.addEventListener("click", () => {
    stop();
    change(name, 0);
  });
  play.addEventListener("click", () => {
    if (timer !== null) return stop();
    if (isDone()) change(name, 0);
    play.textContent = "Pause";
    timer = setInterval(forward, period);
  });
  const element = html("div", { class: "ictd-buttons" }, step, play, reset);
  return { element, stop, isPlaying: () => timer !== null };
}

/** Round numbers that divide an interval into about `count` parts. */
export function ticks(low, high, count = 5) {
  const raw = (high - low) / count;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= raw);
  const first = Math.ceil(low / step - 1e-9);
  return range(Math.floor(high / step + 1e-9) - first + 1).map((i) => (first + i) * step);
}

/** Axes in an SVG: `x` and `y` map numbers to places, `element` holds the drawing.
 *
 * `xTicks` and `yTicks` are numbers; `isLog` makes the vertical axis logarithmic. Numbers outside
 * the vertical range are put on its edge.
 */
export function chart({ width, height, xRange, yRange, xTicks, yTicks, xLabel, yLabel, isLog, left = 52 }) {
  const box = { left, right: width - 12, top: 22, bottom: height - (xLabel ? 40 : 24) };
  const scale = isLog ? Math.log10 : (value) => value;
  const [low, high] = yRange.map(scale);
  const x = (value) =>
    box.left + ((value - xRange[0]) / (xRange[1] - xRange[0])) * (box.right - box.left);
  const y = (value) => {
    const share = (scale(value) - low) / (high - low);
    return box.bottom - Math.min(Math.max(share, 0), 1) * (box.bottom - box.top);
  };
  const element = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" });
  const digits = Math.max(0, ...yTicks.map((tick) => (String(+tick.toPrecision(6)).split(".")[1] ?? "").length));
  for (const tick of yTicks) {
    const place = y(tick);
    const text = isLog ? String(+tick.toPrecision(1)) : format(tick, digits);
    element.append(
      svg("line", { class: "ictd-grid", x1: box.left, x2: box.right, y1: place, y2: place }),
      svg("text", { x: box.left - 6, y: place + 4, "text-anchor": "end", class: "ictd-y-tick" }, text),
    );
  }
  for (const tick of xTicks ?? []) {
    element.append(
      svg("text", { x: x(tick), y: box.bottom + 17, "text-anchor": "middle" }, format(tick, 0)),
    );
  }
  const { left: start, right: end, bottom } = box;
  element.append(svg("line", { class: "ictd-axis", x1: start, x2: end, y1: bottom, y2: bottom }));
  if (xLabel) {
    const place = { x: (start + end) / 2, y: height - 6, "text-anchor": "middle" };
    element.append(svg("text", place, xLabel));
  }
  if (yLabel) element.append(svg("text", { x: 4, y: 12 }, yLabel));
  return { element, x, y, box };
}

/** The points of a polyline through (i, values[i]); nulls and, on logarithms, zeros leave gaps. */
export const curve = ({ x, y }, values, attributes) =>
  svg("polyline", {
    fill: "none",
    points: values
      .map((value, i) => (value === null ? "" : `${x(i).toFixed(2)},${y(value).toFixed(2)}`))
      .join(" "),
    ...attributes,
  });

let views = 0;

/** The width inside the padding, in pixels; 0 where the element is not to be seen. */
function inner(element) {
  const { paddingLeft, paddingRight } = getComputedStyle(element);
  return element.clientWidth && element.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight);
}

/** The widget of an explorer.
 *
 * `compute(settings)` gives all that is displayed. `build({ read, change, controls, root, status })`
 * makes the page's elements once and returns `{ draw(shown, settings, width), summary(shown,
 * settings), stop?, isPlaying? }`; the summary (text, or a list with elements in it) stands in
 * `status`, which screen readers read out, but not while something plays. All is drawn again
 * whenever a setting or the width changes, and `shown` is written to the trait that Python reads.
 */
export function explorer({ compute, build }) {
  return {
    render({ model, el }) {
      const names = model.get("_settings");
      const read = () => Object.fromEntries(names.map((name) => [name, model.get(name)]));
      const change = (name, value) => {
        model.set(name, value);
        model.save_changes();
      };
      const prefix = `ictd-${Math.random().toString(36).slice(2)}-${views++}`;
      const controls = Object.fromEntries(
        model.get("_controls").map((spec) => [spec.name, control(spec, `${prefix}-${spec.name}`, change)]),
      );
      const root = html("div", { class: "ictd-explorer", role: "group", "aria-label": model.get("_title") });
      const status = html("p", { class: "ictd-status", role: "status" });
      el.append(root);
      const view = build({ read, change, controls, root, status });
      if (!root.contains(status)) root.append(status);

      let isWaiting = false;
      const update = () => {
        isWaiting = false;
        const settings = read();
        const shown = compute(settings);
        for (const [name, { show }] of Object.entries(controls)) show(settings[name]);
        view.draw(shown, settings, Math.min(Math.max(inner(root) || 640, 240), 720));
        status.setAttribute("aria-live", view.isPlaying?.() ? "off" : "polite");
        status.replaceChildren(...[view.summary(shown, settings)].flat());
        model.set("shown", shown);
        model.save_changes();
      };
      // Several settings may change at once: one drawing for all of them.
      const later = () => {
        if (!isWaiting) queueMicrotask(update);
        isWaiting = true;
      };
      for (const name of names) model.on(`change:${name}`, later);
      let width = 0;
      const observer = new ResizeObserver(() => {
        if (root.clientWidth !== width) later();
        width = root.clientWidth;
      });
      observer.observe(root);
      update();
      return () => {
        observer.disconnect();
        view.stop?.();
        for (const name of names) model.off(`change:${name}`, later);
      };
    },
  };
}
