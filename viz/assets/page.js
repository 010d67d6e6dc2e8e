// What has to answer at once, without asking the server: keys, clicks on pictures, and what was lassoed.
(() => {
  const props = (id, values) => window.dash_clientside.set_props(id, values);
  const tiles = () => [...document.querySelectorAll("#grid .tile")];
  const rowOf = (tile) => Number(tile.dataset.row);
  // Undoing takes back what this window did.
  const pageId = Math.random().toString(36).slice(2);
  let focused = null;

  function choose(tile) {
    if (!tile) return;
    props("focus", { data: rowOf(tile) });
    tile.scrollIntoView({ block: "nearest" });
  }

  function mark(row) {
    focused = row;
    for (const tile of tiles()) tile.classList.toggle("focus", rowOf(tile) === row);
    return window.dash_clientside.no_update;
  }

  // Tiles in a line of the grid: as many as share the first one's top edge.
  function columns(all) {
    return all.filter((tile) => tile.offsetTop === all[0].offsetTop).length;
  }

  function step(key) {
    const all = tiles();
    if (!all.length) return;
    const at = all.findIndex((tile) => rowOf(tile) === focused);
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns(all), ArrowDown: columns(all) }[key];
    const to = at < 0 ? 0 : at + by;
    if (to >= all.length) return document.getElementById("next").click();
    if (to < 0) return document.getElementById("previous").click();
    choose(all[to]);
  }

  function decide(action) {
    const one = action === "keep" || action === "drop";
    if (one && focused === null) return;
    props("command", { data: { action, row: focused, page: pageId, at: Date.now() } });
    if (!one) return;
    const all = tiles();
    const at = all.findIndex((tile) => rowOf(tile) === focused);
    if (at >= 0 && at + 1 < all.length) choose(all[at + 1]);
  }

  document.addEventListener("keydown", (event) => {
    // With a note typed, keys decide again.
    if (event.target.id === "note" && event.key === "Enter") return event.target.blur();
    const typing = event.target.closest("input, textarea, select, [contenteditable], [role=listbox], [role=slider], dialog");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = { k: "keep", d: "drop", u: "undo" }[event.key.toLowerCase()];
    if (action) decide(action);
    else if (event.key.startsWith("Arrow")) step(event.key);
    else if (event.key === "PageDown") document.getElementById("next").click();
    else if (event.key === "PageUp") document.getElementById("previous").click();
    else return;
    event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    const tile = event.target.closest(".tile");
    if (tile) return props("focus", { data: rowOf(tile) });
    const button = event.target.closest("button")?.id;
    if (["keep", "drop", "undo", "keep-selection", "drop-selection"].includes(button)) decide(button);
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

  window.batchsieve = {
    mark,

    // Rows of the points in a lasso or a box.
    selected: (...events) => {
      const which = window.dash_clientside.callback_context.triggered[0]?.prop_id.split(".")[0];
      const event = which === "other" ? events[1] : events[0];
      if (!event) return [];
      // A map that is redrawn says that nothing is selected, without a lasso.
      if (!event.lassoPoints && !event.range) return window.dash_clientside.no_update;
      return event.points.filter((point) => point.curveNumber === 0).map((point) => point.customdata);
    },

    // Row of the point clicked.
    clicked: (...events) => {
      const which = window.dash_clientside.callback_context.triggered[0]?.prop_id.split(".")[0];
      const point = (which === "other" ? events[1] : events[0])?.points?.[0];
      return typeof point?.customdata === "number" ? point.customdata : window.dash_clientside.no_update;
    },

    arrange: (view, width) => {
      // Plotly measures its place when the window changes.
      setTimeout(() => window.dispatchEvent(new Event("resize")), 50);
      return `${view} ${width}`;
    },

    remember: (names, values) => {
      const state = Object.fromEntries(names.map((name, index) => [name, values[index]]));
      const query = new URLSearchParams({ state: JSON.stringify(state) });
      history.replaceState(null, "", `?${query}`);
      return window.dash_clientside.no_update;
    },

    dialog: () => {
      const dialog = document.getElementById("dialog");
      const closing = window.dash_clientside.callback_context.triggered[0]?.prop_id.startsWith("close");
      if (closing) dialog.close();
      else if (!dialog.open) dialog.showModal();
      return window.dash_clientside.no_update;
    },
  };
})();
