// The list of jobs: progress of running ones, results of finished ones, and what can be done with each.
import { list, post, remove } from './api.js';
import { button, h, link, when } from './dom.js';
import { keepLabel, labelOf } from './labels.js';
import { rest } from './watch.js';
import { asked, bestWords, over, progressWords, share } from './words.js';

const BUSY_S = 2, IDLE_S = 15;
export const KINDS = ['tunes', 'layouts'];

const outcome = job => job.state === 'failed' ? job.error?.detail ?? job.error?.title ?? 'failed'
  : [job.state === 'cancelled' && 'cancelled', job.stopped_by && job.state === 'done' && 'stopped early', bestWords(job)]
    .filter(Boolean).join(' · ');

/** Return the text that a search looks through. */
export const textOf = job => [labelOf(job.id), asked(job.request ?? {}), outcome(job), job.id].join(' ').toLowerCase();

const labelling = job => {
  const field = h('input', { type: 'text', class: 'label', value: labelOf(job.id), placeholder: 'label', maxlength: '60',
    'aria-label': `Label of ${asked(job.request ?? {})}`, onchange: () => keepLabel(job.id, field.value.trim()) });
  return field;
};

// A line is made once and then updated, so that the focus stays.
const line = (job, { tools, picked, forget }) => {
  const path = `v1/${job.kind}s/${job.id}`, name = asked(job.request ?? {});
  const state = h('span', { class: 'state' }), said = h('span', { class: 'outcome' });
  const bar = h('progress', { max: '1', 'aria-label': 'Progress' });
  const act = (text, about, what) => {
    const made = button(text, async () => {
      made.disabled = true;
      try { await what(); } catch (problem) { made.disabled = false; said.textContent = problem.message; }
    }, { 'aria-label': `${about} ${name}` });
    return made;
  };
  const cancel = act('Cancel', 'Cancel', () => post(`${path}/cancel`));
  const gone = act('Delete', 'Delete', async () => { await remove(path); forget(job.id); });
  const pick = h('input', { type: 'checkbox', 'aria-label': `Compare ${name}`, onchange: () => picked(job, pick.checked) });
  const element = h('li', { class: 'job', 'data-id': job.id }, h('span', { class: 'title' }, tools && pick,
    link(`#/${job.kind}s/${job.id}`, name)), h('span', { class: 'when' }, when(job.created)),
    state, bar, said, h('span', { class: 'acts' }, tools && labelling(job), cancel, tools && gone));
  const update = now => {
    const ended = over(now.state);
    element.dataset.state = now.state;
    state.textContent = ended ? '' : progressWords(now);
    const part = share(now);
    if (part === null) bar.removeAttribute('value'); else bar.value = part;
    bar.hidden = cancel.hidden = ended;
    gone.hidden = !ended;
    pick.hidden = now.state !== 'done';
    said.textContent = outcome(now);
  };
  update(job);
  return { element, update };
};

/** Return `{element, refresh()}`: the newest `limit` jobs that `wanted(job)` lets through, updated until `signal`. With
    `tools`, jobs are labelled, deleted and picked: `picked(job, whether)`. */
export const jobList = ({ limit = 50, signal, fail, tools = false, wanted = () => true, picked = () => {} }) => {
  const host = h('ul', { class: 'jobs' }), none = h('p', { class: 'note' });
  const shown = new Map();
  let jobs = [];
  const refresh = () => {
    const right = jobs.filter(wanted).slice(0, limit);
    const elements = right.map(job => shown.get(job.id).element);
    if (elements.length !== host.children.length || elements.some((element, index) => host.children[index] !== element)) {
      host.replaceChildren(...elements);
    }
    none.textContent = jobs.length ? 'Nothing matches.' : 'Nothing asked yet.';
    none.hidden = right.length > 0;
  };
  const forget = id => {
    jobs = jobs.filter(job => job.id !== id);
    shown.delete(id);
    keepLabel(id, '');
    refresh();
  };
  none.hidden = true;
  const draw = found => {
    jobs = found.flat().sort((one, other) => other.created.localeCompare(one.created));
    for (const job of jobs) {
      if (shown.has(job.id)) shown.get(job.id).update(job);
      else shown.set(job.id, line(job, { tools, picked, forget }));
    }
    refresh();
  };
  const keep = async () => {
    while (!signal.aborted) {
      let wait = 0;
      try {
        draw(await Promise.all(KINDS.map(kind => list(`v1/${kind}`, { limit, signal }))));
      } catch (problem) {
        if (problem.name === 'AbortError' || problem.status === 401 || problem.status === 403) throw problem;
        wait = problem.retryAfter ?? 0;
      }
      const busy = jobs.some(job => !over(job.state));
      await rest(Math.max(wait, busy && !document.hidden ? BUSY_S : IDLE_S), signal);
    }
  };
  keep().catch(problem => { if (problem.name !== 'AbortError') fail(problem, host); });
  return { element: h('div', {}, host, none), refresh };
};
