// Callbacks that answer without the server: keys, clicks on images, and selections.
(() => {
  const review = window.batchsieveReview;
  const page = window.batchsievePage;
  const props = (id, values) => window.dash_clientside.set_props(id, values);
  const element = (id) => document.getElementById(id);
  const tiles = () => [...document.querySelectorAll("#grid .tile")];
  const rowOf = (tile) => Number(tile.dataset.row);
  const plotOf = (graph) => element(graph)?.querySelector(".js-plotly-plot");
  // Generation of the plotted points.
  const generationOf = (graph) => plotOf(graph)?.layout?.meta?.generation ?? null;
  // The chosen image. Its generation is null if a link has chosen it.
  let focused = null;
  // Part of the selection that the buttons decide.
  let offered = { generation: null, rows: [] };

  let announcing = false;

  function focus(row, generation) {
    focused = { row, generation };
    outline();
    // Keys faster than the page renders are announced together.
    if (announcing) return;
    announcing = true;
    setTimeout(() => {
      announcing = false;
      props("focus", { data: focused.row });
    });
  }

  function outline() {
    for (const tile of tiles()) tile.classList.toggle("focus", rowOf(tile) === focused?.row);
  }

  function choose(tile) {
    focus(rowOf(tile), tile.dataset.generation);
    tile.scrollIntoView({ block: "nearest" });
  }

  // Tiles per line of the grid: those with the top edge of the first.
  function columns(all) {
    return all.filter((tile) => tile.offsetTop === all[0].offsetTop).length;
  }

  // Choose an image of the review; null is none.
  const chooseReviewed = (row) => row !== null && focus(row, review.generation());

  function step(key) {
    if (review.isActive()) return chooseReviewed(review.step(focused?.row, /Left|Up/.test(key) ? -1 : 1));
    const all = tiles();
    if (!all.length) return;
    const at = all.findIndex((tile) => rowOf(tile) === focused?.row);
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns(all), ArrowDown: columns(all) }[key];
    const to = at < 0 ? 0 : at + by;
    if (to >= all.length) return element("next").click();
    if (to < 0) return element("previous").click();
    choose(all[to]);
  }

  // The note as typed. Dash may update its value after the next key.
  let note = "";

  const sender = window.batchsieveSender({
    say: (message, failed = false) => props("saved", { children: message, className: failed ? "failed" : "" }),
    saved: (command, { row, edited }) => {
      review.answered(1, edited);
      if (row === null) return;
      review.note("undo", row);
      focus(row, command.generation);
    },
    failed: (commands, { edited }) => {
      review.answered(commands.length, edited);
      for (const command of commands) review.note("failed", command.rows[0]);
      const [first] = commands;
      // The notes of all of them, and what is being typed.
      const notes = [...new Set([...commands.map((command) => command.note), note])].filter(Boolean);
      if (notes.length) writeNote(notes.join("; ").slice(0, element("note").maxLength));
      if (OF_ONE_IMAGE.includes(first.action)) focus(first.rows[0], first.generation);
    },
    done: (edited) => props("edited", { data: edited }),
  });

  function commandOf(action) {
    const command = { action, page: page.id, rows: [], generation: null, note: "", label: null };
    if (action === "undo") return { ...command, generation: generationOf("map") ?? review.generation() };
    command.note = note;
    if (action.endsWith("-selection")) {
      return { ...command, ...offered };
    }
    const card = document.querySelector("#card .chosen");
    const generation = focused?.generation ?? (card && rowOf(card) === focused?.row ? card.dataset.generation : null);
    return generation ? { ...command, rows: [focused.row], generation } : null;
  }

  const OF_ONE_IMAGE = ["keep", "drop", "relabel", "clear"];

  function decide(action) {
    if (focused === null && OF_ONE_IMAGE.includes(action)) sender.hint("Choose an image first.");
    else if (action === "relabel") openRelabel();
    else queue(commandOf(action));
  }

  function queue(command) {
    if (!command || sender.isStalled()) return;
    if (command.note) writeNote("");
    review.sent();
    sender.push(command);
    if (command.action === "undo-image") review.note("clear", command.rows[0]);
    if (!OF_ONE_IMAGE.includes(command.action)) return;
    review.note(command.action, command.rows[0]);
    if (review.isActive()) return command.action !== "clear" && chooseReviewed(review.next(command.rows[0]));
    const all = tiles();
    const at = all.findIndex((tile) => rowOf(tile) === command.rows[0]);
    if (at >= 0 && at + 1 < all.length) choose(all[at + 1]);
  }

  // The relabel whose class is being chosen. An answer of the server may choose another image meanwhile.
  let relabel = null;

  function openRelabel() {
    relabel = commandOf("relabel");
    if (!relabel || sender.isStalled()) return;
    const image = document.querySelector(`[data-row="${relabel.rows[0]}"]`);
    const list = element("new-label");
    list.value = image?.dataset.suggested ?? "";
    const suggested = list.selectedOptions[0]?.label;
    const text = `image #${relabel.rows[0]}; ${suggested ? `suggested: ${suggested}` : "no other label is suggested"}`;
    props("relabel-from", { children: text });
    element("relabel-dialog").showModal();
    list.focus();
  }

  function confirmRelabel() {
    const chosen = element("new-label").value;
    if (chosen === "" || !element("relabel-dialog").open) return;
    element("relabel-dialog").close();
    queue({ ...relabel, label: Number(chosen) });
  }

  function writeNote(text) {
    note = text;
    props("note", { value: text });
  }

  document.addEventListener("keydown", (event) => {
    // Enter leaves the note, so that keys decide again.
    if (event.target.id === "note" && event.key === "Enter") return event.target.blur();
    if (event.target.id === "new-label" && event.key === "Enter") return confirmRelabel();
    // A list in a dialog that was just closed keeps the focus until the browser renders again.
    const typing = event.target.checkVisibility() && event.target.closest(
      "input:not([type=radio], [type=checkbox]), textarea, select, [contenteditable], [role=listbox], dialog",
    );
    if (event.key === "?" && !typing) return toggleHelp(event);
    if (event.key === "?" && element("help").open) return toggleHelp(event);
    // These keys move a slider.
    const moves = event.target.closest("[role=slider]") && /^(Arrow|Page)/.test(event.key);
    if (event.key === "Escape" && !typing && !document.querySelector("dialog[open]")) return removeSelection();
    if (typing || moves || event.ctrlKey || event.metaKey || event.altKey) return;
    // Do not decide images that the page hides.
    if (!element("images").checkVisibility()) return;
    const action = { k: "keep", d: "drop", r: "relabel", c: "clear", u: "undo" }[event.key.toLowerCase()];
    if (action && !event.repeat) decide(action);
    else if (event.key.toLowerCase() === "n" && review.isActive()) chooseReviewed(review.next(focused?.row));
    else if (event.key.startsWith("Arrow")) step(event.key);
    else if (event.key === "PageDown") element("next").click();
    else if (event.key === "PageUp") element("previous").click();
    else return;
    event.preventDefault();
  });

  function toggleHelp(event) {
    event.preventDefault();
    const help = element("help");
    if (help.open) help.close();
    else help.showModal();
  }

  function removeSelection() {
    props("lasso-shapes", { data: null });
    props("selection", { data: { generation: null, rows: [], graph: "none" } });
  }

  document.addEventListener("input", (event) => {
    if (event.target.id === "note") note = event.target.value;
  });

  // With focus, arrows would choose among radio buttons.
  document.addEventListener("change", (event) => {
    if (event.target.type !== "radio") return;
    event.target.blur();
    if (event.target.closest("#view")) showListOf(event.target.value);
  });

  const COMPARING = ["differ", "a", "b", "both"];
  // Follows the list of the gallery.
  let list = "dropped";

  // A comparison opens with the images that differ. Its lists are empty in other views.
  function showListOf(view) {
    if (view === "compare" && !COMPARING.includes(list)) props("list", { value: "differ" });
    if (view !== "compare" && COMPARING.includes(list)) props("list", { value: "dropped" });
  }

  document.addEventListener("click", (event) => {
    const tile = event.target.closest(".tile");
    // The neighbors of a reviewed image may be in no list.
    if (tile?.closest("#review") && !review.has(rowOf(tile))) return;
    if (tile) return choose(tile);
    const cell = event.target.closest("#matrix .cell")?.dataset;
    if (cell) {
      // The time makes a second click on the cell another value.
      const { generation } = cell;
      const data = { label: Number(cell.label), suggested: Number(cell.suggested), generation, at: Date.now() };
      return props("matrix-cell", { data });
    }
    const undone = event.target.closest(".undo-one")?.dataset;
    if (undone) {
      const command = { page: page.id, note: "", label: null, generation: undone.generation };
      return queue({ ...command, action: "undo-image", rows: [Number(undone.row)] });
    }
    const turn = event.target.closest(".turn")?.dataset;
    if (turn) return props("decisions-page", { data: Number(turn.page) });
    const button = event.target.closest("button")?.id;
    if ([...OF_ONE_IMAGE, "undo", "keep-selection", "drop-selection"].includes(button)) decide(button);
    if (button === "help-open" || button === "help-close") toggleHelp(event);
    if (button === "relabel-confirm") confirmRelabel();
    if (button === "relabel-cancel") element("relabel-dialog").close();
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

  // The map of an event, and the event.
  function triggered(events) {
    const which = window.dash_clientside.callback_context.triggered[0]?.prop_id.split(".")[0];
    return which === "other" ? ["other", events[1]] : ["map", events[0]];
  }

  // Corners of a box, or of a lasso, which plotly stores as an SVG path.
  function outlineOf({ type, path, x0, x1, y0, y1 }) {
    if (type === "path") return path.slice(1, -1).split("L").map((corner) => corner.split(",").map(Number));
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]];
  }

  window.batchsieve = {
    // A link has chosen the image.
    mark: (row) => {
      if (focused === null && row !== null) focused = { row, generation: null };
      outline();
      return window.dash_clientside.no_update;
    },

    // The chosen image and the decisions, for what the view shows. The rest follows when it is shown again, so that
    // a key in the view Review asks the server only for the review.
    show: (view, row, edited, ...before) => {
      const [mapRow, mapEdited, reviewRow] = before;
      const after = view === "review" ? [mapRow, mapEdited, row] : [row, edited, reviewRow];
      return after.map((value, at) => (value === before[at] ? window.dash_clientside.no_update : value));
    },

    // Rows and components of the view Review from the server.
    reviewed: (rows, view, decisions) => {
      review.build("review", view);
      review.build("decisions", decisions);
      const row = review.update(rows, focused?.row ?? null);
      if (row !== null) focus(row, rows.generation);
      else if (rows && rows.row === focused?.row) focused.generation ??= rows.generation;
      return window.dash_clientside.no_update;
    },

    resize: (size) => {
      document.documentElement.style.setProperty("--tile", `${size}px`);
      return window.dash_clientside.no_update;
    },

    // An event that moves the map. Where all points are drawn it asks for nothing: Dash drops the answer to an earlier
    // request, such as the colors after a decision, when a new one for the same map begins.
    zoomed: (event, plotted) => (plotted?.partial ? event : window.dash_clientside.no_update),

    // Rows of the points in a lasso or a box, and their generation.
    selected: (...events) => {
      const [graph, event] = triggered(events);
      // A redraw sends an empty selection without a lasso.
      if (event && !event.lassoPoints && !event.range) return window.dash_clientside.no_update;
      // Disable the buttons until the server has sent the new selection.
      offered = { generation: null, rows: [] };
      for (const button of ["keep-selection", "drop-selection"]) props(button, { disabled: true });
      const { meta, selections } = plotOf(graph).layout;
      if (event && meta.partial) {
        props("lasso-shapes", { data: { generation: meta.generation, graph, outlines: selections.map(outlineOf) } });
        return window.dash_clientside.no_update;
      }
      // A late answer must not select again.
      props("lasso-shapes", { data: null });
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

    // Focus the clicked point.
    clicked: (...events) => {
      const [graph, event] = triggered(events);
      const row = event?.points?.[0]?.customdata;
      if (typeof row === "number") focus(row, generationOf(graph));
      return window.dash_clientside.no_update;
    },

    arrange: (view, width, network, other) => {
      // Plotly measures its size when the window changes.
      setTimeout(() => window.dispatchEvent(new Event("resize")), 50);
      // One map shows two settings of one network. In a comparison, colors show which of the settings drops.
      const shown = view === "review" ? "both" : width;
      return [`${view} ${shown}${network === other ? " single" : ""}`, view === "compare"];
    },

    // Write to the address what differs from a new page.
    remember: (keys, initial, settings, ...values) => {
      list = values[Object.keys(keys).indexOf("list")];
      if (!initial) return window.dash_clientside.no_update;
      const query = window.batchsieveAddress(keys, settings, values, initial);
      history.replaceState(null, "", query ? `?${query}` : location.pathname);
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
