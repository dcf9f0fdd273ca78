// Two finished jobs side by side.
import { get } from './api.js';
import { count, gib, h, link, ms, percent, signed, table, times } from './dom.js';
import { reportOf } from './report.js';
import { asked, layoutWords } from './words.js';

const TIE = 0.01;  // what predictions do not tell apart, as in searches

const rounded = value => count(Number.isFinite(value) ? Math.round(value) : NaN);
const NUMBERS = [['Tokens/s/GPU', sim => sim.tokens_per_second_per_gpu, rounded, true],
  ['Iteration, ms', sim => sim.iteration_ms, ms, true], ['Speedup over Megatron-LM', sim => sim.speedup, times, true], ['MFU', sim => sim.mfu, percent, 'points'],
  ['Exposed communication, ms', sim => sim.exposed_comm_ms, ms], ['Peak memory, GiB', sim => sim.peak_memory_gib, gib], ['Chance to fit', sim => sim.fits_chance, percent],
  ['Clock, MHz', sim => sim.clock_mhz, rounded], ['Power, W a GPU', sim => sim.power_w, rounded]];

const change = (one, other, timed) => {
  const points = timed === 'points', by = points ? other - one : other / one - 1, said = signed(by);
  if (!Number.isFinite(by) || by === 0 || said.slice(1) === '0 %') return Number.isFinite(by) ? 'the same' : '–';
  return points ? said.replace('%', 'points') : timed && Math.abs(by) < TIE ? `${said}, a tie` : said;
};

const layoutOf = job => job.kind === 'layout' ? layoutWords(job.result.layouts[0])
  : layoutWords({ ...job.result.best.cluster, ...job.result.best.workload });

// What the reports say of their plans, in the words that they begin with.
const facts = [['Asked', job => asked(job.request ?? {})], ['Layout', layoutOf], ['Plan', (_, head) => head.querySelector('.reason').textContent],
  ['Verdict', (_, head) => head.querySelector('.verdict')?.textContent ?? '–']];

const sentence = ([one, other]) => {
  const rate = job => job.result.best.tokens_per_second_per_gpu, by = rate(other) / rate(one) - 1;
  if (Math.abs(by) < TIE) return `The two tie: they train within ${percent(TIE)} of each other, which predictions do not tell apart.`;
  return `The ${by > 0 ? 'second' : 'first'} trains ${percent(Math.abs(by > 0 ? by : 1 / (1 + by) - 1))} more tokens a second on each GPU.`;
};

/** Return the view of two jobs, each `kind.id`. */
export const comparison = async (names, signal) => {
  const paths = names.map(name => {
    const [, id] = name.split('.');
    return `v1/jobs/${encodeURIComponent(id ?? '')}`;
  });
  const jobs = await Promise.all(paths.map(path => get(path, { signal })));
  if (jobs.some(job => !job.result)) return h('p', { class: 'error', role: 'alert' }, 'Only jobs that are done can be compared.');
  const [one, other] = jobs.map(job => job.result.best);
  const heads = jobs.map((job, index) => link(`#/${job.kind}/${job.id}`, job.label || ['First', 'Second'][index]));
  const reports = await Promise.all(paths.map(path => reportOf(path, signal)));
  return h('div', { class: 'comparison' }, h('p', { class: 'lead verdict' }, sentence(jobs)),
    table('Two jobs, in numbers', ['', ...heads, 'second over first'], NUMBERS.map(([name, value, say, timed]) =>
      [name, say(value(one)), say(value(other)), change(value(one), value(other), timed)]), 'numbers'),
    table('Two jobs, in words', ['', ...heads.map(head => head.cloneNode(true))],
      facts.map(([name, value]) => [name, ...jobs.map((job, index) => value(job, reports[index].head))]), 'words'));
};
