// A sweep: one key set to several values, with the same plan or the best plan of each.
import { newKey, post, Problem } from './api.js';
import { h, ms, table, times } from './dom.js';
import { followPoints, plotOf } from './points.js';
import { cutWords, named, swept } from './words.js';

const FACTORS = '0.25x, 0.5x, 1x, 2x, 4x';
const KEYS = { link_bandwidth: FACTORS, link_latency: FACTORS, gpu_flops: FACTORS, memory_bandwidth: FACTORS,
  contention: 'off, 0.5x, 1x, 1.5x, 2x', tp: '1, 2, 4, 8', micro_batch_size: '4, 8, 16', seq_length: '1024, 2048, 4096' };

const cells = point => point.error ? [point.error, '–', '–', '–']
  : [point.plan ? cutWords(point.plan) : '–', ms(point.iteration_ms), ms(point.baseline_ms), times(point.speedup)];

/** Return how the points of a sweep are drawn: a function of their place and of them, by their places. */
export const drawSweep = job => (place, points) => {
  const [key, xs] = swept(job.request), of = name => xs.map((_, index) => points.get(index)?.[name] ?? null);
  const plot = plotOf({ label: 'Iteration', x: named(key), xs, unit: 'ms', digits: null, lines: [
    { name: 'Megatron-LM', role: 'base', values: of('baseline_ms') },
    { name: job.request.retune ? 'best plan' : 'this plan', role: 'chosen', values: of('iteration_ms') },
    { name: 'No communication', role: 'bound', values: of('no_comm_ms') }] });
  place.replaceChildren(h('div', { class: 'pair' }, h('div', {}, plot.element),
    h('div', {}, table('Points of the sweep', [named(key), 'plan', 'ms', 'Megatron-LM', 'speedup'],
      [...points].sort(([a], [b]) => a - b).map(([index, point]) => [xs[index], ...cells(point)]), 'crossovers'))));
  plot.draw();
};

/** Return the form under the sliders; `plan()` resolves to the plan file's text. */
export const sweeping = ({ plan, margin, signal }) => {
  const key = h('select', { id: 'sweep-key', onchange: () => { values.value = KEYS[key.value]; } },
    Object.keys(KEYS).map(one => h('option', { value: one }, named(one))));
  const values = h('input', { id: 'sweep-values', type: 'text', value: FACTORS, autocomplete: 'off',
    spellcheck: 'false', 'aria-describedby': 'sweep-error' });
  const anew = h('input', { id: 'sweep-retune', type: 'checkbox' });
  const error = h('p', { id: 'sweep-error', class: 'error', role: 'alert' }), host = h('div', { class: 'swept' });
  const go = async event => {
    event.preventDefault();
    const [, asked] = swept({ sweep: `=${values.value}` });
    error.textContent = '';
    try {
      const rest = JSON.stringify({ sweep: `${key.value}=${asked.join(',')}`, retune: anew.checked,
        memory_margin: margin ?? null }).slice(1);
      const job = await post('v1/jobs', `{"kind":"whatif","plan":${await plan()},${rest}`,
        { signal, headers: { 'idempotency-key': newKey() } });
      await followPoints(job, host, drawSweep(job), signal);
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
