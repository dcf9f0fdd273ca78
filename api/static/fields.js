// A field of a form, made from its schema: a control, what it means, and what is wrong with it.
import { Problem } from './api.js';
import { h } from './dom.js';

const FIRST = ['model', 'profile', 'gpus', 'global_batch_size', 'tp', 'dp', 'nodes', 'seq_length', 'micro_batch_size',
  'grad_accumulation', 'dtype'];
const LABELS = { profile: 'Machine', gpus: 'GPUs', global_batch_size: 'Global batch', tp: 'Tensor parallel', dp: 'Data parallel',
  pp: 'Pipeline stages', vpp: 'Virtual stages', cp: 'Context parallel', seq_length: 'Sequence length',
  micro_batch_size: 'Micro-batch', grad_accumulation: 'Accumulation', dtype: 'Type', cuda_graph: 'CUDA graphs',
  overrides: 'Model overrides', ep: 'Expert parallel', etp: 'Expert tensor parallel', cp_comm: 'Context exchange',
  pp_schedule: 'Pipeline schedule', pp_layers: 'Layers of stages', fp8_recipe: 'FP8 recipe', gpu_hour: 'Price of a GPU hour' };
const HINTS = { model: 'A preset, or a model that was added from its config.json (Library).',
  profile: 'What was measured, or published, of a machine; add your own in the Library.',
  fp8_recipe: 'How linear layers are quantized, in Megatron’s words (default none: they multiply in the type above).',
  trials: 'Most plans to evaluate (default: until no other can be faster; 40 for bayes and random).' };
const PLACEHOLDERS = { overrides: 'num_attention_heads=64', implementation_set: 'flash_attention=false' };

export const label = name => LABELS[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll('_', ' ');

// The schema says what the command line's help says: options become the labels of their fields.
const plainWords = text => text.replaceAll('`', '').replace('; may be repeated', ', one on each line')
  .replace(/--([a-z][a-z0-9-]*)/g, (_, flag) => `“${label(flag.replaceAll('-', '_'))}”`);

const choose = (attributes, options, blank) => h('select', attributes,
  blank && h('option', { value: '' }, blank), options.map(([value, text]) => h('option', { value }, text)));

// A control for each kind of field: its element, and functions that read and write its value.
const plainControl = element => ({ element, read: () => element.value.trim() || undefined,
  write: value => { element.value = value ?? ''; } });

const wholeNumber = (name, text) => {
  if (text === undefined) return undefined;
  const plain = text.replace(/(\d)[,_ ](?=\d{3}\b)/g, '$1');
  if (/^-?\d{1,15}$/.test(plain)) return Number(plain);
  const detail = `Must be a whole number, got ${text}.`;
  throw new Problem(422, { detail, errors: [{ pointer: `/${name}`, detail }] });
};

const manyOf = (said, attributes) => {
  const boxes = said.items.enum.map(value => h('input', { type: 'checkbox', value, name: attributes.name }));
  const element = h('div', { id: attributes.id, role: 'group', 'aria-describedby': attributes['aria-describedby'],
    'aria-labelledby': `${attributes.id}-label` },
    boxes.map(box => h('label', { class: 'check' }, box, ` ${box.value.replaceAll('_', ' ')}`)));
  const chosen = () => boxes.filter(box => box.checked).map(box => box.value);
  return { element, read: () => chosen().length ? chosen() : undefined,
    write: value => boxes.forEach(box => { box.checked = (value ?? []).includes(box.value); }) };
};

const numbersControl = element => ({ element, write: value => { element.value = (value ?? []).join(', '); },
  read: () => element.value.trim() ? element.value.split(/[\s,;]+/).filter(Boolean).map(one => /^\d{1,15}$/.test(one) ? Number(one) : one) : undefined });

// Off and not given are the same for a switch that is off by default; all others have three states.
const isBox = said => said.type === 'boolean' && !said.nullable && !said.default;
const switchControl = attributes => {
  const element = choose(attributes, [['true', 'on'], ['false', 'off']], 'default');
  return { element, read: () => element.value ? element.value === 'true' : undefined,
    write: value => { element.value = value ?? ''; } };
};

const controlOf = (name, said, attributes, library) => {
  const options = library[name] ?? said.enum?.map(value => [value, value]);
  if (options) return plainControl(choose(attributes, options, said.required ? null : 'default'));
  if (said.type === 'boolean' && !isBox(said)) return switchControl(attributes);
  if (said.type === 'boolean') {
    const element = h('input', { ...attributes, type: 'checkbox' });
    return { element, read: () => element.checked || undefined, write: value => { element.checked = Boolean(value); } };
  }
  if (said.type === 'array' && said.items.enum) return manyOf(said, attributes);
  if (said.type === 'array' && said.items.type === 'integer')
    return numbersControl(h('input', { ...attributes, type: 'text', autocomplete: 'off', spellcheck: 'false' }));
  if (said.type === 'array') {
    const element = h('textarea', { ...attributes, rows: 2, spellcheck: 'false', placeholder: PLACEHOLDERS[name] });
    const lines = () => element.value.split('\n').map(line => line.trim()).filter(Boolean);
    return { element, read: () => lines().length ? lines() : undefined,
      write: value => { element.value = (value ?? []).join('\n'); } };
  }
  const whole = said.type === 'integer';
  const control = plainControl(h('input', { ...attributes, type: 'text', autocomplete: 'off', spellcheck: 'false',
    inputmode: whole ? 'numeric' : null,
    placeholder: said.default ?? /\(default:? ([^;)]*)/.exec(said.description ?? '')?.[1] ?? null }));
  return whole ? { ...control, read: () => wholeNumber(name, control.read()) } : control;
};

/** Return `{name, element, control, complain(detail)}`; `library` has the choices of fields that name what is stored. */
export const fieldOf = (name, said, library) => {
  const id = `field-${name}`, about = HINTS[name] ?? plainWords(said.description ?? ''), plain = FIRST.includes(name);
  const control = controlOf(name, said, { id, name, 'aria-describedby': `${id}-hint ${id}-error` }, library);
  const error = h('p', { id: `${id}-error`, class: 'error' });
  const box = isBox(said), group = said.type === 'array' && said.items.enum;
  const text = h(group ? 'span' : 'label', { for: group ? null : id, id: `${id}-label` }, label(name));
  const hint = h('p', { id: `${id}-hint`, class: plain ? 'hint sr' : 'hint' }, about);
  const element = h('div', { class: `field ${box ? 'box' : ''}`, title: plain ? about : null },
    box ? [control.element, text] : [text, control.element], hint, error);
  const complain = detail => {
    error.textContent = detail;
    if (detail) control.element.setAttribute('aria-invalid', 'true'); else control.element.removeAttribute('aria-invalid');
  };
  control.element.addEventListener('input', () => complain(''));
  return { name, element, control, complain };
};
