// The memory calculator: what one rank needs at each stage, against a GPU's memory. Its numbers are looked up in the table
// that the planner computed (living/memory.py); its words are those of the still picture (viz/calculator.py). Where a kernel
// listens (`data.asks`), there are controls for more than the table has, and Python adds what is missing to it.

const GB = 1e9, WIDE = 520, LEFT = 8, RIGHT = 14, ROW = 56, BAR = 26;
const WAITING = "The planner computes this model ...";

function render({ model, el }) {
  let data = model.get("data");
  const settings = { ...model.get("settings") };
  if (!data.asks) textOf(data, settings);  // settings that the table lacks end here, and the still picture stays
  const looks = hatched(data.looks);
  let drawn;
  const change = (name) => (value) => {
    settings[name] = value;
    const { tokens, layers, width } = data.models[settings.model];
    if (!tokens.includes(settings.seq_len)) settings.seq_len = tokens.at(-1);
    lengths.set(settings.seq_len, tokens);
    if (data.asks && name === "model" && layers) {
      Object.assign(settings, { layers, width });
      own.forEach((one) => one.set(settings[one.name]));
    }
    model.set("settings", { ...settings });
    model.save_changes();
    draw();
  };
  const size = (name) => (value) => {
    settings.model = data.own;
    models.querySelector("select").value = data.own;
    change(name)(value);
  };
  const models = choice("model", Object.keys(data.models), settings.model, change("model"));
  const lengths = dial("tokens of a sequence", data.models[settings.model].tokens, settings.seq_len, change("seq_len"));
  const own = !data.asks ? [] : [
    { name: "layers", ...dial("layers", data.layers, settings.layers, size("layers")) },
    { name: "width", ...dial("width", data.widths, settings.width, size("width")) },
  ];
  const controls = [
    models, ...own.map((one) => one.element),
    choice("memory of a GPU", Object.keys(data.gpus), settings.gpu, change("gpu")),
    dial("ranks", data.ranks, settings.ranks, change("ranks"), count).element,
    dial("stage", [0, 1, 2, 3], settings.stage, change("stage")).element,
    choice("precision", Object.keys(data.precisions), settings.precision, change("precision")),
    choice("on the host", data.offloads, settings.offload, change("offload")),
    ...(data.asks ? [dial("sequences a rank", data.batches, settings.micro_batch_size, change("micro_batch_size")).element] : []),
    lengths.element,
    check("recompute activations", settings.checkpoint_activations, change("checkpoint_activations")),
  ];
  const shown = stage(el, controls, "");

  function draw() {
    const refusal = data.refusals[`${settings.precision} ${settings.stage} ${settings.offload}`];
    const asked = data.asks && !has(data, settings);
    if (!refusal && !asked) drawn = textOf(data, settings);
    if (!asked) drawn ??= textOf(data, { ...settings, stage: 3 });
    shown.picture.classList.toggle("stale", Boolean(refusal || asked));
    if (!drawn) return shown.say(WAITING, WAITING, "");
    shown.picture.replaceChildren(bars(data, drawn, looks), legend(data, drawn, looks));
    const verdict = refusal ? `${refusal}. The picture below is that of the settings before.` : drawn.verdict;
    return shown.say(asked && !refusal ? WAITING : verdict, drawn.alt, drawn.table);
  }

  model.on?.("change:data", () => { data = model.get("data"); draw(); });
  draw();
}

// Numbers.

/** What a model is called: a known one by its name, one of the reader's own by its size. */
function nameOf(data, { model, layers, width }) {
  return model === data.own ? `${layers} layers of width ${width}` : model;
}

/** The table of a model, a batch and a precision, if there is one. */
function tableOf(data, settings, batch = settings.micro_batch_size ?? 1) {
  const precision = data.same[settings.precision] ?? settings.precision;
  return data.tables[`${nameOf(data, settings)} ${settings.seq_len} ${precision}${batch > 1 ? ` ${batch}` : ""}`];
}

/** Whether all is there that words and picture need: a batch of one may be what makes it fit. */
function has(data, settings) {
  return Boolean(tableOf(data, settings) && tableOf(data, settings, 1));
}

