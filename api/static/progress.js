// Progress of a job, and the best plan so far between baseline and bound, which one simulation gives.
import { post, Problem } from './api.js';
import { bars } from './bars.js';
import { h, percent } from './dom.js';
import { endings } from './ending.js';
import { asked, bestWords, over, paceWords, progressWords, share, stateWords } from './words.js';

const SPOKEN_EVERY_MS = 5000, SECOND_MS = 1000;
const WORKLOAD = ['model', 'profile', 'tp', 'dp', 'nodes', 'seq_length', 'micro_batch_size', 'grad_accumulation',
  'dtype', 'cuda_graph', 'overrides'];

const soFar = (job, sim) => job.best ? `Best so far · ${bestWords(job, sim?.baseline_ms)}` : '';

// Simulate the default plan of one layout: its baseline and bound show what the search can gain.
const ends = async ({ kind, request }, signal) => {
  if (kind !== 'tune') return null;
  const body = Object.fromEntries(WORKLOAD.filter(name => request[name] !== undefined).map(name => [name, request[name]]));
  try {
    return await post('v1/simulations', body, { signal });
  } catch (problem) {
    if (problem instanceof Problem || problem.name === 'AbortError') return null;  // the tune shows the same error
    throw problem;
  }
};

const picture = (sim, best) => bars([['', 'Megatron-LM', sim.baseline_ms, sim.variants.baseline.exposed_comm_ms],
  ['chosen', best ? 'Best so far' : 'Two row slices', best?.iteration_ms ?? sim.iteration_ms, null],
  ['bound', 'No communication', sim.no_comm_ms, null]], Math.max(sim.baseline_ms, sim.iteration_ms));

/** Return `{element, update(job)}`. */
export const progressBox = ({ path, signal, fail }) => {
  const bar = h('progress', { 'aria-label': 'Progress of the job', max: '1' });
  const text = h('p', { class: 'progress-text' }), pace = h('p', { class: 'note pace' }), best = h('p', { class: 'best-so-far' }), drawn = h('div', {});
  const live = h('p', { class: 'sr', 'aria-live': 'polite', id: 'progress-live' });
  const [stop, cancel] = endings(path, fail);
  const element = h('div', { class: 'running' },
    h('div', { class: 'running-head' }, text, h('div', { class: 'ends' }, stop, cancel)),
    bar, pace, best, drawn, live);
  let spoken = 0, lastState = '', sim = null, known = null, told = 0;

  const draw = () => {
    best.textContent = soFar(known, sim);
    if (sim) drawn.replaceChildren(picture(sim, known.best));
  };
  // Between two events the clock goes on by itself.
  const tick = () => { pace.textContent = paceWords(known, (performance.now() - told) / 1000); };
  const timer = setInterval(() => known && tick(), SECOND_MS);
  const rest = () => clearInterval(timer);
  signal.addEventListener('abort', rest, { once: true });
  const update = job => {
    if (!known) ends(job, signal).then(found => { sim = found; draw(); });
    if (job.progress !== known?.progress) told = performance.now();
    known = job;
    const part = share(job);
    if (part === null) bar.removeAttribute('value'); else bar.value = part;
    text.textContent = job.stopped_by ? 'stopping, the best so far is kept' : progressWords(job);
    tick();
    if (over(job.state)) rest();
    stop.hidden = over(job.state) || Boolean(job.stopped_by) || job.kind === 'calibrate';
    draw();
    if (job.state !== lastState || performance.now() - spoken > SPOKEN_EVERY_MS) {
      [spoken, lastState] = [performance.now(), job.state];
      live.textContent = `${stateWords(job.state)}. ${progressWords(job)}. ${soFar(job, sim)}`;
    }
    document.title = `${part === null ? stateWords(job.state) : percent(part, 0)} · ${asked(job.request)}`;
  };
  return { element, update };
};
