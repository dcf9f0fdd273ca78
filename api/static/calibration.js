// What a calibration learnt: how well each run is predicted by the others, and the factor of each part of the profile.
import { getText } from './api.js';
import { button, count, h, link, ms, percent, section, signed, table } from './dom.js';
import { save } from './files.js';

export const PARTS = { gemm: 'GEMMs', attention: 'attention', pointwise: 'memory-bound ops', collective: 'collectives within a node',
  collective_between_nodes: 'collectives between nodes', launch: 'launches', power: 'the power of ops, and so the clock' };

// Rows on one axis, as in the report's section of strategies. A mark is `[class, from, to]`; `to` null: a tick.
const rows = (label, heads, low, high, lines) => {
  const at = value => `${(100 * (value - low) / (high - low)).toFixed(2)}%`;
  const mark = ([kind, from, to]) => h('i', { class: kind, style: { left: at(from),
    ...(to !== null && to !== undefined && { width: `${(100 * (to - from) / (high - low)).toFixed(2)}%` }) } });
  return h('div', { class: 'contests learnt' },
    h('div', { class: 'contest head' }, heads.map((head, index) => h('span', { class: ['who', '', 'value', 'chance'][index] }, head))),
    lines.map(({ name, note, marks, said, value, more, last }) => h('div', { class: 'contest' },
      h('span', { class: 'who' }, h('b', {}, name), h('small', {}, note)),
      h('span', { class: 'range', role: 'img', 'aria-label': said }, marks.map(mark)),
      h('span', { class: 'value' }, value, h('small', {}, more)),
      h('span', { class: 'chance' }, last, h('small', { class: 'narrow' }, heads[3])))));
};

const runs = ({ runs: all, before_error: before, after_error: after, left_out_error: out }) => {
  const off = (predicted, run) => predicted / run.measured_ms - 1;
  const widest = Math.max(0.01, ...all.flatMap(run => [off(run.before_ms, run), off(run.left_out_ms, run)].map(Math.abs))) * 1.08;
  return section('runs', 'Measured runs', `Each run is predicted by the others: the mean error is ${percent(out)}. The profile as it was is off by `
    + `${percent(before)}, the calibrated one by ${percent(after)} on the runs that it was fitted to.`,
  h('p', { class: 'pass-keys' }, h('span', { class: 'key tick middle' }, 'predicted by the other runs'),
    h('span', { class: 'key tick earlier' }, 'as the profile was')),
  rows('Errors of the runs', ['Run', 'Predicted over measured', 'by the others', 'as it was'], -widest, widest, all.map(run => {
    const [was, is] = [off(run.before_ms, run), off(run.left_out_ms, run)];
    return { name: run.label, note: `${ms(run.measured_ms)} ms measured`, said: `${signed(is)}, before ${signed(was)}`,
      marks: [['even', 0], ['earlier', was], ['middle', is]], value: signed(is), more: `${ms(run.left_out_ms)} ms predicted`, last: signed(was) };
  })),
  h('details', {}, h('summary', {}, 'As a table'), table('Measured runs, in ms', ['Run', 'measured', 'as the profile was', 'calibrated', 'by the others', 'error'],
    all.map(run => [run.label, ...[run.measured_ms, run.before_ms, run.after_ms, run.left_out_ms].map(ms), signed(off(run.left_out_ms, run))]))));
};

const parts = ({ parts: all, constant_ms: constant, constant_error_ms: error }) => {
  const factors = all.map(one => one.factor), air = 0.3;  // what is surer than this is seen whole, and wider bars end at the edge
  const low = Math.min(1, ...factors) - air, high = Math.max(1, ...factors) + air;
  const band = (kind, middle, error) => [kind, Math.max(low, middle * (1 - error)), Math.min(high, middle * (1 + error))];
  return section('learnt', 'What was learnt', 'Times of each part of the profile were multiplied by a factor. Bars hold the factor with its standard '
    + 'error, before the runs and after them; learnt is by how much they made it smaller.',
  h('p', { class: 'pass-keys' }, h('span', { class: 'key likely' }, 'after the runs'), h('span', { class: 'key doubt' }, 'before them')),
  rows('Factors of the parts', ['Part', 'Factor', '± error', 'learnt'], low, high, all.map(one => ({
    name: PARTS[one.part] ?? one.part, note: '', said: `${one.factor.toFixed(3)}, ± ${percent(one.error)}, before ± ${percent(one.prior)}`,
    marks: [band('doubt', 1, one.prior), ['even', 1], band('likely', one.factor, one.error), ['middle', one.factor]],
    value: `${one.factor.toFixed(3)}×`, more: `± ${percent(one.error)}, was ± ${percent(one.prior)}`,
    last: percent(Math.max(0, 1 - one.error / one.prior), 0) }))),
  h('p', { class: 'note' }, `Beside them, every iteration takes ${ms(constant)} ms more (± ${ms(error)}).`));
};

const kept = ({ profile }, { path, signal, fail }) => {
  const said = h('div', {});
  return section('files', 'Use it', `It is kept as ${profile.name}: choose that machine for a new question, or take the file along.`,
    h('div', { class: 'row' }, link('#/new', 'Ask with it'), button('Profile', async () => {
      said.replaceChildren();
      try {
        save(await getText(`${path}/files/profile`, { signal }), `${profile.name}.json`, 'application/json');
      } catch (problem) {
        if (problem.name !== 'AbortError') fail(problem, said);
      }
    }, { class: 'primary', id: 'save-profile' })), said);
};

/** Return the elements of a finished calibration; its `eyebrow` stands on top. */
export const calibrated = (job, eyebrow, asking) => {
  const { result } = job, { left_out_error: out, before_error: before } = result;
  return [h('header', { id: 'answer' }, eyebrow,
    h('h1', { tabindex: '-1' }, 'On average, a run that it did not see is ', h('em', {}, `${percent(out)} off`)),
    h('p', { class: 'lead' }, `${result.profile.name} was calibrated with ${count(result.runs.length)} runs, each of which was also predicted by the others alone. `
      + `${job.request.profile} as it was is ${percent(before)} off.`),
    (result.warnings ?? []).map(said => h('p', { class: 'warn' }, h('strong', {}, 'Mind: '), said)),
    (result.notes ?? []).map(said => h('p', { class: 'note' }, said))),
  runs(result), parts(result), kept(result, asking)];
};
