// Labels of plans, requests and states; the same words as in the report.
import { count, percent } from './dom.js';

export const NAMES = { megatron: 'Megatron-LM', no_comm: 'No communication', domino: 'Domino' };
const ORDERS = { greedy: 'greedy order', inter: 'DeepSpeed’s order (inter)', intra: 'order inside the layer (intra)',
  paper: 'the paper’s order' };
const WGRADS = { fill: 'weight gradients fill the waits', eager: 'weight gradients at once',
  deferred: 'weight gradients behind dgrad' };
const REASONS = { memory: 'needs more memory than a GPU has', rows: 'more row slices than sequences',
  order: 'the order does not exist for this cut', target: 'the framework cannot run it' };

/** Return `2 row slices × 4 column slices`, with dgrad pieces where they differ. */
export const slices = plan => {
  const [attn, mlp] = [plan.attn_col_slices, plan.mlp_col_slices];
  let said = `${plan.row_slices} row slice${plan.row_slices > 1 ? 's' : ''}`;
  if (attn !== 1 || mlp !== 1) said += ` × ${attn === mlp ? attn : `${attn}/${mlp}`} column slices`;
  const [attnDgrad, mlpDgrad] = [plan.attn_dgrad_slices, plan.mlp_dgrad_slices];
  if (attnDgrad !== attn || mlpDgrad !== mlp) said += `, dgrad in ${attnDgrad}/${mlpDgrad}`;
  return said;
};

/** Return issue order and other settings of a plan, in words. */
export const planWords = plan => {
  if (plan.strategy === 'megatron') return 'One slice, nothing hides forward communication';
  if (plan.strategy === 'no_comm') return 'The same compute with communication for free';
  const parts = [ORDERS[plan.order] ?? plan.order, WGRADS[plan.wgrad] ?? plan.wgrad];
  if (plan.merge_wgrad) parts.push('merged over slices');
  if (plan.comm_ctas) parts.push(`${plan.comm_ctas} CTAs for communication`);
  const said = parts.join(', ');
  return said[0].toUpperCase() + said.slice(1);
};

/** Return among how many plans the chosen one is the fastest, or ties with it, and by what. */
export const foundWords = result => {
  if (result.optimality !== 'proven') return `Best of ${count(result.evaluations)} plans tried, others may be faster`;
  const tied = result.trials.some(trial => trial.iteration_ms < result.best.iteration_ms);
  const fastest = tied ? 'Within 1 % of the fastest' : 'Fastest';
  return `${fastest} of ${count(result.evaluations + result.pruned)} plans under this profile`;
};

export const reason = slug => REASONS[slug] ?? (slug || 'not feasible, or not tried').replaceAll('_', ' ');

/** Return `gpt3-13b · tp 8 · h100-dgx` of a request, from the fields that it has. */
export const asked = request => {
  const parts = [request.model, request.tp && `tp ${request.tp}`, request.dp > 1 && `dp ${request.dp}`,
    request.micro_batch_size && `${request.micro_batch_size} × ${request.seq_length ?? '?'}`, request.profile];
  return parts.filter(Boolean).join(' · ') || 'from a plan file';
};

const WHAT = { queued: 'waits for a worker', running: 'running', done: 'done', failed: 'failed', cancelled: 'cancelled' };
export const stateWords = state => WHAT[state] ?? state;
export const over = state => state === 'done' || state === 'failed' || state === 'cancelled';

/** Return the progress of a job from 0 to 1, or null if unknown. */
export const share = job => {
  const { done = null, total = null } = job.progress ?? {};
  return total ? Math.min(1, done / total) : null;
};

export const progressWords = job => {
  const part = share(job), text = job.progress?.text ?? '';
  return [part === null ? '' : percent(part, 0), text].filter(Boolean).join(' · ') || stateWords(job.state);
};

/** Return a plan's label without the parts that nearly all plans share. */
export const label = plan => plan.label.replace(/^domino /, '').replace(' greedy wgrad=fill', '');
