// Labels of plans, requests and states.
import { count, ms, percent, times } from './dom.js';

const WHAT = { queued: 'waits for a worker', running: 'running', done: 'done', failed: 'failed' };
export const stateWords = state => WHAT[state] ?? state;
export const over = state => state === 'done' || state === 'failed';

/** Return a key of a sweep in words: `link bandwidth`. */
export const named = key => key.replaceAll('_', ' ');

/** Return a sweep's key and its values. */
export const swept = ({ sweep = '' }) => {
  const [key, values = ''] = sweep.split('=');
  return [key, values.split(',').map(value => value.trim()).filter(Boolean)];
};

/** Return what a request asks: `gpt3-13b · tp 8 · 8 × 2,048 · h100-dgx`, or with GPUs and global batch, or of a plan file. */
export const asked = request => {
  const { plan, gpus, global_batch_size: batch, seq_length: sequence, micro_batch_size: micro, runs } = request;
  const size = name => request[name] > 1 && `${name} ${request[name]}`, [key, values] = swept(request);
  const parts = [request.name, request.model ?? plan?.model, plan && 'a plan file', gpus && `${[gpus].flat().map(count).join(', ')} GPUs`, request.tp && `tp ${request.tp}`,
    ...['pp', 'vpp', 'cp', 'dp'].map(size), (batch || micro) && `${count(batch || micro)} × ${count(sequence)}`,
    request.target && `for ${request.target}`, runs && `calibrated from ${count(runs)} runs`, request.profile ?? plan?.profile,
    key && `${named(key)} ${values.join(', ')}`, request.retune && 'tuned anew'];
  return parts.filter(Boolean).join(' · ');
};

const STRATEGIES = { megatron: 'Megatron-LM’s own schedule', userbuffers: 'userbuffers', 'async-tp': 'async-TP', fused: 'tile fusion', 'ep-overlap': 'EP overlap' };
const slices = (number, what) => `${number} ${what} slice${number === 1 ? '' : 's'}`;

/** Return how a plan cuts the batch, in words: `2 row slices × 4 column slices`. */
export const cutWords = plan => {
  if (plan.strategy !== 'domino') return STRATEGIES[plan.strategy] ?? plan.strategy;
  const columns = [plan.attn_col_slices, plan.mlp_col_slices];
  const said = columns[0] === columns[1] ? slices(columns[0], 'column') : `${columns.join(' and ')} column slices`;
  return slices(plan.row_slices, 'row') + (columns.every(number => number === 1) ? '' : ` × ${said}`);
};

/** Return a layout in a few words, as the report has it. */
export const layoutWords = one => [...['tp', 'pp', 'vpp', 'cp', 'dp'].filter(name => one[name] > 1 || name === 'tp' || name === 'dp')
  .map(name => `${name} ${one[name]}`), `micro-batch ${one.micro_batch_size}`].join(', ');

/** Return a job's best plan so far in one line; `baseline` is Megatron-LM's time in ms, where it is known. */
export const bestWords = ({ kind, best }, baseline = best?.baseline_ms) => !best ? ''
  : kind === 'layout' ? [`${count(Math.round(best.tokens_per_second_per_gpu))} tokens/s/GPU`, layoutWords(best), cutWords(best.plan)].join(' · ')
    : [baseline && times(baseline / best.iteration_ms), `${ms(best.iteration_ms)} ms`, best.plan && cutWords(best.plan)].filter(Boolean).join(' · ');

/** Return the progress of a job from 0 to 1, or null if unknown. */
export const share = job => {
  const { done = null, total = null } = job.progress ?? {};
  return total ? Math.min(1, done / total) : null;
};

/** Return seconds as `42 s`, `3 min` or `2 h 5 min`. */
const duration = seconds => seconds < 90 ? `${Math.round(seconds)} s`
  : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h ${Math.round(seconds % 3600 / 60)} min`;

/** Return how long a job runs, what it has looked at, and what is left, as far as it is known; `since`: seconds since it told. */
export const paceWords = ({ progress = {} }, since = 0) => [
  Number.isFinite(progress.elapsed_s) && `${duration(progress.elapsed_s + since)} so far`,
  progress.done > 0 && `${count(progress.done)} looked at`,
  progress.left > 0 && `at most ${count(progress.left)} left`,
  progress.eta_s > since && `about ${duration(progress.eta_s - since)} to go`].filter(Boolean).join(', ');

export const progressWords = job => {
  const part = share(job), text = job.progress?.text ?? '';
  return [part === null ? '' : percent(part, 0), text].filter(Boolean).join(' · ') || stateWords(job.state);
};