/** The bytes of one rank by kind, at the peak of a step; at a lower stage than 3 whole parameters stay on the GPU. */
function needs(data, settings, at) {
  const precision = data.same[settings.precision] ?? settings.precision;
  const table = tableOf(data, settings);
  const host = at < 3 && settings.offload === data.offloads.at(-1) ? data.offloads[1] : settings.offload;
  const places = data.places.filter((place) => data.precisions[precision].includes(Number(place.at(-1))));
  const row = data.ranks.indexOf(settings.ranks) * 2 + Number(settings.checkpoint_activations);
  const place = places.indexOf(`${host} ${at}`);
  if (!table || row < 0 || place < 0) throw new Error(`the table has no ${JSON.stringify(settings)}`);
  return Object.fromEntries(data.kinds.map((kind, number) => {
    const [values, letters] = table[number];
    return [kind, letters ? values[data.letters.indexOf(letters[row * places.length + place])] : values[0]];
  }));
}

/** What a GPU holds: all kinds but the host's. */
function total(book) {
  return Object.entries(book).reduce((sum, [kind, bytes]) => (kind === "host" ? sum : sum + bytes), 0);
}

/** The settings with the smallest change that makes a run fit, in the order of zerolab.apps.plan.footprint.changes. */
function advice(data, settings, limit) {
  const stages = data.precisions[settings.precision].filter((at) => at >= settings.stage);
  const hosts = settings.offload === data.offloads[0] ? data.offloads.slice(0, 2) : [settings.offload];
  for (const ranks of data.ranks.filter((one) => one >= settings.ranks)) {
    for (const offload of hosts) {
      for (const micro_batch_size of new Set([settings.micro_batch_size ?? 1, 1])) {
        for (const checkpoint_activations of new Set([settings.checkpoint_activations, true])) {
          for (const at of stages) {
            const changed = { ...settings, ranks, offload, micro_batch_size, checkpoint_activations, stage: at };
            const bytes = total(needs(data, changed, at));
            if (bytes <= limit) return { changed, bytes };
          }
        }
      }
    }
  }
  return undefined;
}

function verdictOf(data, settings, bytes) {
  const found = advice(data, settings, data.gpus[settings.gpu] * GB);
  const gigabytes = (value) => `${(value / GB).toFixed(1)} GB`;
  const { changed } = found ?? {};
  const said = !changed ? [] : [
    [changed.stage !== settings.stage, `stage ${changed.stage}`],
    [changed.checkpoint_activations !== settings.checkpoint_activations, "activation checkpointing"],
    [changed.micro_batch_size !== (settings.micro_batch_size ?? 1), `a batch of ${changed.micro_batch_size} a rank`],
    [changed.offload !== settings.offload, "the optimizer on the host"],
    [changed.ranks !== settings.ranks, `${changed.ranks} ranks`],
  ].filter(([so]) => so).map(([, words]) => words);
  if (changed && !said.length) return `Stage ${settings.stage} fits into a GPU of ${settings.gpu}: ${gigabytes(bytes)}.`;
  const short = `Stage ${settings.stage} needs ${gigabytes(bytes)}, more than a GPU of ${settings.gpu} has`;
  if (!found) return `${short}, and no stage on up to ${data.ranks.at(-1)} ranks makes it fit.`;
  return `${short}; it fits with ${said.join(" and ")}: ${gigabytes(found.bytes)}.`;
}

/** All that is shown of settings, in the words of the still picture. */
export function textOf(data, settings) {
  const stages = data.precisions[settings.precision];
  const books = stages.map((at) => needs(data, settings, at));
  const totals = books.map(total);
  const kinds = Object.keys(data.looks).filter((kind) => books.some((book) => book[kind]));
  const row = (name, values) => [name, ...values.map((bytes) => (bytes / GB).toFixed(2))];
  const table = textTable(["GB a rank", ...stages.map((at) => `stage ${at}`)], [
    ...kinds.map((kind) => row(data.looks[kind].name, books.map((book) => book[kind]))),
    row("one GPU", totals),
    row("host", books.map((book) => book.host)),
    row("all GPUs", totals.map((bytes) => bytes * settings.ranks)),
  ]);
  const mine = totals[stages.indexOf(settings.stage)];
  const verdict = verdictOf(data, settings, mine);
  const needed = totals.map((bytes, at) => `${figures(bytes / GB)} GB at stage ${stages[at]}`).join(", ");
  const alt = `What one of ${settings.ranks} ranks needs for ${nameOf(data, settings)}: ${needed}. ${verdict}`;
  return { settings: { ...settings }, stages, books, totals, kinds, verdict, alt, table };
}

