// State of the controls and the elements that show it. Text enters the page as text, never as markup.

const PER_PAGE = 60;
// A map of many points is slower than typing.
const TYPING_MS = 300;
const at = (id) => document.getElementById(id);

class Page {
  constructor(data) {
    this.data = data;
    this.pictures = new Pictures(data);
    this.map = new ImageMap(at("map"), data);
    this.lasso = null; // Set of images
    this.pinned = null;
    this.first = 0; // index of the first image on the page of the grid
  }

  async start() {
    const { notes, colorings, classNames } = this.data.about;
    at("notes").textContent = notes.join(" ");
    for (const { key, name } of colorings) at("coloring").append(new Option(name, key));
    classNames.forEach((name, label) => at("class").append(new Option(name, label)));
    for (const id of ["coloring", "names", "class", "decision", "min-score", "max-score"]) {
      at(id).addEventListener("change", () => this.show());
    }
    let typing = null;
    at("search").addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => this.show(), TYPING_MS);
    });
    at("size").addEventListener("input", () => {
      document.documentElement.style.setProperty("--tile", `${at("size").value}px`);
    });
    at("clear-lasso").addEventListener("click", () => this.select(null));
    at("save").addEventListener("click", () => {
      saveText(selectionCsv(this.data, this.selection()), `${this.data.about.network.replace("/", "-")}.selection.csv`);
    });
    at("theme").addEventListener("click", changeTheme);
    at("previous").addEventListener("click", () => this.turn(-PER_PAGE));
    at("next").addEventListener("click", () => this.turn(PER_PAGE));
    await this.show();
    const { div } = this.map;
    div.on("plotly_hover", (event) => this.hover(event));
    div.on("plotly_unhover", () => { at("tooltip").hidden = true; });
    div.on("plotly_click", (event) => this.pin(this.map.imageOf(event)));
    div.on("plotly_selected", (event) => {
      // A redraw sends a selection too, but without an outline.
      if (event?.lassoPoints || event?.range) this.select(new Set(this.map.imagesOf(event)));
    });
    div.on("plotly_deselect", () => this.select(null));
    document.body.dataset.ready = "true";
  }

  /** Images that pass the filters, most suspect first. */
  shown() {
    const { label, keep, score } = this.data;
    const [onlyLabel, onlyKeep] = [at("class").value, at("decision").value];
    const [minScore, maxScore] = ["min-score", "max-score"].map((id) => (at(id).validity.valid ? at(id).valueAsNumber : NaN));
    const matches = matcher(this.data, at("search").value);
    const shown = [];
    for (let i = 0; i < this.data.n; i++) {
      // An empty field sets no limit: it is NaN, and comparisons with NaN are false.
      if (score[i] < minScore || score[i] > maxScore) continue;
      if (onlyLabel !== "" && label[i] !== +onlyLabel) continue;
      if ((onlyKeep === "" || keep[i] === +onlyKeep) && matches(i)) shown.push(i);
    }
    return shown;
  }

  /** Shown images, inside the lasso if there is one. */
  selection() {
    const shown = this.shown();
    return this.lasso ? shown.filter((i) => this.lasso.has(i)) : shown;
  }

  coloring() {
    return this.data.about.colorings.find(({ key }) => key === at("coloring").value);
  }

  async show() {
    const bad = ["min-score", "max-score"].find((id) => !at(id).validity.valid);
    const problem = bad && `${at(bad).getAttribute("aria-label")}: not a number from 0 to 1. It sets no limit.`;
    at("number-problem").textContent = problem ?? "";
    this.showSelection();
    await this.draw();
  }

  async draw() {
    await this.map.draw(this.coloring(), this.shown(), {
      lassoed: this.lasso && ((i) => this.lasso.has(i)),
      pinned: this.pinned,
      named: at("names").checked,
    });
  }

  async select(lasso) {
    this.lasso = lasso;
    await this.show();
  }

  showSelection() {
    const selection = this.selection();
    const dropped = selection.filter((i) => !this.data.keep[i]).length;
    const where = this.lasso ? "in the lasso" : "shown";
    at("count").textContent = `${selection.length.toLocaleString("en")} ${where}, ${dropped.toLocaleString("en")} dropped`;
    at("clear-lasso").hidden = !this.lasso;
    this.first = 0;
    this.showLegend(selection);
    this.showGrid(selection);
  }

  showLegend(selection) {
    const { key, names, colors, scale, title } = this.coloring();
    if (scale) {
      const bar = element("span", { className: "scale" });
      bar.style.background = `linear-gradient(to right, ${scale.join(", ")})`;
      const [low, high, name] = ["0", "1", title].map((textContent) => element("span", { textContent }));
      at("legend").replaceChildren(low, bar, high, name);
      return;
    }
    const counts = names.map(() => 0);
    for (const i of selection) counts[this.data.colors[key][i]]++;
    const entries = names.map((name, code) => {
      const entry = element("span", {});
      const swatch = element("i", {});
      swatch.style.background = colors[code];
      const count = element("output", { textContent: counts[code].toLocaleString("en") });
      entry.append(swatch, element("span", { textContent: name }), count);
      return entry;
    });
    at("legend").replaceChildren(...entries.filter((_, code) => counts[code]));
  }

  showGrid(selection) {
    const end = Math.min(this.first + PER_PAGE, selection.length);
    const pinned = (i) => this.pin(i);
    at("grid").replaceChildren(...selection.slice(this.first, end).map((i) => this.pictures.cell(i, pinned)));
    const numbers = [this.first + 1, end, selection.length].map((number) => number.toLocaleString("en"));
    at("range").textContent = end ? `${numbers[0]} to ${numbers[1]} of ${numbers[2]}, by score` : "no images";
    at("previous").disabled = this.first === 0;
    at("next").disabled = end === selection.length;
  }

  turn(by) {
    this.first += by;
    this.showGrid(this.selection());
  }

  hover(event) {
    const i = this.map.imageOf(event);
    if (i === undefined) return;
    const box = at("tooltip");
    box.replaceChildren(this.pictures.of(i), ...this.lines(i));
    box.hidden = false;
    const { clientX: x, clientY: y } = event.event;
    // On the side of the pointer that has room; on a phone neither may.
    const left = x + 16 + box.offsetWidth < innerWidth ? x + 16 : x - 16 - box.offsetWidth;
    box.style.left = `${Math.max(0, left)}px`;
    box.style.top = `${Math.max(0, Math.min(y + 16, innerHeight - box.offsetHeight))}px`;
  }

  async pin(i) {
    if (i === undefined) return;
    this.pinned = i;
    const all = Array.from(this.data.neighbours.subarray(i * this.data.k, (i + 1) * this.data.k));
    const exported = all.filter((other) => other >= 0);
    const neighbors = element("div", { className: "neighbors tiles" });
    neighbors.append(...exported.map((other) => this.pictures.cell(other, (chosen) => this.pin(chosen))));
    const chosen = element("div", { className: "chosen" });
    const text = element("div", {});
    text.append(...this.lines(i));
    chosen.append(this.pictures.of(i), text);
    const path = element("p", { className: "path", textContent: this.data.path[i] });
    const missing = exported.length < all.length ? ` (${all.length - exported.length} more are not on this page)` : "";
    const heading = element("h2", { textContent: `Nearest by features${missing}` });
    at("card").replaceChildren(chosen, path, heading, neighbors);
    await this.draw();
  }

  lines(i) {
    return linesAbout(this.data, i).map((textContent) => element("p", { textContent }));
  }
}

function changeTheme() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
}

function fail(error) {
  at("problem").textContent = error.message;
  at("problem").hidden = false;
}

readData().then((data) => new Page(data).start()).catch(fail);
