// The id of this page, by which the server keeps its undo history.
(() => {
  const randomId = () => Math.random().toString(36).slice(2);
  // A reload keeps the id.
  const page = (window.batchsievePage = { id: (sessionStorage.page ??= randomId()) });
  // A browser copies the id to a duplicated tab, which takes another one as soon as an open page answers.
  const [pages, self] = [new BroadcastChannel("batchsieve-pages"), randomId()];
  pages.onmessage = ({ data }) => {
    if (data.answered === self) page.id = sessionStorage.page = randomId();
    else if (data.id === page.id) pages.postMessage({ answered: data.from });
  };
  pages.postMessage({ id: page.id, from: self });
})();
