// The address of the page: a key and a plain value for each control that differs from a new page.
(() => {
  // min_samples of a new page.
  const MIN_SAMPLES = 5;

  // Commas, colons and slashes have no meaning in a query, and a person reads them better as they are.
  const encoded = (text) => encodeURIComponent(text).replaceAll("%20", "+").replace(/%(2C|3A|2F)/g, decodeURIComponent);

  // An unchecked box is an empty list.
  const textOf = (value) => (Array.isArray(value) ? value.join(",") || "off" : String(value));

  // Keys and values of the filter settings; none for those of the filter. viz/callbacks/url.py reads them.
  function settings({ scorer_choice, limit, per_class }) {
    const classLimits = Object.entries(per_class).map(
      ([label, { threshold, min_samples }]) => `${label}:${threshold ?? ""}:${min_samples}`,
    );
    if (scorer_choice === "written" && limit.threshold === null && !classLimits.length) return [];
    const values = {
      scorer: scorer_choice === "written" ? null : scorer_choice,
      threshold: limit.threshold,
      min_samples: limit.min_samples === MIN_SAMPLES ? null : limit.min_samples,
      per_class: classLimits.join(",") || null,
    };
    return Object.entries(values).filter(([, value]) => value !== null);
  }

  /** Return the query of a page: `keys` and `values` by control, in the same order; `initial` are those of a new page. */
  window.batchsieveAddress = (keys, stored, values, initial) => {
    const changed = Object.entries(keys)
      .map(([name, key], index) => [name, key, values[index]])
      .filter(([name, , value]) => value !== null && JSON.stringify(value) !== JSON.stringify(initial[name]))
      .map(([, key, value]) => [key, textOf(value)]);
    const query = [...(stored ? settings(stored) : []), ...changed];
    return query.map(([key, value]) => `${key}=${encoded(value)}`).join("&");
  };
})();
