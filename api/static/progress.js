// A running job: how far it is and the best so far, told to eyes at once and to ears now and then.
import { remove } from './api.js';
import { button, h, ms, percent, times } from './dom.js';
import { asked, label, progressWords, share, stateWords } from './words.js';

const SPOKEN_EVERY_MS = 5000;

/** `{element, update(job)}`. */
export const progressBox = (path, fail) => {
  const bar = h('progress', { 'aria-label': 'Progress of the job', max: '1' });
  const text = h('p', { class: 'progress-text' }), best = h('p', { class: 'best-so-far' });
  const live = h('p', { class: 'sr', 'aria-live': 'polite', id: 'progress-live' });
  const cancel = button('Cancel', async () => {
    cancel.disabled = true;
    try { await remove(path); } catch (problem) { cancel.disabled = false; fail(problem); }
  });
  const element = h('div', { class: 'running' }, h('div', { class: 'running-head' }, text, cancel), bar, best, live);
  let spoken = 0, lastState = '';

  const update = job => {
    const part = share(job);
    if (part === null) bar.removeAttribute('value'); else bar.value = part;
    text.textContent = progressWords(job);
    best.textContent = bestWords(job.best);
    if (job.state !== lastState || performance.now() - spoken > SPOKEN_EVERY_MS) {
      [spoken, lastState] = [performance.now(), job.state];
      live.textContent = `${stateWords(job.state)}. ${progressWords(job)}. ${bestWords(job.best)}`;
    }
    document.title = `${part === null ? stateWords(job.state) : percent(part, 0)} · ${asked(job.request ?? {})}`;
  };
  return { element, update };
};

const bestWords = best => {
  if (!best || typeof best.iteration_ms !== 'number') return '';
  const cut = best.plan ? label(best.plan) : '';
  const gain = best.speedup ?? (best.baseline_ms ? best.baseline_ms / best.iteration_ms : null);
  return ['Best so far', `${ms(best.iteration_ms)} ms`, gain && times(gain), cut].filter(Boolean).join(' · ');
};
