// Names the image under the pointer in the pictures of embeddings.
const REACH = 12; // pixels
const { classes, decisions, grid } = JSON.parse(document.getElementById("embedding-names").textContent);

/** The index of the point nearest to a place in the picture, in steps of the grid; -1 if all are farther than `reach`. */
function nearest(points, x, y, reach) {
  let found = -1;
  let least = reach * reach;
  for (let i = 0; i < points.x.length; i++) {
    const distance = (points.x[i] - x) ** 2 + (points.y[i] - y) ** 2;
    if (distance <= least) [found, least] = [i, distance];
  }
  return found;
}

function lines(points, i) {
  const label = [`label: ${classes[points.label[i]]}`];
  if (points.truth.length && points.truth[i] !== points.label[i]) label.push(`true label: ${classes[points.truth[i]]}`);
  return [points.name[i], ...label, points.decision.length ? decisions[points.decision[i]] : "not filtered"];
}

for (const frame of document.querySelectorAll(".embedding")) {
  const points = JSON.parse(frame.querySelector("script").textContent);
  const tip = frame.querySelector(".tip");
  const ring = frame.querySelector(".ring");
  const show = ({ clientX, clientY }) => {
    const box = frame.getBoundingClientRect();
    const scale = grid / box.width;
    const i = nearest(points, (clientX - box.left) * scale, (clientY - box.top) * scale, REACH * scale);
    tip.hidden = ring.hidden = i < 0;
    if (i < 0) return;
    const [x, y] = [points.x[i] / scale, points.y[i] / scale];
    ring.style.translate = `${x}px ${y}px`;
    tip.replaceChildren(...lines(points, i).map((line) => Object.assign(document.createElement("p"), { textContent: line })));
    // To the side with more room, so that it stays on the picture.
    tip.style.left = x < box.width / 2 ? `${x + REACH}px` : "";
    tip.style.right = x < box.width / 2 ? "" : `${box.width - x + REACH}px`;
    tip.style.top = `${y}px`;
  };
  frame.addEventListener("pointermove", show);
  frame.addEventListener("pointerdown", show);
  frame.addEventListener("pointerleave", () => { tip.hidden = ring.hidden = true; });
}
