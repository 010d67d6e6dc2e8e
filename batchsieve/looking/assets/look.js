"use strict";
// The map with pictures, and the choice of the suspects that are shown. Text enters the page as text, never as markup.

const data = JSON.parse(document.getElementById("data").textContent);
const map = document.getElementById("map");
const tooltip = document.getElementById("tooltip");
const pair = document.getElementById("pair");
const cards = [...document.querySelectorAll(".look-card")];
const RING = 1;

const rowOf = (event) => (event.points[0].curveNumber === 0 ? event.points[0].customdata : undefined);

function hover(event) {
  const image = data.images[rowOf(event)];
  if (!image) return;
  const [path, label, reason] = tooltip.querySelectorAll("p");
  tooltip.querySelector("img").src = image.picture;
  path.textContent = image.path;
  label.textContent = image.label;
  reason.textContent = image.reason;
  tooltip.hidden = false;
  const { clientX: x, clientY: y } = event.event;
  // On the side of the pointer that has room.
  tooltip.style.left = `${x + 16 + tooltip.offsetWidth < innerWidth ? x + 16 : Math.max(0, x - 16 - tooltip.offsetWidth)}px`;
  tooltip.style.top = `${Math.max(0, Math.min(y + 16, innerHeight - tooltip.offsetHeight))}px`;
}

function openCard(event) {
  const card = document.getElementById(`image-${rowOf(event)}`);
  if (!card) return;
  if (card.hidden) {
    pair.value = "";
    showPair();
  }
  card.scrollIntoView({ block: "center" });
  card.focus({ preventScroll: true });
}

function showPair() {
  for (const card of cards) card.hidden = pair.value !== "" && card.dataset.pair !== pair.value;
}

/** Put the ring around one image, or rings around all suspects. */
function ring(image) {
  const { x, y } = data.figure.data[RING];
  Plotly.restyle(map, image ? { x: [[image.x]], y: [[image.y]] } : { x: [x], y: [y] }, [RING]);
}

async function start() {
  const { figure, config } = data;
  // Copies: Plotly changes the traces that it is given.
  await Plotly.newPlot(map, figure.data.map((trace) => ({ ...trace })), figure.layout, config);
  map.on("plotly_hover", hover);
  map.on("plotly_unhover", () => { tooltip.hidden = true; });
  map.on("plotly_click", openCard);
  pair?.addEventListener("change", showPair);
  for (const card of cards) {
    card.addEventListener("focus", () => ring(data.images[card.dataset.row]));
    card.addEventListener("blur", () => ring(null));
  }
  document.body.dataset.ready = "true";
}

start();
