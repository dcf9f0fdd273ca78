// One slider for each key of `whatif --change KEY=VALUE`; its value is that VALUE.
import { count, h } from './dom.js';

const factor = (key, name) => ({ key, name, low: -2, high: 2, step: 0.1, neutral: 0,
  say: at => `${(2 ** at).toFixed(2)}×`, ask: at => `${(2 ** at).toFixed(3)}x` });

const contention = { key: 'contention', name: 'Contention', low: 0, high: 3, step: 0.05, neutral: 1,
  say: at => at === 0 ? 'off' : `${at.toFixed(2)}×`, ask: at => at === 0 ? 'off' : `${at}x` };

// Steps over whole numbers: the present value times powers of two, within bounds.
const steps = (key, name, base, allowed, unit = '') => {
  const values = [];
  for (let power = -6; power <= 6; power++) {
    const value = base * 2 ** power;
    if (Number.isInteger(value) && allowed(value)) values.push(value);
  }
  if (!values.includes(base)) values.push(base);
  values.sort((a, b) => a - b);
  return { key, name, low: 0, high: values.length - 1, step: 1, neutral: values.indexOf(base),
    say: at => `${count(values[at])}${unit && ` ${unit}${values[at] === 1 ? '' : 's'}`}`, ask: at => String(values[at]) };
};

const kinds = sim => [
  factor('link_bandwidth', 'Link bandwidth'), factor('link_latency', 'Link latency'),
  factor('gpu_flops', 'GPU FLOP/s'), factor('memory_bandwidth', 'Memory bandwidth'), contention,
  steps('tp', 'Tensor parallel', sim.cluster.tp, tp => sim.model.num_attention_heads % tp === 0 && tp <= 64, 'rank'),
  steps('micro_batch_size', 'Micro-batch', sim.workload.micro_batch_size, size => size <= 256),
  steps('seq_length', 'Sequence length', sim.workload.seq_length, tokens =>
    tokens >= 256 && tokens <= (sim.model.max_position_embeddings ?? 65536)),
];

const slider = (kind, moved) => {
  const id = `change-${kind.key}`;
  const said = h('output', { for: id });
  const input = h('input', { type: 'range', id, min: kind.low, max: kind.high, step: kind.step, value: kind.neutral,
    'aria-describedby': `${id}-error` });
  const error = h('p', { id: `${id}-error`, class: 'error' });
  const at = () => Math.round(Number(input.value) / kind.step) * kind.step;
  let right = kind.neutral;  // the last place that was answered
  const show = () => {
    said.textContent = kind.say(at());
    input.setAttribute('aria-valuetext', kind.say(at()));
    element.classList.toggle('moved', at() !== kind.neutral);
    error.textContent = '';
  };
  const back = () => { input.value = kind.neutral; show(); };
  input.addEventListener('input', () => { show(); moved(kind.key); });
  input.addEventListener('keydown', event => { if (event.key === 'Escape') { back(); moved(kind.key); } });
  input.addEventListener('dblclick', () => { back(); moved(kind.key); });
  const element = h('div', { class: 'slider' }, h('label', { for: id }, kind.name), said, input, error);
  show();
  // A place that cannot be: say why, go back to the last that could, and end the slider before it.
  const refuse = text => {
    const refused = at();
    input.value = right;
    show();
    error.textContent = `${kind.say(refused)}: ${text}`;
    if (kind.step === 1 && refused > right) input.max = refused - 1;
    if (kind.step === 1 && refused < right) input.min = refused + 1;
  };
  return { key: kind.key, element, back, refuse, accept: () => { right = at(); },
    change: () => at() === kind.neutral ? null : `${kind.key}=${kind.ask(at())}` };
};

const graphs = (sim, moved) => {
  const input = h('input', { type: 'checkbox', id: 'change-cuda_graph' });
  const before = Boolean(sim.cluster.cuda_graph);
  input.checked = before;
  input.addEventListener('change', () => moved('cuda_graph'));
  return { key: 'cuda_graph', element: h('div', { class: 'field box' }, input, h('label', { for: 'change-cuda_graph' },
    'CUDA graphs: launching costs nothing')),
    back: () => { input.checked = before; }, accept: () => {}, refuse: () => { input.checked = !input.checked; },
    change: () => input.checked === before ? null : `cuda_graph=${input.checked ? 'on' : 'off'}` };
};

/** Return all sliders of a simulation: `{element, changes(), back(), accept(), refuse(key, text)}`. */
export const sliders = (sim, moved) => {
  const all = [...kinds(sim).map(kind => slider(kind, moved)), graphs(sim, moved)];
  return {
    element: h('div', { class: 'sliders' }, all.map(one => one.element)),
    changes: () => all.map(one => one.change()).filter(Boolean),
    back: () => all.forEach(one => one.back()),
    accept: () => all.forEach(one => one.accept()),
    refuse: (key, text) => all.find(one => one.key === key)?.refuse(text),
  };
};
