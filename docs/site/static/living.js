// Mounts each scene of a page when it comes near the window: gives the player the `model` and `el` that anywidget would.

const base = new URL("living/", import.meta.url);

async function mount(el) {
  const [{ default: player }, scene] = await Promise.all([
    import(new URL("player.js", base)),
    fetch(new URL(`${el.dataset.scene}.json`, base)).then((answer) => answer.json()),
  ]);
  const values = { scene, settings: JSON.parse(el.dataset.settings), answer: {} };
  player.render({ model: { get: (name) => values[name], set: () => {}, save_changes: () => {} }, el });
}

const near = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    near.unobserve(target);
    // The still picture stays where the scene cannot be had.
    mount(target).catch((error) => console.error(`the scene ${target.dataset.scene} did not start: ${error}`));
  }
}, { rootMargin: "600px" });
document.querySelectorAll("[data-scene]").forEach((el) => near.observe(el));
