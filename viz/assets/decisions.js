// Decisions go to the server one by one, in order. One that is not saved drops those after it.
(() => {
  const TIMEOUT_MS = 10000;
  // What overrides.csv has for the image after a command.
  const EXPECTED = { keep: "keep", drop: "drop", relabel: "relabel", clear: "" };

  // Return the answer; failed if the file has something else than the command.
  function checked(command, answer) {
    const { decision } = answer;
    const expected = EXPECTED[command.action];
    if (answer.failed || expected === undefined || typeof decision !== "string" || decision === expected) return answer;
    const message = `NOT SAVED: overrides.csv has ${decision || "no decision"} for image #${command.rows[0]}`;
    return { ...answer, message, failed: true };
  }

  async function ask(command) {
    const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(command) };
    try {
      const answer = await fetch("/decide", request);
      return answer.ok ? checked(command, await answer.json()) : { message: `NOT SAVED: the server fails (${answer.status})`, failed: true };
    } catch {
      return { message: "NOT SAVED: the server does not answer", failed: true };
    }
  }

  /** A queue of commands. `say(message, failed)` shows a message; `saved(command, answer)` and `failed(commands, answer)`
   *  follow the answer; `done(edited)` gets the stamp of the file when none waits. */
  window.batchsieveSender = ({ say, saved, failed, done }) => {
    const waiting = [];
    let stalled = false;
    // What was not saved stays on the page until an answer that succeeded.
    let failing = false;

    async function send() {
      let edited = null;
      while (waiting.length) {
        if (!failing) say("Saving…");
        const late = setTimeout(() => {
          stalled = failing = true;
          say("NOT SAVED: the server does not answer yet", true);
        }, TIMEOUT_MS);
        const answer = await ask(waiting[0]);
        clearTimeout(late);
        stalled = false;
        failing = Boolean(answer.failed);
        edited = answer.edited ?? edited;
        if (answer.failed) {
          const dropped = waiting.splice(0);
          say(answer.message + (dropped.length > 1 ? ` (nor the ${dropped.length - 1} after it)` : ""), true);
          failed(dropped, answer);
        } else {
          const command = waiting.shift();
          say(answer.message);
          saved(command, answer);
        }
      }
      if (edited !== null) done(edited);
    }

    // The browser asks before it leaves a page whose decisions are not saved yet.
    window.addEventListener("beforeunload", (event) => {
      if (waiting.length) event.preventDefault();
    });

    return {
      isStalled: () => stalled,
      // What was not saved stays on the page.
      hint: (message) => { if (!failing && !waiting.length) say(message); },
      push: (command) => {
        waiting.push(command);
        if (waiting.length === 1) send();
      },
    };
  };
})();
