// The list of jobs: progress of running ones, results of finished ones, and what can be done with each.
import { first, patch, remove } from './api.js';
import { button, h, link, sureButton, when } from './dom.js';
import { rest } from './watch.js';
import { asked, bestWords, over, progressWords, share } from './words.js';

const BUSY_S = 2, IDLE_S = 15, LONGEST_LABEL = 100;
const COMPARED = ['tune', 'layout'];

const outcome = job => job.state === 'failed' ? job.error?.detail ?? job.error?.title ?? 'failed'
  : [job.stopped_by && job.state === 'done' && 'stopped early', bestWords(job)]
    .filter(Boolean).join(' · ');

// A line is made once and then updated, so that the focus stays.
const line = (job, { tools, picked, forget }) => {
  const path = `v1/jobs/${job.id}`, name = asked(job.request ?? {});
  const state = h('span', { class: 'state' }), said = h('span', { class: 'outcome' });
  const bar = h('progress', { max: '1', 'aria-label': 'Progress' }), label = h('span', { class: 'tie' });
  const doing = async (what, control) => {
    control.disabled = true;
    try { await what(); } catch (problem) { said.textContent = problem.message; }
    control.disabled = false;
  };
  const cancel = button('Cancel', () => doing(async () => { await remove(path); forget(job.id); }, cancel), { 'aria-label': `Cancel ${name}` });
  const gone = sureButton('Delete', name, control => doing(async () => { await remove(path); forget(job.id); }, control));
  const field = h('input', { type: 'text', class: 'label', placeholder: 'label', maxlength: LONGEST_LABEL, 'aria-label': `Label of ${name}`,
    onchange: () => doing(() => patch(path, { label: field.value.trim() || null }), field) });
  const pick = h('input', { type: 'checkbox', 'aria-label': `Compare ${name}`, onchange: () => picked(job, pick.checked) });
  const element = h('li', { class: 'job', 'data-id': job.id }, h('span', { class: 'title' }, tools && pick,
    h('span', {}, link(`#/${job.kind === 'validate' ? 'tune' : job.kind}/${job.request?.of ?? job.id}`, name), tools ? '' : label)), h('span', { class: 'when' }, when(job.created)),
    state, bar, said, h('span', { class: 'acts' }, tools && field, cancel, tools && gone));
  const update = now => {
    const ended = over(now.state);
    element.dataset.state = now.state;
    state.textContent = ended ? '' : progressWords(now);
    const part = share(now);
    if (part === null) bar.removeAttribute('value'); else bar.value = part;
    bar.hidden = cancel.hidden = ended;
    gone.hidden = !ended;
    pick.style.visibility = now.state === 'done' && COMPARED.includes(now.kind) ? '' : 'hidden';  // its place stays
    said.textContent = outcome(now);
    label.textContent = now.label ?? '';
    label.hidden = !now.label;
    if (document.activeElement !== field) field.value = now.label ?? '';
  };
  update(job);
  return { element, update };
};

/** Return `{element, refresh()}`: the newest jobs that match `query()`, `limit` at first, updated until `signal`. With
    `tools`, older ones are a click away, and jobs are labelled, deleted and picked: `picked(job, whether)`. */
export const jobList = ({ limit = 50, query = () => ({}), signal, fail, tools = false, picked = () => {} }) => {
  const host = h('ul', { class: 'jobs' }), none = h('p', { class: 'note', hidden: true }), shown = new Map();
  let wanted = limit, turn = new AbortController();
  const refresh = () => turn.abort();
  const older = button('Show older ones', () => { wanted += limit; refresh(); }, { hidden: true });
  const forget = id => { shown.get(id)?.element.remove(); shown.delete(id); refresh(); };
  const draw = ({ items, next }) => {
    for (const job of items) {
      if (shown.has(job.id)) shown.get(job.id).update(job);
      else shown.set(job.id, line(job, { tools, picked, forget }));
    }
    const elements = items.map(job => shown.get(job.id).element);
    if (elements.length !== host.children.length || elements.some((element, index) => host.children[index] !== element)) {
      host.replaceChildren(...elements);
    }
    older.hidden = !tools || !next;
    none.textContent = Object.keys(query()).length ? 'Nothing matches.' : 'Nothing asked yet.';
    none.hidden = items.length > 0;
  };
  const look = async either => {
    try {
      const found = await first('v1/jobs', { limit: wanted, query: query(), signal: either });
      draw(found);
      return found.items.some(job => !over(job.state)) && !document.hidden ? BUSY_S : IDLE_S;
    } catch (problem) {
      if (problem.status >= 400 && problem.status < 500 && problem.status !== 429) throw problem;
      return Math.max(problem.retryAfter ?? 0, BUSY_S);
    }
  };
  const keep = async () => {
    while (!signal.aborted) {
      turn = new AbortController();
      const either = AbortSignal.any([signal, turn.signal]);
      await rest(await look(either), either).catch(() => {});
    }
  };
  keep().catch(problem => fail(problem, host));
  return { element: h('div', {}, host, none, older), refresh };
};
