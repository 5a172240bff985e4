// One training step at stages 0 to 3 on four ranks. It replays what an engine recorded (living/stages.py): when which slice
// of a unit's states was there, each message, the memory of rank 0. Nothing is computed here but places and sums.

const WIDE = 400, ROOM = 88;
const BANDS = { parameters: [56, 7], gradients: [102, 7], optimizer_states: [148, 14] };
const NAMES = { parameters: "parameters", gradients: "gradients", optimizer_states: "optimizer states" };
const PLOT = { left: 34, right: 318, top: 232, bottom: 330 }, WIRE = { left: 352, right: 382 };
const MOST_MICROS = 1900, MOST_BYTES = 4e6, MOST_SENT = 2e6, MICROS_A_SECOND = 110;
const AWAY = 0, LOOK = ["away", "kept", "here", "new"];

function render({ model, el }) {
  const data = model.get("data");
  const settings = { ...model.get("settings") };
  const run = () => data.stages[settings.stage];
  const last = () => run().moments.length - 1;
  let drawn;
  const show = (at, share) => {
    const { moments } = run();
    settings.moment = at;
    steps.set(at, last());
    const until = share === 0 ? moments[at].time : moments[at].time + share * (moments[at + 1].time - moments[at].time);
    drawn.at(until);
    if (share === 0) shown.say(moments[at].verdict, moments[at].alt, moments[at].table);
  };
  const play = player(last, show, (at) => (run().moments[at + 1].time - run().moments[at].time) * 1000 / MICROS_A_SECOND);
  const steps = slider("moment", 0, last(), settings.moment, (at) => play.go(at));
  const choose = (stage) => {
    const before = run().moments[settings.moment];
    const share = before.time / run().seconds;
    settings.stage = stage;
    // The same act of the step, or what comes nearest.
    const same = run().moments.findIndex((moment) => moment.does === before.does && before.does !== "no rank computes");
    const near = run().moments.map((moment) => Math.abs(moment.time / run().seconds - share));
    draw();
    play.go(same >= 0 ? same : near.indexOf(Math.min(...near)));
    model.set("settings", { ...settings });
    model.save_changes();
  };
  const shown = stage(el, [radios("stage", data.stages.map((_, number) => number), settings.stage, choose), steps.element, play.element], "");
  el.querySelector(".verdict").classList.add("long");
  const draw = () => { drawn = picture(data, settings.stage); shown.picture.replaceChildren(drawn.svg); };
  draw();
  play.go(settings.moment);
}

function picture(data, number) {
  const run = data.stages[number], ranks = 4;
  const svg = make("svg", { viewBox: `0 0 ${WIDE} 442`, class: "step" });
  const { defs, boxes, layer } = hatched(data.looks);
  svg.append(defs());
  const add = (name, attributes, ...children) => svg.appendChild(make(name, attributes, ...children));
  const all = Object.values(run.units).reduce((sum, bytes) => sum + bytes, 0);
  const widths = {}, lefts = {};
  let left = 0;
  for (const [unit, bytes] of Object.entries(run.units)) {
    widths[unit] = (ROOM * bytes) / all;
    lefts[unit] = left;
    left += widths[unit];
  }
  const column = (rank, unit) => 6 + 100 * rank + lefts[unit];
  const row = (band, chunk) => BANDS[band][0] + BANDS[band][1] * chunk;
  for (const [band, name] of Object.entries(NAMES)) add("text", { x: 6, y: BANDS[band][0] - 4, class: "start" }, name);
  const works = [];
  for (let rank = 0; rank < ranks; rank++) {
    add("rect", { x: 2 + 100 * rank, y: 16, width: 96, height: 192, rx: 5, class: "box" });
    add("text", { x: 50 + 100 * rank, y: 12 }, `rank ${rank}`);
    // A narrow unit's letter stands apart from its neighbour's black ground, and has one as wide as itself.
    const middles = Object.keys(run.units).map((unit, at, { length }) =>
      column(rank, unit) + widths[unit] / 2 + (at === 0 ? -1.5 : at === length - 1 ? 1.5 : 0));
    const grounds = Object.keys(run.units).map((unit, at) => {
      const width = Math.max(widths[unit] - 4, 11);
      return add("rect", { x: middles[at] - width / 2, y: 22, width, height: 15, rx: 2, fill: "none" });
    });
    for (const [at, unit] of Object.keys(run.units).entries()) {
      const ground = grounds[at];
      const sign = add("text", { x: middles[at], y: 34 }, letter(unit));
      works.push([unit, ground, sign]);
    }
  }
  const slices = run.slices.map(([band, rank, unit, chunk, states]) => {
    const rect = add("rect", { x: column(rank, unit), y: row(band, chunk), width: widths[unit] - 0.6, height: BANDS[band][1] - 0.6 });
    return { rect, states, was: "" };
  });
  const flying = [];
  const air = make("g", {});
  const across = (time) => PLOT.left + ((PLOT.right - PLOT.left) * time) / MOST_MICROS;
  const up = (bytes) => PLOT.bottom - ((PLOT.bottom - PLOT.top) * bytes) / MOST_BYTES;
  add("path", { d: areas(data.stages[0].course, data.stages[0].seconds, across, up).at(-1)[1], class: "ghost" });
  for (const [kind, d] of areas(run.course, run.seconds, across, up)) if (kind) svg.append(...layer(kind, d));
  const later = add("rect", { y: PLOT.top, height: PLOT.bottom - PLOT.top, class: "later" });
  const now = add("line", { y1: PLOT.top - 4, y2: PLOT.bottom, class: "now" });
  axes(add, across, up);
  const bars = Object.keys(sent(run, Infinity)).map((name) => {
    const kind = name === "all_gather" ? "gathered_units" : "gradient_buffers";
    return [name, add("rect", { x: WIRE.left, width: WIRE.right - WIRE.left, fill: data.looks[kind].colour })];
  });
  legend(svg, add, boxes, data);
  svg.append(air);
  return { svg, at };

  function at(time) {
    for (const slice of slices) {
      const [, state, kind] = since(slice.states, time);
      if (slice.was === `${state}${kind}`) continue;
      slice.was = `${state}${kind}`;
      slice.rect.setAttribute("class", `slice ${LOOK[state]}`);
      if (state === AWAY) slice.rect.removeAttribute("fill"); else slice.rect.setAttribute("fill", data.looks[kind].colour);
    }
    const span = run.spans.find(([, start, stop]) => start <= time + 1.5 && time + 1.5 < stop);
    const [does, unit] = span ? span[0].split(" ") : ["", ""];
    for (const [name, ground, sign] of works) {
      const busy = name === unit || does === "update";
      ground.setAttribute("class", busy ? "at-work" : "");
      sign.setAttribute("class", busy ? "worked" : "");
    }
    run.messages.forEach(([call, src, dst, chunk, , start, stop], at) => {
      const flies = start <= time && time < stop;
      if (!flies) { flying[at]?.remove(); flying[at] = null; return; }
      const [name, whose] = run.calls[call];
      const band = name === "all_gather" ? "parameters" : "gradients";
      if (!flying[at]) {
        const kind = name === "all_gather" ? "gathered_units" : "gradient_buffers";
        flying[at] = air.appendChild(make("rect", { width: widths[whose], height: 7, class: "sent", fill: data.looks[kind].colour }));
      }
      const share = (time - start) / (stop - start), smooth = share * share * (3 - 2 * share);
      const x = column(src, whose) + smooth * (column(dst, whose) - column(src, whose));
      flying[at].setAttribute("x", x);
      flying[at].setAttribute("y", row(band, chunk) - (dst < src ? 14 : 5) * Math.sin(Math.PI * smooth));
    });
    later.setAttribute("x", across(time));
    later.setAttribute("width", Math.max(0, across(run.seconds) - across(time)));
    now.setAttribute("x1", across(time));
    now.setAttribute("x2", across(time));
    let base = PLOT.bottom;
    const counts = sent(run, time);
    for (const [name, bar] of bars) {
      const high = ((PLOT.bottom - PLOT.top) * counts[name]) / MOST_SENT;
      bar.setAttribute("y", base - high);
      bar.setAttribute("height", high);
      base -= high;
    }
  }
}

