// All jobs: searched and filtered by the server, labelled, deleted, and two of them chosen to be compared.
import { h, link } from './dom.js';
import { jobList } from './jobs.js';

const STATES = [['', 'all'], ['done', 'done'], ['running', 'running'], ['queued', 'waiting'], ['failed', 'failed']];
const KIND_NAMES = { tune: 'tunes', layout: 'layouts', scale: 'numbers of GPUs', whatif: 'sweeps', calibrate: 'calibrations', validate: 'measured' };
const TYPED_MS = 250;  // a pause after which what was typed is searched for

const choice = (id, name, options, onchange) => h('div', { class: 'field' }, h('label', { for: id }, name),
  h('select', { id, onchange }, options.map(([value, text]) => h('option', { value }, text))));

/** Return the view of the history, updated until `signal`. */
export const history = ({ signal, fail }) => {
  const picks = new Map(), compare = h('p', { class: 'note', role: 'status' });
  const tell = () => {
    const [one, other] = [...picks.values()];
    compare.replaceChildren(...(picks.size < 2 ? [picks.size ? 'Tick one more to compare.' : 'Tick two that are done to compare them.']
      : picks.size > 2 ? ['Untick all but two to compare.']
        : [link(`#/compare/${one.kind}.${one.id}/${other.kind}.${other.id}`, 'Compare the two')]));
  };
  const picked = (job, whether) => {
    if (whether) picks.set(job.id, job); else picks.delete(job.id);
    tell();
  };
  let typed = 0;
  const search = h('input', { id: 'search', type: 'search', autocomplete: 'off', spellcheck: 'false', maxlength: '100',
    placeholder: 'model, machine, label …', oninput: () => { clearTimeout(typed); typed = setTimeout(() => jobs.refresh(), TYPED_MS); } });
  const state = choice('state', 'State', STATES, () => jobs.refresh());
  const kind = choice('kind', 'Kind', [['', 'all'], ...Object.entries(KIND_NAMES)], () => jobs.refresh());
  const query = () => Object.fromEntries([['q', search.value.trim()], ...[['state', state], ['kind', kind]]
    .map(([name, one]) => [name, one.querySelector('select').value])].filter(([, value]) => value));
  const jobs = jobList({ signal, fail, tools: true, query, picked });
  tell();
  return h('div', { class: 'history' }, h('div', { class: 'filters' },
    h('div', { class: 'field wide' }, h('label', { for: 'search' }, 'Search'), search), state, kind), compare, jobs.element);
};
