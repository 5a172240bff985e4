// What all scenes share: elements, controls, and a player. It stands before each scene's own module (living/__init__.py),
// since a page mounts one file a picture and must not ask for another.

const SVG = "http://www.w3.org/2000/svg";
const SIGNS = {
  "one step back": "M5 5h3v14H5zM19 5v14L9 12z",
  play: "M6 4l14 8-14 8z",
  pause: "M6 5h4v14H6zM14 5h4v14h-4z",
  "one step on": "M16 5h3v14h-3zM5 5v14l10-7z",
};
const CALM = globalThis.matchMedia?.("(prefers-reduced-motion: reduce)") ?? { matches: true };
// What matplotlib calls each hatch, as lines on a tile of 8 x 8 dots.
const HATCHES = {
  "//": "M-2 2L2-2M0 8L8 0M6 10L10 6", "\\\\": "M-2 6L2 10M0 0L8 8M6-2L10 2", xx: "M0 0L8 8M8 0L0 8", "++": "M4 0V8M0 4H8",
  "--": "M0 4H8", "..": "M3.4 4a.6.6 0 1 0 1.2 0a.6.6 0 1 0-1.2 0", oo: "M1.5 4a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0",
  "**": "M4 1V7M1.4 2.5L6.6 5.5M1.4 5.5L6.6 2.5",
};
let looked = 0;

/** An element with attributes and children; names of SVG make SVG. */
function make(name, attributes = {}, ...children) {
  const isSvg = ["svg", "g", "path", "rect", "circle", "text", "line", "defs", "pattern", "marker", "title"].includes(name);
  const element = isSvg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  // In JupyterLab the arrow keys belong to the notebook, unless what has the focus says that it needs them itself.
  if (["input", "select", "button", "summary"].includes(name)) element.setAttribute("data-lm-suppress-shortcuts", "true");
  element.append(...children);
  return element;
}

/** A choice of several values under a label; `change` hears the new one. Where columns are narrow, a `width` of "wide" takes two. */
function choice(label, values, value, change, width = "") {
  const options = values.map((one) => make("option", { value: one, selected: one === value }, String(one)));
  const select = make("select", { onchange: (event) => change(values[event.target.selectedIndex]) }, ...options);
  return make("label", { class: width || false }, label, select);
}

/** One of a few values under a label, all of them in sight; `change` hears the new one. */
function radios(label, values, value, change, names = values) {
  const group = `radios-${radios.count = (radios.count ?? 0) + 1}-${Math.random().toString(36).slice(2)}`;
  const inputs = values.map((one) => make("input", { type: "radio", name: group, checked: one === value, onchange: () => change(one) }));
  const rows = inputs.map((input, at) => make("label", { class: "radio" }, input, String(names[at])));
  return make("fieldset", {}, make("legend", {}, label), make("span", {}, ...rows));
}

/** A slider over whole numbers under a label that says its value; `set` moves it without a call of `change`. */
function slider(label, low, high, value, change) {
  // No <output>: a label names the first control in it, and that would be one.
  const said = make("b", { "aria-hidden": "true" }, String(value));
  const input = make("input", { type: "range", min: low, max: high, step: 1, value });
  const show = () => { said.textContent = input.value; };
  input.addEventListener("input", () => { show(); change(Number(input.value)); });
  const set = (next, most = high) => { input.max = most; input.value = next; show(); };
  return { element: make("label", {}, make("span", {}, label, " ", said), input), set };
}

/** A slider over a list of values; `set` moves it, to one of another list if there is one. `words` says a value. */
function dial(label, values, value, change, words = String) {
  const said = make("b", { "aria-hidden": "true" });
  const input = make("input", { type: "range", min: 0, step: 1 });
  const show = () => {
    said.textContent = words(values[input.value]);
    input.setAttribute("aria-valuetext", said.textContent);
  };
  const set = (next, others = values) => {
    values = others;
    input.max = values.length - 1;
    input.value = values.indexOf(next);
    input.disabled = values.length < 2;
    show();
  };
  input.addEventListener("input", () => { show(); change(values[input.value]); });
  set(value);
  return { element: make("label", {}, make("span", {}, label, " ", said), input), set };
}

/** A box to tick, before its label. */
function check(label, value, change) {
  const box = make("input", { type: "checkbox", checked: value, onchange: (event) => change(event.target.checked) });
  return make("label", { class: "check" }, box, label);
}

