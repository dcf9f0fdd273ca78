// One request at a time; of the values that come during it, only the latest is sent next.
import { rest } from './watch.js';

/** Return a function that calls `ask(value)`, then `told` with its result or `failed` with its error. */
export const latest = (ask, told, failed, signal) => {
  let wanted = null, busy = false;
  const once = async question => {
    try {
      told(await ask(question.value), question.value);
    } catch (problem) {
      if (problem.name === 'AbortError') return;
      if (problem.status !== 429 && problem.status !== 503) { failed(problem, question.value); return; }
      await rest(problem.retryAfter || 1, signal);  // the server is busy: then send the value that is wanted then
      wanted ??= question;
    }
  };
  const run = async () => {
    busy = true;
    while (wanted && !signal.aborted) {
      const question = wanted;
      wanted = null;
      await once(question);
    }
    busy = false;
  };
  return value => {
    wanted = { value };
    if (!busy) run().catch(problem => { busy = false; if (problem.name !== 'AbortError') failed(problem, value); });
  };
};
