// The shard map: parameters as they are, end to end in a flat buffer, and cut into shards. Each piece of a parameter that one
// rank owns is a box that moves from one picture to the next; layouts are those of zerolab.flat (living/shards.py).

const WIDE = 520, LEFT = 62, ROW = 34, TOP = 30;
const PICTURES = ["parameters, one by one", "end to end in a flat buffer", "cut into shards, one for each rank"];

function render({ model, el }) {
  const data = model.get("data");
  const settings = { step: 2, ...model.get("settings") };
  textOf(data, settings);  // settings that the data lack end here, and the still picture stays
  let looks;
  const change = (name) => (value) => {
    settings[name] = value;
    if (name === "model") fill();
    model.set("settings", { ...settings });
    model.save_changes();
    play.go(settings.step);
  };
  const fill = () => {
    const names = data.models[settings.model].map(([name]) => name);
    const filled = names.map((name, at) => [name, { name, ...data.looks[at] }]);
    looks = hatched({ ...Object.fromEntries(filled), padding: { name: "padding", colour: "#fff", hatch: "xx" } });
  };
  fill();
  const play = player(() => PICTURES.length - 1, (step, share) => { settings.step = step; draw(step, share); });
  const steps = dial("picture", [0, 1, 2], settings.step, (step) => play.go(step), (step) => `${step + 1} of 3`);
  const shown = stage(el, [
    choice("parameters of", Object.keys(data.models), settings.model, change("model"), "wide"),
    dial("ranks", data.ranks, settings.ranks, change("ranks")).element,
    dial("slots start at multiples of", data.aligns, settings.align, change("align")).element,
    steps.element, play.element,
  ], "");

  function draw(step, share) {
    steps.set(step);
    const drawn = textOf(data, settings);
    shown.picture.replaceChildren(picture(data, settings, step + share, looks), legend(data, settings, looks));
    if (share === 0) shown.say(drawn.verdict, drawn.verdict, drawn.table);
  }

  play.go(settings.step);
}

// Words, those of viz/shards.py.

/** What is shown of settings, in a sentence, and its numbers as a table. */
export function textOf(data, settings, itemsize = 4) {
  const sizes = data.models[settings.model];
  const { numel, starts, shards } = data.layouts[`${settings.model} ${settings.ranks} ${settings.align}`];
  const rows = [];
  shards.forEach((pieces, rank) => {
    let padding = numel / shards.length;
    for (const [slot, start, stop] of pieces) {
      const inside = `[${start - starts[slot]}, ${stop - starts[slot]}) of ${sizes[slot][1]}`;
      rows.push([`rank ${rank}`, sizes[slot][0], inside, stop - start, (stop - start) * itemsize]);
      padding -= stop - start;
    }
    if (padding) rows.push([`rank ${rank}`, "padding", "", padding, padding * itemsize]);
  });
  const padding = numel - sizes.reduce((sum, [, size]) => sum + size, 0);
  const verdict = `${sizes.length} parameters in a flat buffer of ${count(numel)} elements, cut into ${shards.length} `
    + `shards of ${count(numel / shards.length)} elements; ${count(padding)} of all are padding.`;
  return { verdict, table: textTable(["", "parameter", "elements", "numel", "bytes"], rows) };
}

// The picture.

/** A moment: 0 to 2 are the three pictures, what lies between is on its way. */
function picture(data, settings, moment, looks) {
  const sizes = data.models[settings.model];
  const { numel, starts, shards } = data.layouts[`${settings.model} ${settings.ranks} ${settings.align}`];
  const shard = numel / shards.length, room = WIDE - LEFT - 6;
  // As high as the highest of the three, so that nothing beneath it jumps.
  const most = Math.max(shards.length, sizes.length, 3), high = TOP + ROW * most;
  const steps = [sizes.length, 2, shards.length].map((rows) => Math.min(60, (ROW * most) / rows));
  const svg = make("svg", { viewBox: `0 0 ${WIDE} ${high}`, class: "shards" }, looks.defs());
  const before = Math.min(Math.floor(moment), 1), share = moment - before;
  const between = (places) => places[before] + (places[before + 1] - places[before]) * share;
  const largest = Math.max(...sizes.map(([, size]) => size));
  // Where an element lies, [x, row] in each of the three pictures, and how wide an element is there.
  const wide = [(room * 0.55) / largest, room / numel, room / shard];
  const place = (slot, rank, at) => [[at - starts[slot], slot], [at, 0], [at - rank * shard, rank]];
  const box = (places, elements) => ({
    x: LEFT + between(places.map(([x], number) => x * wide[number])),
    y: TOP + between(places.map(([, row], number) => row * steps[number])),
    width: elements * between(wide), height: between(steps) - 10,
  });
  svg.append(make("text", { x: LEFT, y: 18, class: "start" }, PICTURES[Math.round(moment)]));
  shards.forEach((_, rank) => {
    const first = [[0, 0], [rank * shard, 0], [0, rank]];
    const ground = make("g", { opacity: Math.min(moment, 1) }, ...looks.boxes("padding", box(first, shard)));
    svg.append(ground);
  });
  shards.forEach((pieces, rank) => {
    for (const [slot, start, stop] of pieces) {
      const where = box(place(slot, rank, start), stop - start);
      svg.append(...looks.boxes(sizes[slot][0], where));
      if (where.width > 8.4 * sizes[slot][0].length + 8 && moment > 0.5) {
        svg.append(make("text", { x: where.x + where.width / 2, y: where.y + where.height / 2 + 5 }, sizes[slot][0]));
      }
    }
  });
  const middle = (number, row) => TOP + steps[number] * (row + 0.5);
  const cut = (x, { y, height }) => make("line", { x1: x, x2: x, y1: y - 5, y2: y + height + 5, class: "cut" });
  if (moment > 0 && moment < 2) {
    shards.forEach((_, rank) => {
      const at = box([[0, 0], [rank * shard, 0], [0, rank]], shard);
      svg.append(cut(at.x, at), cut(at.x + at.width, at));
      const words = at.width > 54 ? `rank ${rank}` : String(rank);
      if (moment === 1) svg.append(make("text", { x: at.x + at.width / 2, y: at.y + at.height + 18 }, words));
    });
  }
  if (moment < 0.5) {
    sizes.forEach(([name, size], slot) => svg.append(
      make("text", { x: LEFT + size * wide[0] + 8, y: middle(0, slot), class: "start" }, name)));
  }
  if (moment > 1.5) {
    shards.forEach((_, rank) => svg.append(make("text", { x: LEFT - 6, y: middle(2, rank), class: "end" }, `rank ${rank}`)));
  }
  return svg;
}

/** Each parameter, its elements and its owners. */
function legend(data, settings, looks) {
  const { shards } = data.layouts[`${settings.model} ${settings.ranks} ${settings.align}`];
  const entry = ([name, size], slot) => {
    const owners = shards.flatMap((pieces, rank) => (pieces.some(([one]) => one === slot) ? [rank] : []));
    const between = owners.length > 2 ? "to" : "and";
    const on = owners.length > 1 ? `ranks ${owners[0]} ${between} ${owners.at(-1)}` : `rank ${owners[0]}`;
    return make("li", {}, looks.swatch(name), `${name}: ${count(size)}, ${on}`);
  };
  return make("ul", { class: "legend" }, ...data.models[settings.model].map(entry), make("li", {}, looks.swatch("padding"), "padding"));
}

export default { render };
