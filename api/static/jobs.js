// The list of tunes: progress of running ones, results of finished ones.
import { list, remove } from './api.js';
import { button, h, link, ms, times, when } from './dom.js';
import { asked, label, over, progressWords, share } from './words.js';
import { rest } from './watch.js';

const BUSY_S = 2, IDLE_S = 15;

const outcome = job => {
  if (job.state === 'failed') return job.error?.detail ?? job.error?.title ?? 'failed';
  const { best } = job, called = job.state === 'cancelled' && 'cancelled';
  const found = best ? [best.baseline_ms && times(best.baseline_ms / best.iteration_ms), `${ms(best.iteration_ms)} ms`,
    label(best.plan)] : [];
  return [called, ...found].filter(Boolean).join(' · ');
};

// A line is made once and then updated, so that the focus stays.
const line = job => {
  const state = h('span', { class: 'state' }), said = h('span', { class: 'outcome' });
  const bar = h('progress', { max: '1', 'aria-label': 'Progress' });
  const cancel = button('Cancel', async () => {
    cancel.disabled = true;
    try { await remove(`v1/tunes/${job.id}`); } catch (problem) { cancel.disabled = false; said.textContent = problem.message; }
  }, { 'aria-label': `Cancel ${asked(job.request ?? {})}` });
  const element = h('li', { class: 'job' }, link(`#/tunes/${job.id}`, asked(job.request ?? {})),
    h('span', { class: 'when' }, when(job.created)), state, bar, said, cancel);
  const update = now => {
    element.dataset.state = now.state;
    state.textContent = over(now.state) ? '' : progressWords(now);
    const part = share(now);
    if (part === null) bar.removeAttribute('value'); else bar.value = part;
    bar.hidden = cancel.hidden = over(now.state);
    said.textContent = outcome(now);
  };
  update(job);
  return { element, update };
};

/** Return a list of the newest `limit` tunes, updated until `signal`. */
export const jobList = ({ limit = 50, signal, fail }) => {
  const host = h('ul', { class: 'jobs' }), none = h('p', { class: 'note' }, 'Nothing tuned yet.');
  const shown = new Map();
  none.hidden = true;
  const draw = jobs => {
    for (const job of jobs) {
      if (shown.has(job.id)) shown.get(job.id).update(job);
      else shown.set(job.id, line(job));
    }
    const wanted = jobs.map(job => shown.get(job.id).element);
    if (wanted.some((element, index) => host.children[index] !== element)) host.replaceChildren(...wanted);
    none.hidden = jobs.length > 0;
  };
  const keep = async () => {
    while (!signal.aborted) {
      let busy = false, wait = 0;
      try {
        const jobs = await list('v1/tunes', { limit, signal });
        draw(jobs);
        busy = jobs.some(job => !over(job.state));
      } catch (problem) {
        if (problem.name === 'AbortError' || problem.status === 401 || problem.status === 403) throw problem;
        wait = problem.retryAfter ?? 0;
      }
      await rest(Math.max(wait, busy && !document.hidden ? BUSY_S : IDLE_S), signal);
    }
  };
  keep().catch(problem => { if (problem.name !== 'AbortError') fail(problem, host); });
  return h('div', {}, host, none);
};
