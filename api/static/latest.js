// Latest wins: one question in flight, and of those asked meanwhile only the last is sent.
import { rest } from './watch.js';

/** A function that asks `ask(value)` and hands what comes to `told` or `failed`, in order. */
export const latest = (ask, told, failed, signal) => {
  let wanted = null, busy = false;
  const once = async question => {
    try {
      told(await ask(question.value), question.value);
    } catch (problem) {
      if (problem.name === 'AbortError') return;
      if (problem.status !== 429 && problem.status !== 503) { failed(problem, question.value); return; }
      await rest(problem.retryAfter || 1, signal);  // too much at once: ask then what is wanted then
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
