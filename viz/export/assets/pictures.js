// Thumbnails, cut from sheets that are unpacked when first looked at.

// A sheet of 32 x 32 thumbnails of 32 pixels takes 4 MB.
const MOST_SHEETS = 24;

class Pictures {
  constructor(data) {
    this.data = data;
    this.sheets = new Map(); // number -> promise of a bitmap, the one not used the longest first
  }

  sheet(number) {
    const sheet = this.sheets.get(number) ?? this.unpack(number);
    this.sheets.delete(number);
    this.sheets.set(number, sheet);
    if (this.sheets.size > MOST_SHEETS) this.sheets.delete(this.sheets.keys().next().value);
    return sheet;
  }

  unpack(number) {
    return createImageBitmap(new Blob([bytesOf(`sheet-${number}`)], { type: this.data.about.sprites.mediaType }));
  }

  /** A canvas that soon shows image i. */
  of(i) {
    const { side, columns } = this.data.about.sprites;
    const canvas = document.createElement("canvas");
    canvas.className = "picture";
    canvas.width = canvas.height = side;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `image ${this.data.sample_id[i]}`);
    const place = i % (columns * columns);
    this.sheet((i - place) / (columns * columns)).then((sheet) => {
      const [x, y] = [place % columns, Math.floor(place / columns)];
      canvas.getContext("2d").drawImage(sheet, x * side, y * side, side, side, 0, 0, side, side);
      canvas.dataset.drawn = "true";
    });
    return canvas;
  }

  /** A button with image i, its label, and where they differ what the network sees and the true class. */
  cell(i, chosen) {
    const button = element("button", { className: this.data.keep[i] ? "cell" : "cell goes", type: "button" });
    const { classNames } = this.data.about;
    const [label, seen, truth] = ["label", "predicted", "true_label"].map((column) => this.data[column][i]);
    const lines = [classNames[label]];
    if (seen !== label) lines.push(`→ ${classNames[seen]}`);
    if (truth !== label) lines.push(`true: ${classNames[truth]}`);
    lines.push(this.data.score[i].toFixed(3));
    button.append(this.of(i), ...lines.map((textContent) => element("span", { textContent })));
    button.title = linesAbout(this.data, i).join("\n");
    button.dataset.index = i;
    button.addEventListener("click", () => chosen(i));
    return button;
  }
}

function element(tag, properties) {
  return Object.assign(document.createElement(tag), properties);
}
