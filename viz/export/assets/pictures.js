// Thumbnails, cut from sheets that are unpacked on first use.

// A sheet of 32 x 32 thumbnails of 32 pixels takes 4 MB.
const MAX_SHEETS = 24;

class Pictures {
  constructor(data) {
    this.data = data;
    this.sheets = new Map(); // number -> promise of a bitmap, least recently used first
  }

  sheet(number) {
    const sheet = this.sheets.get(number) ?? this.unpack(number);
    this.sheets.delete(number);
    this.sheets.set(number, sheet);
    if (this.sheets.size > MAX_SHEETS) this.sheets.delete(this.sheets.keys().next().value);
    return sheet;
  }

  unpack(number) {
    return createImageBitmap(new Blob([bytesOf(`sheet-${number}`)], { type: this.data.about.sprites.mediaType }));
  }

  /** A canvas that shows image i when its sheet is unpacked. */
  of(i) {
    const { side, columns } = this.data.about.sprites;
    const canvas = document.createElement("canvas");
    canvas.className = "picture";
    canvas.width = canvas.height = side;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `image ${this.data.sample_id[i]}`);
    const position = i % (columns * columns);
    this.sheet((i - position) / (columns * columns)).then((sheet) => {
      const [x, y] = [position % columns, Math.floor(position / columns)];
      canvas.getContext("2d").drawImage(sheet, x * side, y * side, side, side, 0, 0, side, side);
      canvas.dataset.plotted = "true";
    });
    return canvas;
  }

  /** A button with image i and its label; with the label given by hand, else the prediction, and the true class where
   *  they differ from it. */
  cell(i, chosen) {
    const button = element("button", { className: this.data.keep[i] ? "tile kept" : "tile dropped", type: "button" });
    const { classNames, byHand } = this.data.about;
    const [label, predicted, trueLabel] = ["label", "predicted", "true_label"].map((column) => this.data[column][i]);
    const line = (textContent, className = "") => element("span", { textContent, className });
    button.append(this.of(i), line(classNames[label]));
    if (byHand[i]) button.classList.add("hand");
    if (byHand[i]?.label) button.append(line(`→ ${byHand[i].label}`, "relabeled"));
    else if (predicted !== label) button.append(line(`→ ${classNames[predicted]}`, "contradicts"));
    if (trueLabel !== label) button.append(line(`true: ${classNames[trueLabel]}`));
    button.title = linesAbout(this.data, i).join("\n");
    button.dataset.index = i;
    button.addEventListener("click", () => chosen(i));
    return button;
  }
}

function element(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}