/** How kinds are filled, in colour and hatch: `looks` has by kind its name, colour and hatch. An SVG takes `defs()` once. */
function hatched(looks) {
  looked += 1;
  const name = (kind) => `zerolab-${looked}-${Object.keys(looks).indexOf(kind)}`;
  const pattern = ([kind, { hatch }]) => make("pattern",
    { id: name(kind), width: 8, height: 8, patternUnits: "userSpaceOnUse" }, make("path", { d: HATCHES[hatch], class: "hatch" }));
  const defs = () => make("defs", {}, ...Object.entries(looks).filter(([, look]) => look.hatch).map(pattern));
  const boxes = (kind, place) => [
    make("rect", { ...place, fill: looks[kind].colour, class: "filled" }),
    ...(looks[kind].hatch ? [make("rect", { ...place, fill: `url(#${name(kind)})` })] : []),
  ];
  const layer = (kind, d) => [
    make("path", { d, fill: looks[kind].colour }),
    ...(looks[kind].hatch ? [make("path", { d, fill: `url(#${name(kind)})`, class: "faint" })] : []),
  ];
  const swatch = (kind) => make("svg", { viewBox: "0 0 20 16", class: "swatch" },
    ...boxes(kind, { x: 1, y: 1, width: 18, height: 14 }));
  return { defs, boxes, layer, swatch };
}

/** A whole number with commas. */
function count(value) {
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

/** Three significant figures, as viz/picture.py has them. */
function figures(value) {
  return Math.abs(value) >= 100 ? count(value.toFixed(0)) : String(Number(value.toPrecision(3)));
}

/** Rows as aligned text, as viz/picture.py has it. */
function textTable(head, rows) {
  const widths = head.map((_, column) => Math.max(...[head, ...rows].map((row) => String(row[column]).length)));
  const cell = (text, column) => (column ? String(text).padStart(widths[column]) : String(text).padEnd(widths[0]));
  return [head, ...rows].map((row) => row.map(cell).join("  ").trimEnd()).join("\n");
}

/** Buttons that go through `last()` + 1 moments: back, play or pause, on. `step(at, share)` draws a moment and how much of
 *  the way to the next has passed; a reader who wants little motion sees moments only. `millis(at)` is how long the way to
 *  the next moment takes. */
function player(last, step, millis = () => 1100) {
  let at = 0, playing = false, asked = 0;
  const sign = (name) => make("svg", { viewBox: "0 0 24 24" }, make("path", { d: SIGNS[name] }));
  const button = (name, onclick) => make("button", { type: "button", "aria-label": name, onclick }, sign(name));
  const play = button("play", () => (playing ? pause() : start()));
  const mark = (name) => { play.replaceChildren(sign(name)); play.setAttribute("aria-label", name); };
  const pause = () => { playing = false; cancelAnimationFrame(asked); mark("play"); };
  const go = (next, share = 0) => { at = Math.max(0, Math.min(next, last())); step(at, share); };
  const start = () => {
    if (at >= last()) go(0);
    playing = true;
    mark("pause");
    let before;
    const tick = (now) => {
      before ??= now;
      const share = (now - before) / millis(at);
      if (share >= 1) { before = now; go(at + 1); } else if (!CALM.matches) step(at, share);
      if (at >= last()) pause();
      if (playing) asked = requestAnimationFrame(tick);
    };
    asked = requestAnimationFrame(tick);
  };
  const buttons = make("span", { class: "player" },
    button("one step back", () => { pause(); go(at - 1); }), play,
    button("one step on", () => { pause(); go(at + 1); }));
  return { element: buttons, go: (next) => { pause(); go(next); } };
}

/** The frame of a scene: controls, a verdict that is read out, the picture, and the same in numbers. */
function stage(el, controls, label) {
  const verdict = make("p", { class: "verdict", role: "status" });  // stays in sight while the page scrolls under it
  const picture = make("div", { class: "picture", role: "img", "aria-label": label });
  const numbers = make("pre", {});
  const table = make("details", {}, make("summary", {}, "The same in numbers"), numbers);
  el.replaceChildren(make("div", { class: "zerolab-living" }, verdict,
    make("div", { class: "controls" }, ...controls), make("div", { class: "shown" }, picture, table)));
  let wide = 0, high = 0;
  // A verdict takes as much room as the longest so far, so that nothing below moves up and down while a scene plays.
  const settle = () => {
    if (verdict.offsetWidth !== wide) { wide = verdict.offsetWidth; high = 0; verdict.style.minHeight = ""; }
    if (verdict.offsetHeight > high) { high = verdict.offsetHeight; verdict.style.minHeight = `${high}px`; }
  };
  return {
    picture,
    say(said, alt, rows) {
      if (verdict.textContent !== said) { verdict.textContent = said; settle(); }
      picture.setAttribute("aria-label", alt);
      numbers.textContent = rows;
    },
  };
}