// The picture.

/** A bar for each stage, on an axis that stays as it is while little changes. */
function bars(data, drawn, looks) {
  const { settings, stages, books, totals, kinds } = drawn;
  const limit = data.gpus[settings.gpu] * GB;
  const most = ceiling(Math.max(limit * 1.1, ...totals));
  const x = (bytes) => LEFT + (bytes / most) * (WIDE - LEFT - RIGHT);
  const low = 26 + ROW * stages.length;
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${low + 62}`, class: "memory" }, looks.defs());
  const wall = x(limit);
  for (const [y1, y2] of [[low - 8, low + 4], [low + 30, low + 50]]) {  // the axis has its numbers between
    svg.append(make("line", { x1: wall, x2: wall, y1, y2, class: "wall" }));
  }
  const size = `${figures(data.sizes[nameOf(data, settings)] / GB)} billion parameters`;
  svg.append(make("text", { x: LEFT, y: 16, class: "start" }, `${nameOf(data, settings)}, ${size}, ${count(settings.ranks)} ranks`));
  stages.forEach((at, number) => {
    const top = 30 + ROW * number;
    let done = 0;
    for (const kind of kinds) {
      const bytes = books[number][kind];
      const place = { x: x(done), y: top + 21, width: x(done + bytes) - x(done), height: BAR };
      if (bytes) svg.append(...looks.boxes(kind, place));
      done += bytes;
    }
    svg.append(make("line", { x1: wall, x2: wall, y1: top + 17, y2: top + 51, class: "wall" }));
    const mine = at === settings.stage;
    const fits = totals[number] <= limit ? "fits" : "does not fit";
    const words = `stage ${at}${mine ? " (yours)" : ""}: ${figures(totals[number] / GB)} GB, ${fits}`;
    if (mine) svg.append(make("path", { d: `M${LEFT} ${top + 15}v-13l9 6.5z`, class: "mark" }));
    svg.append(make("text", { x: LEFT + (mine ? 14 : 0), y: top + 14, class: mine ? "start mine" : "start" }, words));
  });
  svg.append(make("line", { x1: LEFT, x2: WIDE - RIGHT, y1: low + 4, y2: low + 4, class: "axis" }));
  for (let tick = 0; tick <= 4; tick += 1) {
    const place = x((most * tick) / 4);
    svg.append(make("line", { x1: place, x2: place, y1: low + 4, y2: low + 9, class: "axis" }));
    const side = tick === 0 ? "start" : tick === 4 ? "end" : "middle";
    svg.append(make("text", { x: place, y: low + 24, class: side }, `${figures((most * tick) / 4 / GB)}${tick ? "" : " GB"}`));
  }
  const side = wall < WIDE / 2 ? "start" : "end";
  svg.append(make("text", { x: wall + (side === "start" ? 5 : -5), y: low + 46, class: side }, `a GPU of ${settings.gpu}`));
  return svg;
}

/** What the colours mean, with the bytes of the stage that is chosen. */
function legend(data, drawn, looks) {
  const { settings, stages, books, kinds } = drawn;
  const book = books[stages.indexOf(settings.stage)];
  const entry = (kind) => make("li", {}, looks.swatch(kind), `${data.looks[kind].name}: ${(book[kind] / GB).toFixed(2)} GB`);
  const host = book.host ? [make("li", {}, `on the host: ${(book.host / GB).toFixed(2)} GB`)] : [];
  return make("ul", { class: "legend" }, ...kinds.map(entry), ...host);
}

/** The next of 1, 2, 4, 8 times a power of ten. */
function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 8, 10].map((one) => one * power).find((one) => one >= value);
}

export default { render };
