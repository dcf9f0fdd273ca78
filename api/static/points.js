// A job whose points are drawn as they come: its progress, and what is known so far.
import { get } from './api.js';
import { h } from './dom.js';
import { endings } from './ending.js';
import { drawPlot } from './plot.js';
import { watch } from './watch.js';
import { over, progressWords, share } from './words.js';

/** Return the element of a line plot; `data` as plot.js has it. Call `draw()` when it is in the document, whose width it takes. */
export const plotOf = data => {
  const element = h('div', { class: 'plot-host', 'data-plot': JSON.stringify(data) });
  return { element, draw: () => drawPlot(element) };
};

/** Follow `job` in `host` until it is over: `draw(place, points)` draws its points, a map by their place. The server
    stores them one by one; at each progress of the job, the new ones are fetched. */
export const followPoints = async (job, host, draw, signal) => {
  const path = `v1/jobs/${job.id}`, points = new Map();
  const bar = h('progress', { max: '1', 'aria-label': 'Progress' }), trouble = h('p', { class: 'error', role: 'alert' }),
    text = h('p', { class: 'progress-text', 'aria-live': 'polite' }), place = h('div', {});
  const ends = h('div', { class: 'ends' }, endings(path, problem => { trouble.textContent = problem.message; }));
  host.replaceChildren(h('div', { class: 'running' }, h('div', { class: 'running-head' }, text, ends), bar, trouble), place);
  let seen = -1, fetching = Promise.resolve();
  const fetchPoints = async () => {
    for (const { index, point } of (await get(`${path}/files/points`, { signal })).items) points.set(index, point);
    if (points.size) draw(place, points);
  };
  const last = await watch(path, now => {
    const part = share(now);
    if (part === null) bar.removeAttribute('value'); else bar.value = part;
    text.textContent = progressWords(now);
    ends.hidden = bar.hidden = over(now.state);
    if (now.progress.done === seen) return;
    seen = now.progress.done;
    fetching = fetching.then(fetchPoints, fetchPoints);
  }, signal);
  await fetching.catch(() => {});
  await fetchPoints();
  text.textContent = last.state !== 'done' ? last.error?.detail ?? last.state
    : `${points.size} ${points.size === 1 ? 'point' : 'points'}${last.stopped_by ? ': stopped and kept' : ''}.`;
};
