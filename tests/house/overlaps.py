"""What a page in a browser is asked: which texts lie over each other."""

OVERLAPS = """() => {
  const found = [];
  const unseen = "script, style, [aria-hidden=true], .bd-header-article, details:not([open]) > :not(summary)";
  const walk = document.createTreeWalker(document.querySelector("main") ?? document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode, above = node.parentElement;
    if (!node.data.trim() || above.closest(unseen)) continue;
    if (!above.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) {
      let { left, right, top, bottom } = box;
      for (let up = above; up; up = up.parentElement) {
        const look = getComputedStyle(up);
        if (look.overflowX === "visible" && look.overflowY === "visible") continue;
        const room = up.getBoundingClientRect();
        left = Math.max(left, room.left); right = Math.min(right, room.right);
        top = Math.max(top, room.top); bottom = Math.min(bottom, room.bottom);
      }
      const slack = (bottom - top) * 0.2;
      if (right - left < 1 || bottom - top < 1) continue;
      found.push([left + 1, right - 1, top + slack, bottom - slack, node.data.trim().slice(0, 40)]);
    }
  }
  found.sort((one, other) => one[2] - other[2]);
  const over = [];
  for (let i = 0; i < found.length; i++)
    for (let j = i + 1; j < found.length && found[j][2] < found[i][3]; j++)
      if (found[j][0] < found[i][1] && found[i][0] < found[j][1]) over.push(found[i][4] + " | " + found[j][4]);
  return over;
}"""
"""JavaScript for `page.evaluate`: for each two texts that overlap as they are seen, cut off where their surroundings
scroll, "one | other". Letters do not fill the height of their line, so a fifth of it is left out above and below."""
STRUCK = """scene => {
  const found = [];
  for (const svg of scene.querySelectorAll(".picture svg")) {
    const seen = (one) => getComputedStyle(one).display !== "none" && one.getBoundingClientRect().height > 0;
    const texts = [...svg.querySelectorAll("text")].filter(seen).map((one) => {
      const { left, right, top, bottom } = one.getBoundingClientRect(), slack = (bottom - top) * 0.25;
      return { one, left, right, top: top + slack, bottom: bottom - slack };
    });
    const meets = (a, b, apart = 0) =>
      a.left < b.right + apart && b.left < a.right + apart && a.top < b.bottom && b.top < a.bottom;
    texts.forEach((a, at) => texts.slice(at + 1).forEach((b) => {
      if (meets(a, b)) found.push(`${a.one.textContent} | ${b.one.textContent}`);
    }));
    const strokes = [...svg.querySelectorAll("path[stroke-dasharray]")].flatMap((line) => {
      const [dx, dy, whole] = [line.getScreenCTM().e, line.getScreenCTM().f, line.getTotalLength()];
      const scale = line.getScreenCTM().a, dots = [];
      for (let at = 0; at <= whole; at += 1) {
        const { x, y } = line.getPointAtLength(at);
        const [across, down] = [dx + scale * x, dy + scale * y];
        dots.push({ left: across, right: across, top: down - 0.5, bottom: down + 0.5 });
      }
      return dots;
    });
    for (const a of texts) {
      if (strokes.some((dot) => meets(a, dot))) found.push(`${a.one.textContent} is crossed by a line`);
    }
    for (const ground of svg.querySelectorAll('rect[fill="black"]')) {
      for (const a of texts) {
        if (a.one.getAttribute("fill") !== "white" && meets(a, ground.getBoundingClientRect(), 1)) {
          found.push(`${a.one.textContent} touches a black ground`);
        }
      }
    }
  }
  return [...new Set(found)];
}"""
"""JavaScript for a scene's `evaluate`: which words of its picture lie over each other, are crossed by a line that
divides the picture, or touch the black ground of others."""
