// Decisions go to the server one by one, in order. One that is not saved drops those after it.
(() => {
  const TIMEOUT_MS = 10000;

  async function ask(command) {
    const request = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(command) };
    try {
      const answer = await fetch("/decide", request);
      return answer.ok ? await answer.json() : { message: `NOT SAVED: the server fails (${answer.status})`, failed: true };
    } catch {
      return { message: "NOT SAVED: the server does not answer", failed: true };
    }
  }

  /** A queue of commands. `say(message, failed)` shows a message; `saved(command, answer)` and `failed(commands)` follow
   *  the answer; `done(edited)` gets the stamp of the file when none waits. */
  window.batchsieveSender = ({ say, saved, failed, done }) => {
    const waiting = [];
    let stalled = false;

    async function send() {
      let edited = null;
      while (waiting.length) {
        say("Saving…");
        const late = setTimeout(() => {
          stalled = true;
          say("NOT SAVED: the server does not answer yet", true);
        }, TIMEOUT_MS);
        const answer = await ask(waiting[0]);
        clearTimeout(late);
        stalled = false;
        edited = answer.edited ?? edited;
        if (answer.failed) {
          const dropped = waiting.splice(0);
          say(answer.message + (dropped.length > 1 ? ` (nor the ${dropped.length - 1} after it)` : ""), true);
          failed(dropped);
        } else {
          const command = waiting.shift();
          say(answer.message);
          saved(command, answer);
        }
      }
      if (edited !== null) done(edited);
    }

    return {
      isStalled: () => stalled,
      push: (command) => {
        waiting.push(command);
        if (waiting.length === 1) send();
      },
    };
  };
})();
