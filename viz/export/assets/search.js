// Search by path, class and reason, as in viz/search.py: all words must match. A test compares the two.

const SEARCH_WORD = /(?:(path|class|reason):)?(?:"([^"]*)"|(\S+))/giu;

function parseQuery(query) {
  return [...query.matchAll(SEARCH_WORD)]
    .map(([, field, quoted, plain]) => ({ field: field?.toLowerCase(), text: (quoted || plain || "").toLowerCase() }))
    .filter(({ text }) => text);
}

/** Return a function from an image to whether it matches. */
function matcher(data, query) {
  const words = parseQuery(query);
  if (!words.length) return () => true;
  const classNames = data.about.classNames.map((name) => name.toLowerCase());
  const fields = {
    path: (i) => data.path[i].toLowerCase(),
    class: (i) => classNames[data.label[i]],
    reason: (i) => data.reason[i].toLowerCase(),
  };
  const found = (name, i, text) => fields[name](i).includes(text);
  const contains = ({ field, text }, i) => (field ? [field] : Object.keys(fields)).some((name) => found(name, i, text));
  return (i) => words.every((word) => contains(word, i));
}
