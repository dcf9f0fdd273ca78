// What runs where: beside an answer whose plan a framework cannot run, what does run there, one click away.
import { newKey, post, Problem } from './api.js';
import { button, count, gib, h, ms, percent, table, times } from './dom.js';
import { cutWords } from './words.js';

const LAYOUTS = ['gpus', 'global_batch_size'], SEARCH = ['search', 'trials', 'seed', 'target', 'tune_also'];

const without = (request, names) => Object.fromEntries(Object.entries(request).filter(([name]) => !names.includes(name)));

const told = (sim, one) => table(`What runs in ${one.framework}`,
  ['', 'ms', 'speedup', 'tokens/s/GPU', 'MFU', 'GiB', 'exposed ms'], [[cutWords(one.plan), ms(sim.iteration_ms), times(sim.speedup),
    count(Math.round(sim.tokens_per_second_per_gpu)), percent(sim.mfu), gib(sim.peak_memory_gib), ms(sim.exposed_comm_ms)]]);

// Where to ask for a framework's plan: the words of the button, and what a click does.
const ROUTES = {
  tune: (one, request, shown, begin) => [`Tune for ${one.framework}`, async () =>
    begin(await post('v1/jobs', { kind: 'tune', ...without(request, LAYOUTS), ...one.request }, { headers: { 'idempotency-key': newKey() } }))],
  simulations: (one, request, shown) => [`Show it for ${one.framework}`, async () => shown.replaceChildren(
    told(await post('v1/simulations', { ...without(request, [...LAYOUTS, ...SEARCH]), ...one.request }), one))],
};

const line = (one, request, begin) => {
  const there = one.plan ? ` Of what runs there, the fastest takes ${ms(one.iteration_ms)} ms (${times(one.speedup)}): ${cutWords(one.plan)}.`
    : ' Nothing that fits runs there.';
  const shown = h('div', { class: 'shown' }), wrong = h('p', { class: 'error', role: 'alert' });
  const [text, ask] = ROUTES[one.route]?.(one, request, shown, begin) ?? [];
  const asking = text ? button(text, async () => {
    asking.disabled = true;
    wrong.textContent = '';
    try {
      await ask();
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      wrong.textContent = problem.message;
    }
    asking.disabled = false;
  }) : '';
  return h('li', {}, h('span', {}, h('b', {}, one.framework), ` cannot run this plan.${there}`), asking, wrong, shown);
};

/** Return a line for each framework that cannot run the best plan of a job; empty where all can. */
export const frameworks = ({ job, begin }) => {
  const unable = (job.result.frameworks ?? []).filter(one => !one.runs_best);
  return unable.length ? h('ul', { class: 'frameworks' }, unable.map(one => line(one, job.request, begin))) : '';
};
