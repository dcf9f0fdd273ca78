// How a running job ends before its time: with what it has, or without a trace.
import { post, remove } from './api.js';
import { button } from './dom.js';

/** Return two buttons for the job at `path`: stop it and keep the best so far, and cancel it, which deletes it. */
export const endings = (path, fail) => [['Stop and keep', () => post(`${path}/stop`)],
  ['Cancel', () => { location.hash = '#/history'; return remove(path); }]].map(([name, act]) => {
  const made = button(name, async () => {
    made.disabled = true;
    try { await act(); } catch (problem) { made.disabled = false; fail(problem); }
  });
  return made;
});
