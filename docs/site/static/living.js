// Mounts each scene of a page when it comes near the window: gives the player the `model` and `el` that anywidget would.

const base = new URL("living/", import.meta.url);

class Model {
  constructor(values) { this.values = values; this.heard = {}; }
  get(name) { return this.values[name]; }
  set(name, value) { this.values[name] = value; (this.heard[`change:${name}`] ?? []).forEach((call) => call()); }
  on(event, call) { (this.heard[event] ??= []).push(call); }
  off(event, call) { this.heard[event] = (this.heard[event] ?? []).filter((one) => one !== call); }
  save_changes() {}
}

async function mount(el) {
  const [{ default: player }, scene] = await Promise.all([
    import(new URL("player.js", base)),
    fetch(new URL(`${el.dataset.scene}.json`, base)).then((answer) => answer.json()),
  ]);
  player.render({ model: new Model({ scene, settings: JSON.parse(el.dataset.settings), answer: {} }), el });
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
