// What-if: while a slider moves, the same plan is replayed on the changed machine.
import { post, Problem } from './api.js';
import { bars, exposedKey } from './bars.js';
import { button, count, gib, h, ms, percent, section, signed, times } from './dom.js';
import { latest } from './latest.js';
import { sliders } from './sliders.js';
import { sweeping } from './sweep.js';

const QUIET_MS = 600;  // screen readers get the text when the slider has stopped

const row = (name, was, is, say) => h('tr', {}, h('th', { scope: 'row' }, name), h('td', {}, say(was)),
  h('td', {}, say(is)), h('td', {}, !was ? '' : is / was >= 3 ? `${(is / was).toFixed(1)}×` : signed(is / was - 1)));

const picture = (base, point, longest) => [
  bars([['', 'Megatron-LM', point.baseline_ms, point.variants.baseline.exposed_comm_ms],
    ['chosen', 'This plan', point.iteration_ms, point.exposed_comm_ms],
    ['bound', 'No communication', point.no_comm_ms, null]], longest),
  exposedKey(),
  h('table', { class: 'compare' },
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, ''),
    ['as it is', 'then', 'change'].map(name => h('th', { scope: 'col' }, name)))),
    h('tbody', {}, row('Iteration, ms', base.iteration_ms, point.iteration_ms, ms),
      row('Speedup', base.speedup, point.speedup, times),
      row('Exposed communication, ms', base.exposed_comm_ms, point.exposed_comm_ms, ms),
      row('Tokens/s/GPU', base.tokens_per_second_per_gpu, point.tokens_per_second_per_gpu, value => count(Math.round(value))),
      base.clock_mhz && point.clock_mhz ? row('Clock, MHz', base.clock_mhz, point.clock_mhz, count) : null,
      row('Peak memory, GiB', base.peak_memory_gib, point.peak_memory_gib, gib),
      row('Chance to fit', base.fits_chance, point.fits_chance, percent))),
];

/** Return the section of a finished tune; `plan()` resolves to its plan file's text. */
export const whatIf = ({ sim, plan, margin, signal }) => {
  const shown = h('div', { class: 'answered' }), trouble = h('p', { class: 'error', role: 'alert' });
  const live = h('p', { class: 'sr', 'aria-live': 'polite' }), took = h('p', { class: 'took' });
  const base = sim;
  let moved = '', quiet = 0;

  const draw = point => {
    shown.replaceChildren(...picture(base, point, Math.max(base.baseline_ms, point.baseline_ms, point.iteration_ms)));
    clearTimeout(quiet);
    const said = `${ms(point.iteration_ms)} milliseconds, ${point.speedup.toFixed(2)} times as fast as Megatron-LM.`;
    quiet = setTimeout(() => { live.textContent = said; }, QUIET_MS);
  };
  const ask = async change => {
    if (!change.length) return { point: base, took_ms: null };
    const began = performance.now();
    // Send the plan's text unchanged: JSON of a browser writes 10000.0 as 10000, which changes the checksum.
    const result = await post('v1/what-ifs', `{"plan":${await plan()},"change":${JSON.stringify(change)},"memory_margin":${JSON.stringify(margin ?? null)}}`, { signal });
    const [point] = result.points;
    if (!point.fits) throw new Problem(0, { detail: `needs ${gib(point.peak_memory_gib)} GiB, more than the ${gib(point.usable_memory.usable_gib)} GiB that are usable.` });
    return { point, took_ms: performance.now() - began };
  };
  const told = ({ point, took_ms }) => {
    trouble.textContent = '';
    all.accept();
    draw(point);
    took.textContent = took_ms === null ? '' : `answered in ${took_ms.toFixed(0)} ms`;
  };
  // The numbers stay those of the last machine that could be: the slider goes back to it, and says why.
  const failed = problem => {
    all.refuse(moved, problem.message);
    trouble.textContent = moved && moved !== 'cuda_graph' ? '' : problem.message;
  };
  const send = latest(ask, told, failed, signal);
  const all = sliders(sim, key => { moved = key; send(all.changes()); });
  const reset = button('Put all back', () => { all.back(); moved = ''; send([]); });
  draw(base);
  return section('whatif', 'What if',
    'The same plan on another machine or batch. Drag, or use the arrow keys; Escape puts a slider back.',
    h('div', { class: 'pair whatif' }, h('div', {}, all.element, h('div', { class: 'row' }, reset)),
      h('div', {}, shown, trouble, took, live)),
    sweeping({ plan, margin, signal }));
};
