// Resharding: ranks that load a checkpoint read the parts that they need, each in the colour of whose files it comes from.
// Rank after rank its parts move down from where they were saved; who reads what is the planner's (living/reshard.py).

const WIDE = 520, LEFT = 92, ROW = 34, BOX = 24, SAVED = 50, TOP = 104;

function render({ model, el }) {
  const data = model.get("data");
  const settings = { ...model.get("settings") };
  textOf(data, settings);  // settings that the data lack end here, and the still picture stays
  settings.step ??= settings.loaded_by;
  const writers = data.looks.map((look, at) => [`rank ${at}`, { name: `rank ${at}`, ...look }]);
  const plain = [["padding", { name: "padding", colour: "#fff", hatch: "xx" }], ["parameter", { name: "", colour: "#fff", hatch: "" }]];
  const looks = hatched(Object.fromEntries([...writers, ...plain]));
  const change = (name) => (value) => {
    const all = settings.step === settings.loaded_by;
    settings[name] = value;
    if (all || settings.step > settings.loaded_by) settings.step = settings.loaded_by;
    model.set("settings", { ...settings });
    model.save_changes();
    play.go(settings.step);
  };
  const play = player(() => settings.loaded_by, (step, share) => { settings.step = step; draw(step, share); });
  const steps = slider("ranks that have read", 0, settings.loaded_by, settings.step, (step) => play.go(step));
  const shown = stage(el, [
    choice("parameters of", Object.keys(data.models), settings.model, change("model"), "wide"),
    dial("ranks that saved", data.ranks, settings.saved_by, change("saved_by")).element,
    dial("ranks that load", data.ranks, settings.loaded_by, change("loaded_by")).element,
    dial("stage that loads", [0, 1, 2, 3], settings.stage, change("stage")).element,
    steps.element, play.element,
  ], "");

  function draw(step, share) {
    steps.set(step, settings.loaded_by);
    const drawn = textOf(data, settings);
    shown.picture.replaceChildren(picture(data, settings, step + share, looks));
    if (share === 0) shown.say(drawn.verdict, drawn.alt, drawn.table);
  }

  play.go(settings.step);
}

/** What each rank reads: rank, parameter, its elements, whose files, and where it lies. At stage 0 each reads all. */
function readings(data, { model, saved_by, loaded_by, stage: at }) {
  if (at) return data.own[`${model} ${saved_by} ${loaded_by}`];
  const ranks = [...Array(loaded_by).keys()];
  return ranks.flatMap((rank) => data.whole[`${model} ${saved_by}`].map((one) => [rank, ...one]));
}

// Words, those of viz/reshard.py.

const ranksOf = (many) => `${many} rank${many === 1 ? "" : "s"}`;

function filesOf(writers) {
  const last = writers.at(-1);
  if (!writers.length) return "no files";
  return writers.length > 1 ? `the files of ranks ${writers.slice(0, -1).join(", ")} and ${last}` : `the files of rank ${last}`;
}

/** What is shown of settings: a sentence, the same for who does not see it, and a table. */
export function textOf(data, settings) {
  const { saved_by: saved, loaded_by: loaded, stage: at } = settings;
  const found = readings(data, settings), names = data.models[settings.model];
  const each = [...Array(loaded).keys()].map((rank) => found.filter((one) => one[0] === rank));
  const totals = each.map((parts) => parts.reduce((sum, [, , start, stop]) => sum + data.nbytes * (stop - start), 0));
  const writers = each.map((parts) => [...new Set(parts.map((one) => one[4]))].sort((a, b) => a - b));
  const all = totals.reduce((sum, one) => sum + one, 0);
  const verdict = `Saved by ${ranksOf(saved)}, loaded by ${ranksOf(loaded)} at stage ${at}: a rank reads at most `
    + `${count(Math.max(...totals))} bytes, from the files of at most ${ranksOf(Math.max(...writers.map((one) => one.length)))}; `
    + `all together ${count(all)}.`;
  const said = totals.map((bytes, rank) => `rank ${rank} reads ${count(bytes)} bytes from ${filesOf(writers[rank])}`);
  const alt = loaded > 4 ? verdict : `A checkpoint of ${ranksOf(saved)}, read by ${ranksOf(loaded)}: ${said.join("; ")}.`;
  const table = textTable(["read by", "elements", "from", "bytes"], found.map(([rank, parameter, start, stop, writer]) => [
    `rank ${rank}`, `${names[parameter][0]} [${start}, ${stop})`, `rank ${writer}`, count(data.nbytes * (stop - start)),
  ]));
  return { verdict, alt, table };
}

// The picture.

/** The flat buffer three times: its parameters, who saved what, and a row for each rank that loads. `moment` ranks have read. */
function picture(data, settings, moment, looks) {
  const before = data.layouts[`${settings.model} ${settings.saved_by}`];
  const after = data.layouts[`${settings.model} ${settings.loaded_by}`];
  const names = data.models[settings.model];
  const room = WIDE - LEFT - 6, scale = room / Math.max(before.numel, after.numel);
  const x = (at) => LEFT + at * scale;
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${TOP + ROW * settings.loaded_by + 4}`, class: "reshard" }, looks.defs());
  const label = (y, words) => svg.append(make("text", { x: LEFT - 6, y: y + 17, class: "end" }, words));
  const box = (kind, first, last, y, words, wide = 8.4) => {
    svg.append(...looks.boxes(kind, { x: x(first), y, width: (last - first) * scale, height: BOX }));
    if (words && (last - first) * scale > wide * words.length + 8) {
      svg.append(make("text", { x: x((first + last) / 2), y: y + 17 }, words));
    }
  };
  label(8, "parameters");
  names.forEach(([name, size], slot) => box("parameter", before.starts[slot], before.starts[slot] + size, 8, name));
  label(SAVED, "saved by");
  const shard = before.numel / before.shards.length;
  before.shards.forEach((pieces, writer) => {
    box("padding", writer * shard, (writer + 1) * shard, SAVED);
    for (const [, start, stop] of pieces) box(`rank ${writer}`, start, stop, SAVED);
    const used = pieces.length ? pieces.at(-1)[2] : writer * shard;
    const words = [`rank ${writer}`, `${writer}`].find((one) => (used - writer * shard) * scale > 8.4 * one.length + 4);
    if (words) svg.append(make("text", { x: x((writer * shard + used) / 2), y: SAVED + 17 }, words));
  });
  svg.append(make("line", { x1: 0, x2: WIDE, y1: TOP - 15, y2: TOP - 15, class: "axis" }));
  for (let rank = 0; rank < settings.loaded_by; rank += 1) label(TOP + ROW * rank, `rank ${rank} reads`);
  for (const [rank, , , , writer, first, last] of readings(data, settings)) {
    const way = Math.max(0, Math.min(1, moment - rank));
    if (!way) continue;
    const y = SAVED + (TOP + ROW * rank - SAVED) * way;
    const words = [`from rank ${writer}`, `${writer}`].find((one) => (last - first) * scale > 7.4 * one.length + 6);
    box(`rank ${writer}`, first, last, y, words, 0);
  }
  return svg;
}

export default { render };
