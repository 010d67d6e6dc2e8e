// CSV in the format of viz/state.py, byte for byte. A test compares the two.

const CSV_COLUMNS = ["path", "sha256", "label_name", "predicted_name", "score", "keep", "reason", "corrected_label_name"];
const RUNS_AS_FORMULA = /^[=+\-@\t\r\n＝＋－＠']/;

function csvLine(cells) {
  const quoted = cells.map((cell) => (RUNS_AS_FORMULA.test(cell) ? `'${cell}` : cell).replaceAll('"', '""'));
  return `"${quoted.join('","')}"\n`;
}

function selectionCsv(data, indices) {
  const names = data.about.classNames;
  const hex = (i) => Array.from(data.sha256.subarray(32 * i, 32 * i + 32), (b) => b.toString(16).padStart(2, "0"));
  const planted = data.about.nPlanted === null ? [] : [String(data.about.nPlanted)];
  const lines = indices.map((i) => csvLine([
    data.path[i], hex(i).join(""), names[data.label[i]], names[data.predicted[i]],
    data.score[i].toFixed(6), data.keep[i] ? "true" : "false", data.reason[i],
    data.about.byHand[i]?.label ?? names[data.label[i]],
    ...planted,
  ]));
  return csvLine([...CSV_COLUMNS, ...(planted.length ? ["labels_changed_on_purpose"] : [])]) + lines.join("");
}

function saveText(text, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
