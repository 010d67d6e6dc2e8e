// The embedding, drawn by plotly with WebGL: one trace per color.

const MARGIN = 0.04;
const CONFIG = {
  // Without the first two, plotly's toolbar offers to upload the map to a server.
  showSendToCloud: false, plotlyServerURL: "", displaylogo: false, responsive: true, scrollZoom: true,
  displayModeBar: true, doubleClick: "reset", modeBarButtonsToRemove: ["autoScale2d"],
};

class ImageMap {
  constructor(div, data) {
    this.div = div;
    this.data = data;
    this.ranges = { x: rangeOf(data.x), y: rangeOf(data.y) };
    this.size = Math.min(8, Math.max(3, 600 / Math.sqrt(data.n)));
    this.indices = []; // for each trace, the images of its points
    this.drawn = 0;
  }

  /** Draw the images `shown` (ascending). Highlight those with `lassoed(i)`, if given. Put a ring around `pinned`. With
   *  `named`, write the names of the classes. */
  async draw(coloring, shown, { lassoed, pinned, named }) {
    this.indices = [];
    const traces = coloring.scale ? [this.scaleTrace(coloring, shown)] : this.groupTraces(coloring, shown);
    if (lassoed) {
      traces.forEach((trace, at) => {
        trace.selectedpoints = [...this.indices[at].keys()].filter((point) => lassoed(this.indices[at][point]));
      });
    }
    if (pinned !== null) traces.push(this.ring(pinned));
    await Plotly.react(this.div, traces, this.layout(named), CONFIG);
  }

  /** The image of a plotly event; undefined for the ring. */
  imageOf(event) {
    return this.imagesOf(event)[0];
  }

  imagesOf(event) {
    const images = event.points.map((point) => this.indices[point.curveNumber]?.[point.pointNumber]);
    return images.filter((image) => image !== undefined);
  }

  groupTraces({ key, colors }, shown) {
    const byColor = new Map(colors.map((color) => [color, []]));
    const codes = this.data.colors[key];
    for (const i of shown) byColor.get(colors[codes[i]]).push(i);
    return [...byColor].filter(([, indices]) => indices.length)
      .map(([color, indices]) => this.trace(indices, { color }));
  }

  scaleTrace({ key, scale }, shown) {
    const values = this.data.colors[key];
    const colorscale = scale.map((color, at) => [at / (scale.length - 1), color]);
    const indices = [...shown];
    const trace = this.trace(indices, { colorscale, cmin: 0, cmax: 1 });
    trace.marker.color = Float32Array.from(indices, (i) => values[i]);
    return trace;
  }

  trace(indices, marker) {
    // The most suspect points are drawn last, on top.
    indices.reverse();
    this.indices.push(indices);
    const { x, y } = this.data;
    return {
      type: "scattergl", mode: "markers", hoverinfo: "none",
      x: Float32Array.from(indices, (i) => x[i]), y: Float32Array.from(indices, (i) => y[i]),
      marker: { size: this.size, opacity: 0.8, ...marker }, unselected: { marker: { opacity: 0.12 } },
    };
  }

  ring(i) {
    const marker = { symbol: "circle-open", size: this.size + 10, color: this.data.about.ringColor, line: { width: 3 } };
    return {
      type: "scattergl", mode: "markers", hoverinfo: "skip", x: [this.data.x[i]], y: [this.data.y[i]], marker,
      unselected: { marker: { opacity: 1 } },
    };
  }

  layout(named) {
    // Coordinates of t-SNE have no unit and no direction. The plot fills the window, so that a lasso can start
    // anywhere in it.
    const axis = { visible: false, constrain: "range" };
    return {
      xaxis: { ...axis, range: [...this.ranges.x] }, yaxis: { ...axis, range: [...this.ranges.y], scaleanchor: "x" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 0, r: 0, t: 0, b: 0 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: "#999999", activecolor: "#444444" },
      showlegend: false, hovermode: "closest", annotations: named ? this.data.about.annotations : [],
      // A redraw keeps zoom and tool. It removes the outline of a lasso; the highlighted points show the selection.
      dragmode: "pan", uirevision: "kept", selectionrevision: ++this.drawn,
    };
  }
}

function rangeOf(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  const margin = MARGIN * (high - low) || 1;
  return [low - margin, high + margin];
}
