// Maps from drawings of the server: coordinates are loaded once for the files of a network, and stay here.
(() => {
  // Two maps have two networks, or two generations of one.
  const MAX_LOADED = 2;
  // Address -> promise of the coordinates {x, y} of all images, the least recently used first.
  const loading = new Map();
  // Graph -> its last points.
  const last = {};

  async function load(address) {
    const answer = await fetch(address);
    // A stage has just replaced the files; the page will say so.
    if (!answer.ok) throw new Error(await answer.text());
    const both = new Float32Array(await answer.arrayBuffer());
    return { x: both.subarray(0, both.length / 2), y: both.subarray(both.length / 2) };
  }

  function coordinates(address) {
    const loaded = loading.get(address) ?? load(address);
    loading.delete(address);
    loading.set(address, loaded);
    loaded.catch(() => loading.delete(address));
    if (loading.size > MAX_LOADED) loading.delete(loading.keys().next().value);
    return loaded;
  }

  function decoded(text) {
    const binary = atob(text);
    const bytes = Uint8Array.from(binary, (character) => character.charCodeAt(0));
    return new Uint32Array(bytes.buffer);
  }

  // Equal points are equal arrays, from which Plotly sees that nothing moved.
  async function pointsOf(graph, { rows, coordinates: address }) {
    const { x, y } = await coordinates(address);
    if (last[graph]?.rows !== rows || last[graph].address !== address) {
      const customdata = decoded(rows);
      const gathered = [x, y].map((values) => Float32Array.from(customdata, (row) => values[row]));
      last[graph] = { rows, address, points: { x: gathered[0], y: gathered[1], customdata } };
    }
    return last[graph].points;
  }

  /** Return the figure of a drawing; see viz/drawings.py. `shown` is the figure on the page, with the zoom and the lasso
   *  of the user, and the drawing that it was made of. Only what has been replaced since is applied to it. */
  window.batchsieveMap = async (graph, drawing, shown) => {
    if (drawing.coordinates === null) return { ...drawing.figure };
    try {
      const points = await pointsOf(graph, drawing);
      const before = shown?.drawing?.figure === drawing.figure ? shown.drawing : null;
      const changed = (part) => drawing[part] !== null && drawing[part] !== before?.[part];
      const { data, layout: shownLayout } = before ? shown : drawing.figure;
      const [trace, ring] = [{ ...data[0], ...points }, { ...data[1] }];
      const layout = { ...shownLayout };
      if (changed("marker")) trace.marker = drawing.marker;
      if (changed("marks")) {
        trace.selectedpoints = drawing.marks.points;
        // Remove an earlier lasso on this map, which would select again.
        Object.assign(layout, { selectionrevision: drawing.marks.revision, selections: [] });
      }
      if (changed("ring")) Object.assign(ring, drawing.ring);
      if (changed("names")) layout.annotations = drawing.names;
      if (changed("meta")) layout.meta = drawing.meta;
      return { data: [trace, ring], layout, drawing };
    } catch (error) {
      window.dash_clientside.set_props("saved", { children: `The map did not load: ${error.message}`, className: "failed" });
      return window.dash_clientside.no_update;
    }
  };
})();
