// A sweep: one key set to several values, with the same plan or the best plan of each.
import { list, newKey, post, Problem } from './api.js';
import { button, h, ms, table, times } from './dom.js';
import { lines } from './plot.js';
import { watch } from './watch.js';
import { label, over, progressWords, share } from './words.js';

const FACTORS = '0.25x, 0.5x, 1x, 2x, 4x';
const KEYS = { link_bandwidth: FACTORS, link_latency: FACTORS, gpu_flops: FACTORS, memory_bandwidth: FACTORS,
  contention: 'off, 0.5x, 1x, 1.5x, 2x', tp: '1, 2, 4, 8', micro_batch_size: '4, 8, 16', seq_length: '1024, 2048, 4096' };

const named = key => key.replaceAll('_', ' ');

const cells = point => point.error ? [point.error, '–', '–']
  : [label(point.plan), ms(point.iteration_ms), times(point.speedup)];

const picture = (key, values, points) => {
  const of = name => values.map((_, index) => points.get(index)?.[name] ?? null);
  return h('div', { class: 'pair' },
    h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `Iteration by ${named(key)}` }, lines(named(key), values, [['base', 'Megatron-LM', of('baseline_ms')],
      ['mine', 'Domino', of('iteration_ms')], ['bound', 'No communication', of('no_comm_ms')]])),
    table('Points of the sweep', [named(key), 'plan', 'ms', 'speedup'],
      [...points].sort(([a], [b]) => a - b).map(([index, point]) => [values[index], ...cells(point)]), 'crossovers'));
};

// The server stores points one by one; at each progress of the job, fetch the new ones.
const follow = async (job, key, values, host, signal) => {
  const path = `v1/sweeps/${job.id}`, points = new Map();
  const bar = h('progress', { max: '1', 'aria-label': 'Progress of the sweep' }),
    text = h('p', { class: 'progress-text', 'aria-live': 'polite' }), shown = h('div', {});
  const cancel = button('Cancel', () => { cancel.disabled = true; post(`${path}/cancel`).catch(() => { cancel.disabled = false; }); });
  host.replaceChildren(h('div', { class: 'running' }, h('div', { class: 'running-head' }, text, cancel), bar), shown);
  let seen = -1, fetching = Promise.resolve();
  const fetchPoints = async () => {
    for (const { index, point } of await list(`${path}/points`, { limit: 1000, signal })) points.set(index, point);
    shown.replaceChildren(picture(key, values, points));
  };
  const last = await watch(path, now => {
    const part = share(now);
    if (part === null) bar.removeAttribute('value'); else bar.value = part;
    text.textContent = progressWords(now);
    if (now.progress.done === seen) return;
    seen = now.progress.done;
    fetching = fetching.then(fetchPoints, fetchPoints);
  }, signal);
  await fetching.catch(() => {});
  await fetchPoints();
  cancel.remove();
  bar.hidden = over(last.state);
  text.textContent = last.state === 'done' ? `${points.size} points.` : last.error?.detail ?? last.state;
};

/** Return the form under the sliders; `plan()` resolves to the plan file's text. */
export const sweeping = ({ plan, signal }) => {
  const key = h('select', { id: 'sweep-key', onchange: () => { values.value = KEYS[key.value]; } },
    Object.keys(KEYS).map(one => h('option', { value: one }, named(one))));
  const values = h('input', { id: 'sweep-values', type: 'text', value: FACTORS, autocomplete: 'off',
    spellcheck: 'false', 'aria-describedby': 'sweep-error' });
  const anew = h('input', { id: 'sweep-retune', type: 'checkbox' });
  const error = h('p', { id: 'sweep-error', class: 'error', role: 'alert' }), host = h('div', { class: 'swept' });
  const go = async event => {
    event.preventDefault();
    const asked = values.value.split(',').map(value => value.trim()).filter(Boolean), chosen = key.value;
    error.textContent = '';
    try {
      const rest = JSON.stringify({ sweep: `${chosen}=${asked.join(',')}`, retune: anew.checked }).slice(1);
      const job = await post('v1/sweeps', `{"plan":${await plan()},${rest}`,
        { signal, headers: { 'idempotency-key': newKey() } });
      await follow(job, chosen, asked, host, signal);
    } catch (problem) {
      if (problem.name === 'AbortError') return;
      if (!(problem instanceof Problem)) throw problem;
      error.textContent = problem.message;
    }
  };
  return h('div', { class: 'sweep-box' }, h('h3', {}, 'Over a range'),
    h('form', { class: 'sweep-form', novalidate: true, onsubmit: go },
      h('div', { class: 'field' }, h('label', { for: 'sweep-key' }, 'Change'), key),
      h('div', { class: 'field wide' }, h('label', { for: 'sweep-values' }, 'to each of'), values),
      h('div', { class: 'field box' }, anew, h('label', { for: 'sweep-retune' }, 'tune anew at each')),
      h('button', {}, 'Sweep')), error, host);
};
