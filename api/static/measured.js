// Predicted and measured times: the results that `validate --report-to` sent from the cluster.
import { get, list, remove } from './api.js';
import { h, ms, s, section, signed, sureButton, table, when } from './dom.js';

const WIDE = 520, ROW = 34, LEFT = 8, RIGHT = 8;

// Dot: predicted time. Bar with a tick: measured median with its 95 % interval.
const picture = plans => {
  const times = plans.flatMap(({ predicted, measured: found, interval_ms: range }) =>
    [predicted.iteration_ms, found.iteration_ms, range?.low, range?.high]).filter(Number.isFinite);
  const low = Math.min(...times), high = Math.max(...times), air = 0.06 * (high - low || high);
  const x = value => (LEFT + (WIDE - LEFT - RIGHT) * (value - low + air) / (high - low + 2 * air)).toFixed(1);
  const rows = plans.map((plan, index) => {
    const y = ROW * index + 24, { predicted, measured, interval_ms: range } = plan;
    return s('g', {}, s('text', { x: LEFT, y: y - 9 },
      `${plan.name}: ${ms(predicted.iteration_ms)} predicted, ${ms(measured.iteration_ms)} ms measured`),
      s('line', { class: 'rail', x1: LEFT, x2: WIDE - RIGHT, y1: y, y2: y }),
      range && s('line', { class: 'range', x1: x(range.low), x2: x(range.high), y1: y, y2: y }),
      s('line', { class: 'median', x1: x(measured.iteration_ms), x2: x(measured.iteration_ms), y1: y - 6, y2: y + 6 }),
      s('circle', { class: 'predicted', cx: x(predicted.iteration_ms), cy: y, r: 5 }));
  });
  return s('svg', { class: 'against', viewBox: `0 0 ${WIDE} ${ROW * plans.length + 10}`, role: 'img',
    'aria-label': 'Predicted and measured iteration times' }, rows);
};

const HEAD = ['Plan', 'predicted, ms', 'measured, ms', '95 %', 'error'];
const tableOf = plans => table('Predicted against measured', HEAD, plans.map(plan => [
  plan.name, ms(plan.predicted.iteration_ms), plan.measured ? ms(plan.measured.iteration_ms) : plan.failed || '–',
  plan.interval_ms ? `${ms(plan.interval_ms.low)} – ${ms(plan.interval_ms.high)}` : '–', signed(plan.error)]), 'plans');

const one = (item, fail) => {
  const result = item.result.measured;
  const ran = result.plans.filter(plan => plan.measured);
  const where = [result.backend, `${result.rounds} rounds`, result.emulated_collectives && 'collectives emulated',
    result.profile?.name && `predicted from ${result.profile.name}`].filter(Boolean).join(', ');
  const trouble = h('div', {}), gone = sureButton('Delete', `what was measured ${when(item.created)}`, async () => {
    gone.disabled = true;
    try { await remove(`v1/jobs/${item.id}`); shown.remove(); } catch (problem) { gone.disabled = false; fail(problem, trouble); }
  });
  const shown = h('article', { class: 'validation' }, h('div', { class: 'view-head' }, h('h3', {}, `Measured ${when(item.created)}`), gone),
    trouble, h('p', { class: 'note' }, where),
    h('div', { class: 'pair' }, h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Predicted and measured times' },
      ran.length > 0 && picture(ran)),
      h('div', {}, tableOf(result.plans))),
    (result.warnings ?? []).map(said => h('p', { class: 'warn' }, h('strong', {}, 'Mind: '), said)));
  return shown;
};

/** Return the section of a finished tune; it is filled when the measurements arrive. */
export const measured = ({ job, path, signal, fail }) => {
  const host = h('div', {});
  const url = new URL(path, document.baseURI);
  const none = () => [h('p', { class: 'note' },
    'Nothing measured yet. Run the plan on the cluster; what it measures appears here:'),
    h('pre', { tabindex: '0' }, h('code', {}, `python -m domino_tune validate --plan plan.json --report-to ${url.href}`))];
  list('v1/jobs', { limit: 20, query: { kind: 'validate', of: job.id }, signal })
    .then(items => Promise.all(items.reverse().map(item => get(`v1/jobs/${item.id}`, { signal }))))
    .then(items => host.replaceChildren(...(items.length ? items.map(item => one(item, fail)) : none())))
    .catch(problem => { if (problem.name !== 'AbortError') fail(problem, host); });
  return section('measured', 'Predicted against measured', null, host);
};
