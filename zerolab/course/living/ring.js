// A ring collective: ranks on a circle, what each holds of each chunk, and messages on their way. It replays a film that
// the library's own ring made (living/ring.py); nothing is computed here but places.

const SIZE = 520, MIDDLE = SIZE / 2, RADIUS = 196;
const WORDS = [
  "a box: a chunk of the tensor;", "its height: how many ranks are", "added in it; thick frame: all of them",
  "a disc: a chunk on its way,", "with that number",
];

function render({ model, el }) {
  const data = model.get("data");
  const settings = { ...model.get("settings") };
  const film = () => data.films[`${settings.collective} ${settings.ranks}`];
  const change = (name) => (value) => {
    settings[name] = value;
    settings.step = Math.min(settings.step, film().length - 1);
    model.set("settings", { ...settings });
    model.save_changes();
    draw(settings.step, 0);
  };
  const steps = slider("steps done", 0, film().length - 1, settings.step, (step) => play.go(step));
  const play = player(() => film().length - 1, (step, share) => { settings.step = step; draw(step, share); });
  const counts = [...new Set(Object.keys(data.films).map((name) => Number(name.split(" ")[1])))];
  const ranks = slider("ranks", Math.min(...counts), Math.max(...counts), settings.ranks, (value) => { play.go(0); change("ranks")(value); });
  const kinds = choice("collective", data.collectives, settings.collective, (value) => { play.go(0); change("collective")(value); });
  const shown = stage(el, [kinds, ranks.element, steps.element, play.element], "");

  function draw(step, share) {
    const moment = film()[step];
    steps.set(step, film().length - 1);
    shown.picture.replaceChildren(picture(moment, settings.ranks, share, data.colours));
    if (share === 0) shown.say(moment.verdict, moment.alt, moment.table);
  }

  play.go(settings.step);
}

/** Where a rank stands, rank 0 at the top and the others clockwise; fractions lie on the way between two. */
function place(rank, ranks) {
  const angle = (2 * Math.PI * rank) / ranks - Math.PI / 2;
  return [MIDDLE + RADIUS * Math.cos(angle), MIDDLE + RADIUS * Math.sin(angle)];
}

function picture(moment, ranks, share, colours) {
  const cell = ranks > 5 ? 17 : 24, wide = cell * ranks;
  const svg = make("svg", { viewBox: `0 0 ${SIZE} ${SIZE}`, class: "ring" });
  svg.append(make("circle", { cx: MIDDLE, cy: MIDDLE, r: RADIUS, class: "way" }));
  WORDS.forEach((words, at) => svg.append(make("text", { x: MIDDLE, y: MIDDLE + 20 * at - 32 + (at > 2 ? 8 : 0) }, words)));
  const leaving = new Set(moment.messages.map((message) => `${message.src} ${message.chunk}`));
  moment.held.forEach((row, rank) => {
    const [x, y] = place(rank, ranks);
    const box = make("g", { transform: `translate(${x - wide / 2} ${y - cell / 2 - 8})` });
    box.append(make("rect", { x: -5, y: -19, width: wide + 10, height: cell + 25, rx: 6, class: "room" }));
    box.append(make("text", { x: wide / 2, y: -5, class: "name" }, `rank ${rank}`));
    row.forEach((summands, chunk) => {
      box.append(make("rect", { x: chunk * cell + 1, width: cell - 2, height: cell, class: "empty" }));
      const high = (cell * summands) / ranks;
      box.append(make("rect", {
        x: chunk * cell + 1, y: cell - high, width: cell - 2, height: high, fill: colours[chunk],
        class: summands === ranks ? "whole" : leaving.has(`${rank} ${chunk}`) ? "leaving" : "part",
      }));
    });
    svg.append(box);
  });
  for (const message of moment.messages) {
    const hops = (message.dst - message.src + ranks) % ranks;
    const [x, y] = place(message.src + hops * (0.3 + 0.4 * share), ranks);
    const box = make("g", { transform: `translate(${x} ${y})` });
    box.append(make("circle", { r: 15, fill: colours[message.chunk], class: "message" }));
    box.append(make("text", { y: 4, class: "count" }, `${message.summands}`));
    svg.append(box);
  }
  return svg;
}

export default { render };
