// Keys of the view Review: the next image is chosen here, without waiting for the server.
(() => {
  const PRELOADED = 3;
  // Rows around the shown image, and undecided ones, as the server knows them.
  let queue = null;
  // Decided since; the server may not have answered yet.
  const decided = new Set();
  // Commands without an answer; the stamp of overrides.csv, and its earlier ones.
  let pending = 0;
  let stamp = null;
  const passed = new Set();

  function follow(edited) {
    if (edited === stamp) return;
    if (stamp !== null) passed.add(stamp);
    passed.delete(edited);
    stamp = edited;
  }

  // Components that each part of the page shows.
  const built = new Map();

  // Return the element of a component of Dash. Dash itself compares each component of the page with its earlier self at
  // every step of a callback, so that a hundred decisions would slow each key.
  function elementOf(component) {
    if (typeof component !== "object") return document.createTextNode(component);
    const { children, className, ...attributes } = component.props;
    const made = document.createElement(component.type);
    if (className) made.className = className;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...elementsOf(children));
    return made;
  }

  const elementsOf = (children) => [children ?? []].flat(Infinity).map(elementOf);

  const stops = (part) => [...part.querySelectorAll("button, [tabindex]")];
  const isEnabled = (stop) => !stop.disabled;

  function preload(rows, stamp) {
    for (const row of rows) new Image().src = `/thumbnail/${row}.png?${stamp}`;
  }

  window.batchsieveReview = {
    /** Show components in the part of the page with this id; null removes them. */
    build: (id, components) => {
      if (built.get(id) === components) return;
      built.set(id, components);
      const part = document.getElementById(id);
      const at = stops(part).indexOf(document.activeElement);
      part.replaceChildren(...elementsOf(components));
      if (at < 0) return;
      // The keyboard stays where it was, or at the last place before it that is left.
      const left = stops(part);
      (left.slice(0, at + 1).findLast(isEnabled) ?? left.find(isEnabled))?.focus({ preventScroll: true });
    },

    /** Take the rows of the server; return the row to choose if the chosen one is not in the list, else null. */
    update: (rows, focused) => {
      queue = rows;
      // An answer from after the last save knows all decisions; those that others removed are undecided again.
      if (rows && !pending && !passed.has(rows.edited)) {
        follow(rows.edited);
        decided.clear();
      }
      if (!rows || rows.row === null) return null;
      preload(rows.undecided.slice(0, PRELOADED + 1), rows.images);
      return rows.row !== rows.asked && rows.asked === focused ? rows.row : null;
    },

    isActive: () => document.getElementById("page")?.classList.contains("review") ?? false,

    generation: () => queue?.generation ?? null,

    has: (row) => queue?.window.includes(row) ?? false,

    /** The row `by` places after a row; null at the ends. */
    step: (row, by) => {
      const at = queue?.window.indexOf(row) ?? -1;
      return at < 0 ? queue?.row ?? null : queue.window[at + by] ?? null;
    },

    /** The next row without a decision after a row; null if none is known. */
    next: (row) => {
      const undecided = (queue?.undecided ?? []).filter((other) => other === row || !decided.has(other));
      const at = undecided.indexOf(row);
      const place = queue?.window.indexOf(row) ?? -1;
      // The server has not answered for this row yet, which has a decision or is before the rows that it sent.
      if (at < 0 && place >= 0 && row !== queue.row) {
        const beyond = undecided.filter((other) => !queue.window.includes(other));
        const next = [...queue.window.slice(place + 1).filter((other) => undecided.includes(other)), ...beyond][0];
        if (next !== undefined) return next;
        if (!queue.complete) return null;
      }
      // The first row follows the last one only if the server has sent all.
      const before = queue?.complete ? undecided.slice(0, Math.max(at, 0)) : [];
      return [...undecided.slice(at + 1), ...before][0] ?? null;
    },

    /** A command goes to the server. */
    sent: () => {
      pending += 1;
    },

    /** The server has answered `n` commands, or will not; `edited` is the stamp of the file, if it is known. */
    answered: (n, edited) => {
      pending -= n;
      if (edited) follow(edited);
    },

    note: (action, row) => {
      if (["keep", "drop", "relabel"].includes(action)) decided.add(row);
      else decided.delete(row);
    },
  };
})();
