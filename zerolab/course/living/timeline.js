// One training step on rank 0: what it computes above what it sends, and its memory beneath, for each setting. It replays
// recorded runs (living/timeline.py); both axes stay put, so that settings can be compared.

const WIDE = 400, PLOT = { left: 30, right: 394, top: 132, bottom: 240 };
const ROWS = { compute: [34, 20], wire: [84, 20] };
const WIRES = { all_gather: "gathered_units", reduce_scatter: "gradient_buffers", all_reduce: "gradient_buffers" };

function render({ model, el }) {
  const data = model.get("data");
  const settings = { overlap: true, offload: false, ...model.get("settings") };
  const change = (name) => (value) => {
    settings[name] = value;
    model.set("settings", { ...settings });
    model.save_changes();
    draw();
  };
  const boxes = {
    prefetch: check("gather ahead (stage 3)", settings.prefetch, change("prefetch")),
    overlap: check("reduce during backward", settings.overlap, change("overlap")),
    offload: check("optimizer on the host (1 to 3)", settings.offload, change("offload")),
  };
  const stages = radios("stage", [0, 1, 2, 3], settings.stage, change("stage"));
  const shown = stage(el, [stages, ...Object.values(boxes)], "");
  el.querySelector(".verdict").classList.add("long");
  const draw = () => {
    boxes.prefetch.querySelector("input").disabled = settings.stage < 3;
    boxes.offload.querySelector("input").disabled = settings.stage === 0;
    const run = data.runs[keyOf(settings)];
    shown.picture.replaceChildren(picture(data, run));
    shown.say(run.verdict, run.alt, run.table);
  };
  draw();
}

/** As living/timeline.py calls a setting. */
function keyOf({ stage, overlap, prefetch, offload }) {
  const words = [overlap && "overlap", prefetch && stage === 3 && "prefetch", offload && stage > 0 && "offload"];
  return [stage, ...words.filter(Boolean)].join(" ");
}

function picture(data, run) {
  const svg = make("svg", { viewBox: `0 0 ${WIDE} 334`, class: "step" });
  const add = (name, attributes, ...children) => svg.appendChild(make(name, attributes, ...children));
  const { defs, boxes, layer } = hatched({
    ...data.looks,
    forward: { colour: "#fff", hatch: "" }, backward: { colour: "#fff", hatch: "//" }, update: { colour: "#fff", hatch: "xx" },
    all_reduce: { colour: data.looks.gradient_buffers.colour, hatch: "oo" },
  });
  svg.append(defs());
  const mostMicros = Math.ceil(data.most.micros / 100) * 100, mostBytes = Math.ceil(data.most.bytes / 1e6) * 1e6;
  const across = (time) => PLOT.left + ((PLOT.right - PLOT.left) * time) / mostMicros;
  const up = (bytes) => PLOT.bottom - ((PLOT.bottom - PLOT.top) * bytes) / mostBytes;

  add("path", { d: areas(data.runs["0 overlap"].course, data.runs["0 overlap"].seconds, across, up).at(-1)[1], class: "ghost" });
  for (const [kind, d] of areas(run.course, run.seconds, across, up)) if (kind) svg.append(...layer(kind, d));

  const backward = run.compute.find(([name]) => name.startsWith("backward"))[1];
  const update = run.compute.find(([name]) => name === "update")[1];
  for (const [name, from, to] of [["forward", 0, backward], ["backward", backward, update], ["update", update, run.seconds]]) {
    // Only where no words stand: beside its own name, across both rows, across the memory.
    const parts = [...(from ? [[4, 16]] : []), ...Object.values(ROWS).map(([y, height]) => [y - 3, y + height + 2]), [PLOT.top, PLOT.bottom]];
    const d = parts.map(([top, bottom]) => `M${across(from)} ${top}V${bottom}`).join("");
    add("path", { d, class: "divider" });
    add("text", { x: across(from) + (from ? 3 : -4), y: 13, class: "start" }, name);
  }
  const beneath = {};
  const box = (row, kind, start, stop, label, title) => {
    const [y, height] = ROWS[row], x = across(start), width = Math.max(0.8, across(stop) - x);
    const group = svg.appendChild(make("g", {}, make("title", {}, title), ...boxes(kind, { x, y, width, height })));
    if (!label) return undefined;
    const middle = x + width / 2, before = beneath[row];
    if (width >= (label < "A" ? 9 : 12)) return group.append(make("text", { x: middle, y: y + 14, class: "on" }, label));
    // Beneath its box; where forward meets backward, two boxes of one unit share a letter.
    const shared = before && before.label === label && middle - before.middle < 12;
    if (shared) return before.sign.setAttribute("x", (before.middle + middle) / 2);
    const sign = group.appendChild(make("text", { x: middle, y: y + height + 11 }, label));
    beneath[row] = { label, middle, sign };
    return sign;
  };
  add("text", { x: 2, y: ROWS.compute[0] - 5, class: "start" }, "rank 0 computes");
  add("text", { x: 2, y: ROWS.wire[0] - 5, class: "start" }, "and sends");
  // A unit's letter stands at its widest box: others of the same name are short pieces of it.
  const widest = {};
  for (const [name, start, stop] of run.compute) widest[name] = Math.max(widest[name] ?? 0, stop - start);
  for (const [name, start, stop] of run.compute) {
    const [way, unit] = name.split(" ");
    if (stop - start < 5 && way !== "forward" || way === "compute") continue;
    box("compute", way, start, stop, way === "update" || unit === "loss" || stop - start < widest[name] ? "" : letter(unit), `${name}, ${start} to ${stop} µs`);
  }
  for (const [name, unit, start, stop] of run.wire) {
    box("wire", name === "all_reduce" ? name : WIRES[name], start, stop, letter(unit), `${name} of ${unit}, ${start} to ${stop} µs`);
  }

  add("path", { d: `M${PLOT.left} ${PLOT.top}V${PLOT.bottom}H${PLOT.right}`, class: "axis" });
  add("text", { x: 2, y: PLOT.top - 7, class: "start" }, "MB on rank 0; grey: stage 0");
  for (let bytes = 0; bytes <= mostBytes; bytes += 1e6) add("text", { x: PLOT.left - 4, y: up(bytes) + 4, class: "end" }, bytes / 1e6);
  for (let time = 0; time <= mostMicros; time += 500) add("text", { x: across(time), y: PLOT.bottom + 13 }, time === 2000 ? "2000 µs" : time);
  const [time, bytes] = run.peak;
  add("circle", { cx: across(time), cy: up(bytes), r: 3 });

  const used = Object.keys(data.looks).filter((kind) => Object.values(data.runs).some(({ course }) => course[kind]));
  const also = { gathered_units: ", all_gather", gradient_buffers: ", reduce_scatter" };
  [...used, "all_reduce"].forEach((kind, at) => {
    const x = 6 + 200 * (at % 2), y = PLOT.bottom + 22 + 14 * Math.floor(at / 2);
    svg.append(...boxes(kind, { x, y, width: 14, height: 10 }));
    add("text", { x: x + 19, y: y + 9, class: "start" }, (data.looks[kind]?.name ?? kind) + (also[kind] ?? ""));
  });
  add("text", { x: 206, y: PLOT.bottom + 87, class: "start" }, "E embedding, H head; dot: the peak");
  return svg;
}

export default { render };
