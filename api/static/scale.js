// The best layout at each of several numbers of GPUs, which train the same global batch.
import { count, gib, h, ms, percent, table, times } from './dom.js';
import { plotOf } from './points.js';
import { cutWords, layoutWords } from './words.js';

const EVEN = 1.0005;  // a smaller gain is called none

const row = point => {
  const gpus = count(point.gpus), one = point.layout;
  if (!one) return [gpus, h('span', {}, 'not possible', h('small', {}, point.error)), ...Array(8).fill('–')];
  return [gpus, h('span', {}, layoutWords(one), h('small', {}, cutWords(one.plan))), count(Math.round(one.tokens_per_second_per_gpu)),
    count(Math.round(point.tokens_per_second)), percent(one.mfu), ms(one.iteration_ms), gib(one.peak_memory_gib),
    percent(one.fits_chance), times(one.domino_gain), percent(point.scaling_efficiency)];
};

const sentence = found => {
  const first = found[0], last = found.at(-1), best = Math.max(...found.map(point => point.layout.domino_gain ?? 1));
  const kept = first === last ? `So far ${count(first.gpus)} GPUs have a layout.`
    : `On ${count(last.gpus)} GPUs, each has ${percent(last.scaling_efficiency)} of its speed on ${count(first.gpus)}.`;
  const at = found.find(point => (point.layout.domino_gain ?? 1) === best);
  return `${kept} ${best < EVEN ? 'At none of them does Domino add to the best layout.'
    : `Over the best layout without it, Domino adds at most ${percent(best - 1)}, on ${count(at.gpus)} GPUs.`}`;
};

/** Return how the points of a scale job are drawn: a function of their place and of them, by their places. */
export const drawScale = job => (place, points) => {
  const xs = job.request.gpus.map(count);
  const of = value => xs.map((_, index) => points.get(index)?.layout ? value(points.get(index)) ?? null : null);
  const common = { x: 'GPUs', xs };
  const plots = [['Tokens a second a GPU', plotOf({ ...common, label: 'Tokens a second a GPU', unit: '', digits: 0, lines: [
    { name: 'best without Domino', role: 'base', values: of(point => point.best_without_domino?.tokens_per_second_per_gpu) },
    { name: 'best layout', role: 'chosen', values: of(point => point.layout.tokens_per_second_per_gpu) }] })]];
  const found = [...points].sort(([one], [other]) => one - other).map(([, point]) => point), possible = found.filter(point => point.layout);
  if (possible.some(point => (point.layout.domino_gain ?? 1) >= EVEN)) {
    plots.push(['What Domino adds to the best layout', plotOf({ ...common, label: 'Gain of Domino', unit: '%', digits: 2, lines: [
      { name: 'gain', role: 'chosen', values: of(point => point.layout.domino_gain && 100 * (point.layout.domino_gain - 1)) }] })]);
  }
  const warnings = new Set(found.flatMap(point => point.warnings));
  place.replaceChildren(possible.length ? h('p', { class: 'lead verdict' }, sentence(possible)) : '',
    ...[...warnings].map(said => h('p', { class: 'warn' }, h('strong', {}, 'Mind: '), said)),
    h('div', { class: 'pair' }, plots.map(([title, plot]) => h('div', {}, h('h3', {}, title), plot.element))),
    h('h3', {}, 'The best layout at each number of GPUs'),
    table('Numbers of GPUs', ['GPUs', 'layout', 'tokens/s/GPU', 'tokens/s', 'MFU', 'ms', 'GiB', 'fits', 'gain', 'efficiency'], found.map(row), 'layouts points'),
    h('p', { class: 'note' }, 'All train the same global batch. gain: over the best layout without Domino at the same number; '
      + 'efficiency: tokens/s/GPU over those at the first number that has a layout.'));
  for (const [, plot] of plots) plot.draw();
};
