// What all scenes share: elements, controls, and a player. It stands before each scene's own module (living/__init__.py),
// since a page mounts one file a picture and must not ask for another.

const SVG = "http://www.w3.org/2000/svg";
const SIGNS = {
  "one step back": "M5 5h3v14H5zM19 5v14L9 12z",
  play: "M6 4l14 8-14 8z",
  pause: "M6 5h4v14H6zM14 5h4v14h-4z",
  "one step on": "M16 5h3v14h-3zM5 5v14l10-7z",
};
const CALM = window.matchMedia("(prefers-reduced-motion: reduce)");

/** An element with attributes and children; names of SVG make SVG. */
function make(name, attributes = {}, ...children) {
  const isSvg = ["svg", "g", "path", "rect", "circle", "text", "line", "defs", "pattern", "marker", "title"].includes(name);
  const element = isSvg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** A choice of several values under a label; `change` hears the new one. */
function choice(label, values, value, change) {
  const options = values.map((one) => make("option", { value: one, selected: one === value }, String(one)));
  const select = make("select", { onchange: (event) => change(values[event.target.selectedIndex]) }, ...options);
  return make("label", {}, label, select);
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

/** Buttons that go through `last()` + 1 moments: back, play or pause, on. `step(at, share)` draws a moment and how much of
 *  the way to the next has passed; a reader who wants little motion sees moments only. */
function player(last, step) {
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
      const share = (now - before) / 1100;
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
  const verdict = make("p", { class: "verdict", role: "status" });
  const picture = make("div", { class: "picture", role: "img", "aria-label": label });
  const numbers = make("pre", {});
  const table = make("details", {}, make("summary", {}, "The same in numbers"), numbers);
  el.replaceChildren(make("div", { class: "zerolab-living" },
    make("div", { class: "controls" }, ...controls), make("div", { class: "shown" }, verdict, picture, table)));
  return {
    picture,
    say(said, alt, rows) {
      verdict.textContent = said;
      picture.setAttribute("aria-label", alt);
      numbers.textContent = rows;
    },
  };
}
