// As much of a page as the player needs, and a clock that stands still until a test moves it.
class Element {
  constructor(name) { Object.assign(this, { name, attributes: {}, children: [], heard: {}, style: {}, text: "", offsetWidth: 1, offsetHeight: 1 }); }
  classList = { toggle: (name, there) => { this.attributes[name] = there; } };
  setAttribute(name, value) { this.attributes[name] = String(value); }
  addEventListener(name, call) { this.heard[name] = call; }
  append(...children) {
    for (const one of children) if (typeof one === "string") this.text += one; else { one.parent = this; this.children.push(one); }
  }
  replaceChildren(...children) { this.children = []; this.append(...children); }
  before(...others) {
    this.parent.children.splice(this.parent.children.indexOf(this), 0, ...others);
    others.forEach((one) => { one.parent = this.parent; });
  }
  remove() { this.parent.children = this.parent.children.filter((one) => one !== this); }
  get textContent() { return this.text + this.children.map((one) => one.textContent).join(""); }
  set textContent(text) { this.children = []; this.text = text; }
  all() { return [this, ...this.children.flatMap((one) => one.all())]; }
}
let clock = 0, frame;
globalThis.document = { createElement: (name) => new Element(name), createElementNS: (_, name) => new Element(name) };
globalThis.requestAnimationFrame = (call) => { frame = call; return 1; };
globalThis.cancelAnimationFrame = () => { frame = undefined; };
const calm = { matches: false };
globalThis.matchMedia = () => calm;

/** As anywidget's: what is set to what it was already tells nobody. */
function modelOf(values) {
  const heard = {};
  return {
    get: (name) => values[name],
    set: (name, value) => {
      if (JSON.stringify(values[name]) === JSON.stringify(value)) return;
      values[name] = value;
      (heard[`change:${name}`] ?? []).forEach((call) => call());
    },
    on: (event, call) => { (heard[event] ??= []).push(call); },
    save_changes() {},
  };
}

/** A view of a model: what it says, and what a reader can do there. */
function viewOf(model) {
  const el = new Element("div");
  el.append(Object.assign(new Element("p"), { text: "the still" }));
  const view = {
    el,
    find: (test) => el.all().find(test),
    said: () => view.find((one) => one.attributes.role === "status").textContent,
    press: (label) => view.find((one) => one.attributes["aria-label"] === label).heard.click(),
    input: (label) => view.find((one) => one.name === "label" && one.textContent.startsWith(label)).all().find((one) => "input change".split(" ").some((name) => one.heard[name])),
    slide: (label, value) => { const input = view.input(label); input.value = value; input.heard.input(); },
    discs: () => el.all().filter((one) => one.name === "circle").map((one) => one.attributes.cx + one.attributes.cy).join(),
    wait: (millis) => { clock += millis; const call = frame; frame = undefined; call?.(clock); },
  };
  try { render({ model, el }); } catch (error) { view.error = String(error); }
  return view;
}
