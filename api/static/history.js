// All jobs: searched, filtered, labelled, deleted, and two of them chosen to be compared.
import { h, link } from './dom.js';
import { jobList, textOf } from './jobs.js';

const STATES = [['', 'all'], ['done', 'done'], ['open', 'not over yet'], ['failed', 'failed'], ['cancelled', 'cancelled']];
const KIND_NAMES = [['', 'all'], ['tune', 'tunes'], ['layout', 'layouts']];
const MOST = 500;

const choice = (id, name, options, onchange) => h('div', { class: 'field' }, h('label', { for: id }, name),
  h('select', { id, onchange }, options.map(([value, text]) => h('option', { value }, text))));

/** Return the view of the history, updated until `signal`. */
export const history = ({ signal, fail }) => {
  const picks = new Map(), compare = h('p', { class: 'note', role: 'status' });
  const tell = () => {
    const [one, other] = [...picks.values()];
    compare.replaceChildren(...(picks.size < 2 ? [picks.size ? 'Tick one more to compare.' : 'Tick two that are done to compare them.']
      : picks.size > 2 ? ['Untick all but two to compare.']
        : [link(`#/compare/${one.kind}s.${one.id}/${other.kind}s.${other.id}`, 'Compare the two')]));
  };
  const picked = (job, whether) => {
    if (whether) picks.set(job.id, job); else picks.delete(job.id);
    tell();
  };
  const search = h('input', { id: 'search', type: 'text', autocomplete: 'off', spellcheck: 'false',
    placeholder: 'model, profile, label …', oninput: () => jobs.refresh() });
  const state = choice('state', 'State', STATES, () => jobs.refresh()), kind = choice('kind', 'Kind', KIND_NAMES, () => jobs.refresh());
  const wanted = job => {
    const [inState, ofKind] = [state, kind].map(one => one.querySelector('select').value);
    const open = job.state === 'queued' || job.state === 'running';
    return (!inState || inState === job.state || (inState === 'open' && open)) && (!ofKind || ofKind === job.kind)
      && search.value.toLowerCase().split(/\s+/).every(word => textOf(job).includes(word));
  };
  const jobs = jobList({ limit: MOST, signal, fail, tools: true, wanted, picked });
  tell();
  return h('div', { class: 'history' }, h('div', { class: 'filters' },
    h('div', { class: 'field wide' }, h('label', { for: 'search' }, 'Search'), search), state, kind), compare, jobs.element);
};
