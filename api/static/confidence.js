// Confidence: the likely range, the sources of the times, and what changes the best plan.
import { h, ms, percent, section, table, times } from './dom.js';
import { label } from './words.js';

const SOURCES = { measured: 'measured at this very shape', interpolated: 'interpolated between measurements',
  fitted: 'from a fit to measurements',
  extrapolated: 'outside the measured range', assumed: 'assumed, not measured on this machine' };

const interval = sim => {
  const { low, high } = sim.interval_ms;
  const left = Math.min(low, sim.no_comm_ms, sim.iteration_ms), right = Math.max(high, sim.baseline_ms, sim.iteration_ms);
  const place = value => 4 + 92 * (value - left) / (right - left || 1), at = value => `${place(value).toFixed(2)}%`;
  const side = value => place(value) > 84 ? 'at-end' : place(value) < 16 ? 'at-start' : '';
  const mark = (kind, name, value) => h('i', { class: `mark ${kind} ${side(value)}`, style: { left: at(value) } },
    h('span', {}, name, h('br'), h('b', {}, `${ms(value)} ms`)));
  return h('div', { class: 'interval', role: 'img',
    'aria-label': `${ms(sim.iteration_ms)} ms, likely between ${ms(low)} and ${ms(high)} ms` },
    h('i', { class: 'band', style: { left: at(low), width: `${(92 * (high - low) / (right - left || 1)).toFixed(2)}%` } }),
    mark('bound', 'no communication', sim.no_comm_ms), mark('base', 'Megatron-LM', sim.baseline_ms),
    mark('point', 'this plan', sim.iteration_ms));
};

const shares = found => {
  const known = Object.keys(SOURCES).filter(kind => found[kind] > 0);
  return known.length > 0 && [h('h3', {}, 'Where the iteration’s time was looked up'),
    h('div', { class: 'track shares', 'aria-hidden': 'true' }, known.map(kind =>
      h('i', { class: `source-${kind}`, style: { width: `${(100 * found[kind]).toFixed(2)}%` } }))),
    h('ul', { class: 'legend' }, known.map(kind => h('li', {}, h('i', { class: `swatch source-${kind}` }),
      h('b', {}, percent(found[kind])), ` ${SOURCES[kind]}`)))];
};

const crossoverWords = crossovers => {
  const today = crossovers.filter(crossover => crossover.factor <= 1).pop() ?? crossovers[0];
  const later = crossovers.find(crossover => crossover.factor > Math.max(1, today.factor));
  const meaning = '×1 is the slowdown that the profile states, ×0 none.';
  return later ? `${label(today.winner)} is best up to ×${later.factor.toPrecision(3)}, then ${label(later.winner)}. ${meaning}`
    : `${label(today.winner)} stays the best plan over the whole range looked at. ${meaning}`;
};

const winners = contention => {
  const crossovers = contention?.crossovers ?? [];
  return crossovers.length > 0 && [h('h3', {}, 'At which contention the winner changes'), h('p', { class: 'note' }, crossoverWords(crossovers)),
    table('Winners by contention', ['Contention', 'best plan', 'ms', 'Megatron-LM', 'speedup'], crossovers.map(crossover => [
      `from ×${crossover.factor.toPrecision(3)}`, label(crossover.winner), ms(crossover.winner_ms), ms(crossover.baseline_ms),
        times(crossover.baseline_ms / crossover.winner_ms)]), 'crossovers')];
};

/** Return the section of a finished tune. */
export const confidence = result => {
  const sim = result.simulation, half = (sim.interval_ms.high - sim.interval_ms.low) / 2;
  return section('confidence', 'How sure is this',
    `Confidence is ${sim.confidence}: the time is good to about ± ${percent(half / sim.iteration_ms)}.`,
    interval(sim), shares(sim.confidence_shares), winners(result.contention));
};
