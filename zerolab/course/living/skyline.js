// Memory over time as areas, for scenes that show a recorded course: what a list of changes says at a time, and paths.

/** What a list of [from, ...] says at a time. */
function since(list, time) {
  let found = list[0];
  for (const one of list) { if (one[0] > time + 1e-6) break; found = one; }
  return found;
}

/** Values of `steps` at `times`, both in order. */
function sampled(steps, times) {
  let at = 0;
  return times.map((time) => { while (at + 1 < steps.length && steps[at + 1][0] <= time + 1e-6) at++; return steps[at][1]; });
}

/** Areas of kinds upon each other, from the lowest: [kind, path], and the path of all together as "". */
function areas(course, end, across, up) {
  const times = [...new Set(Object.values(course).flatMap((steps) => steps.map(([time]) => time)))].sort((a, b) => a - b);
  const outline = (levels) => times.flatMap((time, at) => [[time, levels[at]], [times[at + 1] ?? end, levels[at]]])
    .map(([time, bytes]) => `${across(time).toFixed(1)} ${up(bytes).toFixed(1)}`);
  const path = (low, high) => `M${[...outline(high), ...outline(low).reverse()].join("L")}Z`;
  const zero = times.map(() => 0);
  let below = zero;
  const found = Object.entries(course).map(([kind, steps]) => {
    const low = below;
    below = sampled(steps, times).map((bytes, at) => bytes + low[at]);
    return [kind, path(low, below)];
  });
  return [...found, ["", path(zero, below)]];
}

/** A unit as a letter or its number. */
function letter(unit) {
  return { embedding: "E", head: "H" }[unit] ?? unit.split(".")[1];
}
