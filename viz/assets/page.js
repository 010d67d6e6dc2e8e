// What has to answer at once, without asking the server: keys, clicks on pictures, and what was lassoed.
(() => {
  const props = (id, values) => window.dash_clientside.set_props(id, values);
  const element = (id) => document.getElementById(id);
  const tiles = () => [...document.querySelectorAll("#grid .tile")];
  const rowOf = (tile) => Number(tile.dataset.row);
  const plotOf = (graph) => element(graph)?.querySelector(".js-plotly-plot");
  // Which points are drawn; every picture says so itself.
  const generationOf = (graph) => plotOf(graph)?.layout?.meta?.generation ?? null;
  // Undoing takes back what this window did, also before it was reloaded.
  const pageId = (sessionStorage.page ??= Math.random().toString(36).slice(2));
  // The chosen image; without a generation where a link has named it.
  let focused = null;
  // Of the selection, what its buttons say that they decide.
  let offered = { generation: null, rows: [] };

  function focus(row, generation) {
    focused = { row, generation };
    outline();
    props("focus", { data: row });
  }

  function outline() {
    for (const tile of tiles()) tile.classList.toggle("focus", rowOf(tile) === focused?.row);
  }

  function choose(tile) {
    focus(rowOf(tile), tile.dataset.generation);
    tile.scrollIntoView({ block: "nearest" });
  }

  // Tiles in a line of the grid: as many as share the first one's top edge.
  function columns(all) {
    return all.filter((tile) => tile.offsetTop === all[0].offsetTop).length;
  }

  function step(key) {
    const all = tiles();
    if (!all.length) return;
    const at = all.findIndex((tile) => rowOf(tile) === focused?.row);
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns(all), ArrowDown: columns(all) }[key];
    const to = at < 0 ? 0 : at + by;
    if (to >= all.length) return element("next").click();
    if (to < 0) return element("previous").click();
    choose(all[to]);
  }

  // Decisions wait here and go to the server one by one, in their order.
  const waiting = [];
  // As typed; the page's own value of it follows later than the next key may.
  let note = "";
  let stalled = false;
  const PATIENCE_MS = 5000;

  const say = (message, failed = false) => props("saved", { children: message, className: failed ? "failed" : "" });

  function commandOf(action) {
    const command = { action, page: pageId, rows: [], generation: null, note: "" };
    if (action === "undo") return { ...command, generation: generationOf("map") };
    command.note = note;
    if (action.endsWith("-selection")) {
      return { ...command, ...offered };
    }
    const card = document.querySelector("#card .chosen");
    const generation = focused?.generation ?? (card && rowOf(card) === focused?.row ? card.dataset.generation : null);
    return generation ? { ...command, rows: [focused.row], generation } : null;
  }

  function decide(action) {
    const command = commandOf(action);
    if (!command || stalled) return;
    if (command.note) writeNote("");
    waiting.push(command);
    if (waiting.length === 1) send();
    if (!["keep", "drop", "clear"].includes(action)) return;
    const all = tiles();
    const at = all.findIndex((tile) => rowOf(tile) === focused.row);
    if (at >= 0 && at + 1 < all.length) choose(all[at + 1]);
  }

  function writeNote(text) {
    note = text;
    props("note", { value: text });
  }

  async function send() {
    let edited = null;
    while (waiting.length) {
      say("Saving…");
      const late = setTimeout(() => {
        stalled = true;
        say("NOT SAVED: the server does not answer yet", true);
      }, PATIENCE_MS);
      const answer = await ask(waiting[0]);
      clearTimeout(late);
      stalled = false;
      edited = answer.edited ?? edited;
      const [first, ...later] = waiting;
      if (answer.failed) {
        waiting.length = 0;
        say(answer.message + (later.length ? ` (nor the ${later.length} after it)` : ""), true);
        if (first.note) writeNote(first.note);
        if (["keep", "drop", "clear"].includes(first.action)) focus(first.rows[0], first.generation);
      } else {
        waiting.shift();
        say(answer.message);
        if (answer.row !== null) focus(answer.row, first.generation);
      }
    }
    if (edited !== null) props("edited", { data: edited });
  }

  async function ask(command) {
    const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(command) };
    try {
      const answer = await fetch("/decide", request);
      return answer.ok ? await answer.json() : { message: `NOT SAVED: the server fails (${answer.status})`, failed: true };
    } catch {
      return { message: "NOT SAVED: the server does not answer", failed: true };
    }
  }

  document.addEventListener("keydown", (event) => {
    // With a note typed, keys decide again.
    if (event.target.id === "note" && event.key === "Enter") return event.target.blur();
    const typing = event.target.closest(
      "input:not([type=radio], [type=checkbox]), textarea, select, [contenteditable], [role=listbox], dialog",
    );
    // A slider moves by these.
    const moves = event.target.closest("[role=slider]") && /^(Arrow|Page)/.test(event.key);
    if (typing || moves || event.ctrlKey || event.metaKey || event.altKey) return;
    // What is not seen is not decided.
    if (!element("images").checkVisibility()) return;
    const action = { k: "keep", d: "drop", c: "clear", u: "undo" }[event.key.toLowerCase()];
    if (action && !event.repeat) decide(action);
    else if (event.key.startsWith("Arrow")) step(event.key);
    else if (event.key === "PageDown") element("next").click();
    else if (event.key === "PageUp") element("previous").click();
    else return;
    event.preventDefault();
  });

  document.addEventListener("input", (event) => {
    if (event.target.id === "note") note = event.target.value;
  });

  // Arrows would go on choosing among the buttons of a row.
  document.addEventListener("change", (event) => {
    if (event.target.type === "radio") event.target.blur();
  });

  document.addEventListener("click", (event) => {
    const tile = event.target.closest(".tile");
    if (tile) return choose(tile);
    const button = event.target.closest("button")?.id;
    if (["keep", "drop", "clear", "undo", "keep-selection", "drop-selection"].includes(button)) decide(button);
    if (event.target.closest("#theme")) {
      const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      setTheme((document.documentElement.dataset.theme ?? system) === "dark" ? "light" : "dark");
    }
  });

  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  }
  if (localStorage.getItem("theme")) setTheme(localStorage.getItem("theme"));

  // The map that an event is of, and the event.
  function triggered(events) {
    const which = window.dash_clientside.callback_context.triggered[0]?.prop_id.split(".")[0];
    return which === "other" ? ["other", events[1]] : ["map", events[0]];
  }

  // Corners of a lasso, which plotly keeps as the path of an SVG, or of a box.
  function outlineOf({ type, path, x0, x1, y0, y1 }) {
    if (type === "path") return path.slice(1, -1).split("L").map((corner) => corner.split(",").map(Number));
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]];
  }

  window.batchsieve = {
    // Only a link names an image that is not chosen here.
    mark: (row) => {
      if (focused === null && row !== null) focused = { row, generation: null };
      outline();
      return window.dash_clientside.no_update;
    },

    // Rows of the points in a lasso or a box, and which points they are of.
    selected: (...events) => {
      const [graph, event] = triggered(events);
      // A map that is redrawn says that nothing is selected, without a lasso.
      if (event && !event.lassoPoints && !event.range) return window.dash_clientside.no_update;
      // Until the server has said what is in the new one, nothing is decided on the old one.
      offered = { generation: null, rows: [] };
      for (const button of ["keep-selection", "drop-selection"]) props(button, { disabled: true });
      const { meta, selections } = plotOf(graph).layout;
      if (event && meta.partial) {
        props("drawn-around", { data: { generation: meta.generation, graph, outlines: selections.map(outlineOf) } });
        return window.dash_clientside.no_update;
      }
      // An answer that is still to come must not select again.
      props("drawn-around", { data: null });
      if (!event) return { generation: null, rows: [], graph };
      const rows = event.points.filter((point) => point.curveNumber === 0).map((point) => point.customdata);
      return { generation: generationOf(graph), rows, graph };
    },

    offer: (chosen) => {
      offered = chosen;
      const n = chosen.rows.length;
      const count = n.toLocaleString("en");
      return [!n, !n, `Keep selection (${count})`, `Drop selection (${count})`];
    },

    // The point clicked.
    clicked: (...events) => {
      const [graph, event] = triggered(events);
      const row = event?.points?.[0]?.customdata;
      if (typeof row === "number") focus(row, generationOf(graph));
      return window.dash_clientside.no_update;
    },

    arrange: (view, width) => {
      // Plotly measures its place when the window changes.
      setTimeout(() => window.dispatchEvent(new Event("resize")), 50);
      // Where two settings are compared, colors show which of them drops.
      return [`${view} ${width}`, view === "compare"];
    },

    remember: (names, values) => {
      const state = Object.fromEntries(names.map((name, index) => [name, values[index]]));
      const query = new URLSearchParams({ state: JSON.stringify(state) });
      history.replaceState(null, "", `?${query}`);
      return window.dash_clientside.no_update;
    },

    dialog: () => {
      const dialog = element("dialog");
      const closing = window.dash_clientside.callback_context.triggered[0]?.prop_id.startsWith("close");
      if (closing) dialog.close();
      else if (!dialog.open) dialog.showModal();
      return window.dash_clientside.no_update;
    },
  };
})();
