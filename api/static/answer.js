// The answer: speedup, plan and confidence; then three bars.
import { gib, h, ms, percent, times } from './dom.js';
import { NAMES, foundWords, planWords, slices } from './words.js';

const EVEN = 1.005;  // a smaller speedup is no reason to change the plan

const sentence = (sim, searched) => {
  const { plan, speedup } = sim;
  const taken = h('em', {}, `${ms(sim.iteration_ms)} ms`);
  if (plan.strategy !== 'domino') return [`${NAMES[plan.strategy]} takes `, taken, ' an iteration'];
  const verdict = speedup > 2 - EVEN ? 'no faster than' : 'slower than';
  if (speedup < EVEN) return [`Slicing does not pay here: ${slices(plan)} are ${verdict} Megatron-LM`];
  return [`${searched ? 'Cut into' : 'With'} ${slices(plan)}, an iteration is `, h('em', {}, `${times(speedup)} faster`)];
};

const hidden = sim => {
  const [here, before] = [sim.hidden_comm_fraction, sim.variants?.baseline?.hidden_comm_fraction];
  return before === undefined ? ''
    : ` ${percent(here)} of its communication runs behind computation; Megatron-LM hides ${percent(before)}.`;
};

const figure = (name, value, unit, note, kind = '') => h('div', {}, h('dt', {}, name),
  h('dd', {}, h('span', { class: `big ${kind}` }, value), unit && h('span', { class: 'unit' }, unit)),
    h('dd', { class: 'note' }, note));

const unsure = shares => {
  const part = ['assumed', 'extrapolated'].reduce((sum, kind) => sum + (shares?.[kind] ?? 0), 0);
  return part ? `${percent(part, 0)} of the time is assumed` : 'nothing is assumed';
};

const figures = sim => h('dl', { class: 'figures' },
  figure('Speedup', sim.speedup.toFixed(2), '×', sim.no_comm_ms
    ? `${times(sim.baseline_ms / sim.no_comm_ms)} if communication were free` : 'over Megatron-LM'),
  figure('Iteration', ms(sim.iteration_ms), 'ms', `${ms(sim.interval_ms.low)} – ${ms(sim.interval_ms.high)} ms likely`),
  figure('Confidence', sim.confidence, '', unsure(sim.confidence_shares), sim.confidence),
  figure('Exposed communication', ms(sim.exposed_comm_ms), 'ms', `of ${ms(sim.comm_ms)} ms in all`),
  figure('Peak memory', gib(sim.peak_memory_gib), 'GiB', 'a GPU, predicted'));

/** Return bars on one scale; a row is `[kind, name, iteration ms, exposed ms or null]`. */
export const bars = (rows, longest = Math.max(...rows.map(([, , value]) => value))) => h('div', { class: 'totals' },
  rows.map(([kind, name, value, exposed]) => {
  const width = part => ({ style: { width: `${(100 * part / longest).toFixed(3)}%` } });
  return h('div', { class: `total ${kind}` }, h('span', { class: 'name' }, name),
    h('span', { class: 'track', 'aria-hidden': 'true' }, h('i', { class: 'busy', ...width(value - (exposed ?? 0)) }),
      exposed ? h('i', { class: 'exposed', ...width(exposed) }) : null),
    h('span', { class: 'value' }, `${ms(value)} ms`));
}));

/** Return the head of a finished tune or simulation; `result` is null without a search. */
export const answer = (sim, result) => {
  const { baseline, chosen, no_comm: bound } = sim.variants;
  const found = result ? ` ${foundWords(result)}.` : '';
  return h('div', { id: 'answer' },
    h('h1', { tabindex: '-1' }, sentence(sim, result)),
    h('p', { class: 'lead' }, `${planWords(sim.plan)}.${hidden(sim)}${found}`),
    figures(sim),
    bars([['', 'Megatron-LM', baseline.iteration_ms, baseline.exposed_comm_ms],
      ['chosen', NAMES[sim.plan.strategy], chosen.iteration_ms, chosen.exposed_comm_ms],
      ['bound', 'No communication', bound.iteration_ms, bound.exposed_comm_ms]]),
    h('p', { class: 'note' }, h('i', { class: 'swatch exposed' }), 'communication that nothing hides'),
    sim.warnings.map(said => h('p', { class: 'warn' }, h('strong', {}, 'Mind: '), said)));
};
