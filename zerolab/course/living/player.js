// Plays recorded drawings (viz/drawing.py): controls choose a film, buttons go through its stops, and what has the same name
// in two frames moves from one place to the other. It computes nothing: what a picture shows and says was drawn in Python.
// A page mounts it as anywidget does: `scene` in the model has controls, styles and films; where `asks` is set there, a kernel
// answers settings without a film with one in `answer`.

const SVG = "http://www.w3.org/2000/svg";
const SHAPES = { rect: "rect", disc: "circle", line: "path", area: "path", text: "text" };
const PLACES = { rect: ["x", "y", "width", "height"], disc: ["cx", "cy", "r"], text: ["x", "y"] };
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
const STALE = "The picture below is that of the settings before.";
const WAIT = "The kernel draws this setting ...";

/** An element with attributes and children; names of SVG make SVG. */
function make(name, attributes = {}, ...children) {
  const isSvg = ["svg", "g", "path", "rect", "circle", "text", "defs", "pattern"].includes(name);
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

// Controls: an element, and how to set it without a call of `change`.

/** A choice of several values under a label. */
function choice(label, values, value, change) {
  const options = values.map((one) => make("option", { selected: one === value }, String(one)));
  const select = make("select", { onchange: () => change(values[select.selectedIndex]) }, ...options);
  return { element: make("label", {}, label, select), set: (next) => { select.selectedIndex = values.indexOf(next); } };
}

/** A slider over a list of numbers under a label that says its value. */
function dial(label, values, value, change) {
  // No <output>: a label names the first control in it, and that would be one.
  const said = make("b", { "aria-hidden": "true" });
  const input = make("input", { type: "range", min: 0, step: 1, oninput: () => { show(); change(values[input.value]); } });
  const show = () => {
    said.textContent = values[input.value].toLocaleString("en");
    input.setAttribute("aria-valuetext", said.textContent);
  };
  const set = (next, others = values) => {
    values = others;
    input.max = values.length - 1;
    input.value = values.indexOf(next);
    input.disabled = values.length < 2;
    show();
  };
  set(value);
  return { element: make("label", {}, make("span", {}, label, " ", said), input), set };
}

/** A box to tick, before its label. */
function check(label, _, value, change) {
  const box = make("input", { type: "checkbox", checked: value, onchange: () => change(box.checked) });
  return { element: make("label", { class: "check" }, box, label), set: (next) => { box.checked = next; } };
}

function control({ label, values }, value, change) {
  const kind = typeof values[0] === "boolean" ? check : values.every((one) => typeof one === "number") ? dial : choice;
  return kind(label, values, value, change);
}

// Films.

/** The frames of a film, each with all of its marks; those of several layers lie upon each other. */
function unrolled(films) {
  const layers = films.map(({ frames }) => {
    let marks = new Map(), before;
    return frames.map(([millis, words, act, changed, gone]) => {
      marks = new Map(marks);
      gone.forEach((name) => marks.delete(name));
      changed.forEach(([name, ...mark]) => marks.set(name, mark));
      before = words || before;
      return { millis, words: before, act, marks };
    });
  });
  if (layers.length === 1) return layers[0];
  const firsts = layers.map(([first]) => first);
  const words = [0, 1, 2].map((at) => firsts.map((one) => one.words[at]).filter(Boolean).join(" "));
  return [{ ...firsts[0], words, marks: new Map(firsts.flatMap((one) => [...one.marks])) }];
}

let canvases = 0;

/** An SVG that shows frames: marks that stay are kept, and moved. */
function canvas([width, height], styles) {
  const mine = `zerolab-${canvases += 1}`;
  const pattern = ([name, d], at) => make("pattern", { id: `${mine}-${at}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
    make("path", { d, fill: "none", stroke: "#444", "stroke-width": 0.7 }));
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}` }, make("defs", {}, ...Object.entries(HATCHES).map(pattern)));
  const drawn = new Map();
  const place = (element, shape, at) => {
    if (shape in PLACES) PLACES[shape].forEach((name, number) => element.setAttribute(name, at[number]));
    else element.setAttribute("d", `M${at.join(" ")}${shape === "area" ? "Z" : ""}`);
  };
  const attributes = ({ fill = "none", line = "none", width: wide = 0.6, dash = [], opacity = 1, size = 15, anchor = "middle", bold, halo = 0 }, shape) =>
    (shape === "text"
      ? { fill, "font-size": size, "text-anchor": anchor, "font-weight": bold ? "bold" : false, ...(halo && { stroke: "#fff", "stroke-width": halo, "paint-order": "stroke" }) }
      : { fill: shape === "line" ? "none" : fill, stroke: line, "stroke-width": wide, "stroke-dasharray": dash.length ? dash.join(" ") : false, "fill-opacity": opacity });
  const begin = ([shape, , number, text = ""]) => {
    const style = styles[number], hatch = Object.keys(HATCHES).indexOf(style.hatch?.slice(0, 2));
    const element = make(SHAPES[shape], attributes(style, shape), text);
    const parts = hatch < 0 ? [element] : [element, make(SHAPES[shape], { fill: `url(#${mine}-${hatch})` })];
    svg.append(...parts);
    return parts;
  };
  const show = ({ marks }, next, share) => {
    for (const [name, { parts }] of drawn) if (!marks.has(name)) { parts.forEach((one) => one.remove()); drawn.delete(name); }
    for (const [name, mark] of marks) {
      const [shape, at, number, text] = mark, to = share ? next.marks.get(name)?.[1] : undefined;
      const now = to?.length === at.length ? at.map((one, place) => one + share * (to[place] - one)) : at;
      let known = drawn.get(name);
      if (known && (known.number !== number || known.text !== text)) {
        const parts = begin(mark);
        known.parts[0].before(...parts);
        known.parts.forEach((one) => one.remove());
        known = undefined;
        drawn.set(name, { parts, number, text });
      } else if (!known) drawn.set(name, { parts: begin(mark), number, text });
      known = drawn.get(name);
      if (String(known.at) !== String(now)) known.parts.forEach((one) => place(one, shape, now));
      known.at = now;
    }
  };
  return { svg, show };
}

// The page.

/** Buttons that go through stops: back, play or pause, on. */
function buttons(go) {
  const sign = (name) => make("svg", { viewBox: "0 0 24 24" }, make("path", { d: SIGNS[name] }));
  const button = (name, onclick) => make("button", { type: "button", "aria-label": name, onclick }, sign(name));
  const play = button("play", () => go("play"));
  const mark = (name) => { play.replaceChildren(sign(name)); play.setAttribute("aria-label", name); };
  return { element: make("span", {}, button("one step back", () => go(-1)), play, button("one step on", () => go(1))), mark };
}

function render({ model, el }) {
  const scene = model.get("scene");
  const settings = { ...model.get("settings") };
  const { stop } = scene;
  found();  // throws where nothing is known of the settings, so that what stood here stays
  let film, picture, at = 0, playing = 0, began = 0;

  const verdict = make("p", { class: "verdict", role: "status" });  // stays in sight while the page scrolls under it
  const shown = make("div", { class: "picture", role: "img" });
  const numbers = make("pre", {});
  const controls = scene.controls.filter(({ values }) => values.length > 1).map((one) => (
    { name: one.name, ...control(one, settings[one.name], (value) => { settings[one.name] = value; tell(); choose(); }) }));
  const steps = stop && dial(stop.label, [0], 0, (number) => { pause(); go(stops()[number]); });
  const keys = stop && buttons((what) => {
    if (what === "play") return playing ? pause() : start();
    pause();
    return go(stops()[Math.max(0, Math.min(settings[stop.name] + what, stops().length - 1))]);
  });
  const parts = [...controls, ...(stop ? [steps, keys] : [])].map((one) => one.element);
  el.replaceChildren(make("div", { class: "zerolab-living" }, verdict, make("div", { class: "controls" }, ...parts),
    make("div", { class: "shown" }, shown, make("details", {}, make("summary", {}, "The same in numbers"), numbers),
      ...(scene.about ? [make("p", { class: "about" }, scene.about)] : []))));

  const tell = () => { model.set("settings", { ...settings }); model.save_changes(); };
  /** Another view of the same widget, or the kernel, has set it. */
  const hear = () => {
    if (JSON.stringify(model.get("settings")) === JSON.stringify(settings)) return;
    Object.assign(settings, model.get("settings"));
    controls.forEach((one) => one.set(settings[one.name]));
    at = -1;  // its stop counts, and not our act
    choose();
  };
  const stops = () => film.flatMap((frame, number) => (frame.words.length ? [number] : []));
  let wide = 0, high = 0;
  const say = (words) => {
    if (verdict.textContent === words) return;
    verdict.textContent = words;
    // A verdict takes as much room as the longest so far, so that nothing below moves up and down while a scene plays.
    if (verdict.offsetWidth !== wide) { wide = verdict.offsetWidth; high = 0; verdict.style.minHeight = ""; }
    if (verdict.offsetHeight > high) { high = verdict.offsetHeight; verdict.style.minHeight = `${high}px`; }
  };

  /** What is recorded of the settings, layer by layer; undefined where the kernel has yet to say. */
  function found() {
    const answer = model.get("answer");
    const names = scene.layers.map((layer) => JSON.stringify(layer.map((name) => settings[name])));
    if (scene.asks) return answer.name === names.join() ? answer : undefined;
    const films = names.map((name, layer) => {
      const one = scene.films[layer][name];
      return typeof one === "string" ? scene.films[layer][one] : one;
    });
    const refused = films.find((one) => one.refused)?.refused;
    return refused ? { refused } : { films, styles: scene.styles };
  }

  /** The film of the settings. */
  function choose() {
    pause();
    const now = found();
    shown.classList.toggle("stale", !now?.films);
    if (!now?.films) return say(now ? `${now.refused}. ${picture ? STALE : ""}` : WAIT);
    const act = film?.[at]?.act;
    film = unrolled(now.films);
    picture = canvas(now.films[0].size, now.styles);
    shown.replaceChildren(picture.svg);
    if (!stop) return go(0);
    steps.set(0, stops().map((_, number) => number));
    // The same act of another film, else the same stop.
    const same = stops().find((number) => act && film[number].act === act);
    return go(same ?? stops()[Math.min(settings[stop.name], stops().length - 1)]);
  }

  /** Show a frame, or a share of the way to the next. */
  function go(number, share = 0) {
    if (!found()?.films) return;
    at = number;
    picture.show(film[at], film[at + 1], share);
    const { words: [said, alt, table] } = film[at];
    if (share || !said) return;
    say(said);
    shown.setAttribute("aria-label", alt);
    numbers.textContent = table;
    if (!stop) return;
    settings[stop.name] = stops().indexOf(at);
    steps.set(settings[stop.name]);
    if (!playing) tell();
  }

  function start() {
    if (!found()?.films) return;
    if (at >= film.length - 1) go(0);
    keys.mark("pause");
    began = 0;
    playing = requestAnimationFrame(tick);
  }

  function tick(now) {
    began ||= now;
    while (at < film.length - 1 && now - began >= film[at].millis) {
      began += film[at].millis;
      if (film[at += 1].words.length || !CALM.matches) go(at);
    }
    if (at >= film.length - 1) return pause();
    if (!CALM.matches) go(at, (now - began) / film[at].millis);
    playing = requestAnimationFrame(tick);
    return undefined;
  }

  function pause() {
    cancelAnimationFrame(playing);
    if (!playing) return;
    playing = 0;
    keys.mark("play");
    tell();
  }

  model.on?.("change:answer", choose);
  model.on?.("change:settings", hear);
  choose();
}

export default { render };
