"use strict";
// Data of the page: from base64 in script elements of type text/plain to typed arrays and strings.

const TYPES = {
  sample_id: Int32Array, x: Float32Array, y: Float32Array, label: Uint16Array, predicted: Uint16Array,
  true_label: Uint16Array,
  confidence: Float32Array, score: Float64Array, keep: Uint8Array, neighbours: Int32Array, sha256: Uint8Array,
};

function bytesOf(id) {
  const text = atob(document.getElementById(id).textContent);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function unpacked(name) {
  const stream = new Blob([bytesOf(`column-${name}`)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream);
}

const readArray = async (name, Type) => new Type(await unpacked(name).arrayBuffer());
const readStrings = (name) => unpacked(name).json();

/** {about, n, k, <column>: array or strings, colors: {<coloring>: array}}; index = image, most suspect first. */
async function readData() {
  if (!("DecompressionStream" in window)) {
    throw new Error("This browser lacks DecompressionStream, which unpacks the data of the page. " +
      "Open the file in Chrome or Edge 80, Firefox 113, Safari 16.4, or a newer version.");
  }
  const about = JSON.parse(document.getElementById("about").textContent);
  const data = { about, colors: {} };
  const jobs = Object.entries(TYPES).map(async ([name, Type]) => { data[name] = await readArray(name, Type); });
  for (const name of ["path", "reason"]) jobs.push(readStrings(name).then((texts) => { data[name] = texts; }));
  for (const { key, scale } of about.colorings) {
    jobs.push(readArray(`color_${key}`, scale ? Float32Array : Uint16Array).then((a) => { data.colors[key] = a; }));
  }
  await Promise.all(jobs);
  data.n = data.x.length;
  data.k = data.n ? data.neighbours.length / data.n : 0;
  return data;
}

/** The lines of text about an image. */
function linesAbout(data, i) {
  const { classNames, byHand } = data.about;
  const lines = [
    `#${data.sample_id[i]} · label: ${classNames[data.label[i]]}`,
    `suggested label: ${classNames[data.predicted[i]]} (${(100 * data.confidence[i]).toFixed(0)} %)`,
    `score ${data.score[i].toFixed(3)}: ${data.keep[i] ? "kept" : "dropped"}`,
    data.reason[i],
  ];
  if (data.true_label[i] !== data.label[i]) {
    lines.splice(2, 0, `label changed on purpose, true label: ${classNames[data.true_label[i]]}`);
  }
  const hand = byHand[i];
  if (hand) lines.push(`${hand.decision} by hand${hand.note ? `: ${hand.note}` : ""}`);
  return lines;
}