/** Bytes of rank 0 by collective in messages that have arrived. */
function sent(run, time) {
  const found = Object.fromEntries(run.calls.map(([name]) => [name, 0]));
  for (const [call, src, , , bytes, , stop] of run.messages) if (src === 0 && stop <= time + 1e-6) found[run.calls[call][0]] += bytes;
  return found;
}

function axes(add, across, up) {
  add("path", { d: `M${PLOT.left} ${PLOT.top}V${PLOT.bottom}H${PLOT.right}`, class: "axis" });
  add("path", { d: `M${WIRE.left - 4} ${PLOT.top}V${PLOT.bottom}H${WIRE.right + 4}`, class: "axis" });
  add("text", { x: 2, y: PLOT.top - 6, class: "start" }, "MB held by rank 0; grey: stage 0");
  add("text", { x: WIDE - 2, y: PLOT.top - 6, class: "end" }, "MB sent");
  for (let bytes = 0; bytes <= MOST_BYTES; bytes += 1e6) add("text", { x: PLOT.left - 4, y: up(bytes) + 4, class: "end" }, bytes / 1e6);
  for (let bytes = 0; bytes <= MOST_SENT; bytes += 1e6) {
    const y = PLOT.bottom - ((PLOT.bottom - PLOT.top) * bytes) / MOST_SENT;
    add("text", { x: WIRE.left - 8, y: y + 4, class: "end" }, bytes / 1e6);
  }
  for (let time = 0; time < MOST_MICROS; time += 500) add("text", { x: across(time), y: PLOT.bottom + 13 }, time === 1500 ? "1500 µs" : time);
}

function legend(svg, add, boxes, data) {
  const used = Object.keys(data.looks).filter((kind) => data.stages.some(({ course }) => course[kind]));
  used.forEach((kind, at) => {
    const x = [6, 116, 246][at % 3], y = PLOT.bottom + 22 + 14 * Math.floor(at / 3);
    svg.append(...boxes(kind, { x, y, width: 12, height: 10 }));
    add("text", { x: x + 16, y: y + 9, class: "start" }, data.looks[kind].name);
  });
  add("text", { x: 6, y: PLOT.bottom + 76, class: "start" }, "a column: a unit (E embedding, 0 to 2 blocks, H head); a row: a quarter");
  add("text", { x: 6, y: PLOT.bottom + 91, class: "start" }, "pale: memory that waits for values; black frame: final values of this step");
  add("text", { x: 6, y: PLOT.bottom + 106, class: "start" }, "white frame: on its way to the next rank; pale curve: still to come");
}

export default { render };
