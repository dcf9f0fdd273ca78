// The form of a tune, made from the API's schema: a new field there appears here.
import { get, list, newKey, post, Problem } from './api.js';
import { button, count, h, parameters } from './dom.js';
import { bodyOf, shape } from './schema.js';

const FIRST = ['model', 'profile', 'tp', 'dp', 'nodes', 'seq_length', 'micro_batch_size', 'grad_accumulation', 'dtype'];
const GROUPS = [['What is trained', ['model', 'seq_length', 'micro_batch_size', 'grad_accumulation', 'dtype']],
  ['On which cluster', ['profile', 'tp', 'dp', 'nodes']]];
const LABELS = { profile: 'Machine', tp: 'Tensor parallel', dp: 'Data parallel', seq_length: 'Sequence length',
  micro_batch_size: 'Micro-batch', grad_accumulation: 'Accumulation', dtype: 'Type', cuda_graph: 'CUDA graphs',
  overrides: 'Model overrides' };
const USUAL = { model: 'gpt3-13b', profile: 'h100-dgx', tp: 8, seq_length: 2048, micro_batch_size: 8 };

const label = name => LABELS[name] ?? (name[0].toUpperCase() + name.slice(1)).replaceAll('_', ' ');

const choose = (attributes, options, blank) => h('select', attributes,
  blank && h('option', { value: '' }, blank), options.map(([value, text]) => h('option', { value }, text)));

// A control for each kind of field: its element, and functions that read and write its value.
const plainControl = element => ({ element, read: () => element.value.trim() || undefined,
  write: value => { element.value = value ?? ''; } });

const controlOf = (name, said, attributes, library) => {
  const options = library[name] ?? said.enum?.map(value => [value, value]);
  if (options) return plainControl(choose(attributes, options, said.required ? null : 'default'));
  if (said.type === 'boolean') {
    const element = h('input', { ...attributes, type: 'checkbox' });
    return { element, read: () => element.checked || undefined, write: value => { element.checked = Boolean(value); } };
  }
  if (said.type === 'array' && said.items.enum) return manyOf(said, attributes);
  if (said.type === 'array') {
    const element = h('textarea', { ...attributes, rows: 2, spellcheck: 'false', placeholder: 'num_attention_heads=64' });
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

const manyOf = (said, attributes) => {
  const boxes = said.items.enum.map(value => h('input', { type: 'checkbox', value, name: attributes.name }));
  const element = h('div', { id: attributes.id, role: 'group', 'aria-describedby': attributes['aria-describedby'],
    'aria-labelledby': `${attributes.id}-label` },
    boxes.map(box => h('label', { class: 'check' }, box, ` ${box.value.replaceAll('_', ' ')}`)));
  const chosen = () => boxes.filter(box => box.checked).map(box => box.value);
  return { element, read: () => chosen().length ? chosen() : undefined,
    write: value => boxes.forEach(box => { box.checked = (value ?? []).includes(box.value); }) };
};

const wholeNumber = (name, text) => {
  if (text === undefined) return undefined;
  const plain = text.replace(/(\d)[,_ ](?=\d{3}\b)/g, '$1');
  if (/^-?\d{1,15}$/.test(plain)) return Number(plain);
  const detail = `Must be a whole number, got ${text}.`;
  throw new Problem(422, { detail, errors: [{ pointer: `/${name}`, detail }] });
};

const fieldOf = (name, said, library) => {
  const id = `field-${name}`;
  const control = controlOf(name, said, { id, name, 'aria-describedby': `${id}-hint ${id}-error` }, library);
  const error = h('p', { id: `${id}-error`, class: 'error' });
  const box = said.type === 'boolean';
  const text = h(said.type === 'array' && said.items.enum ? 'span' : 'label', { for: id, id: `${id}-label` }, label(name));
  const hint = h('p', { id: `${id}-hint`, class: FIRST.includes(name) ? 'hint sr' : 'hint' }, said.description ?? '');
  const element = h('div', { class: `field ${box ? 'box' : ''}`, title: FIRST.includes(name) ? said.description : null },
    box ? [control.element, text] : [text, control.element], hint, error);
  const complain = detail => {
    error.textContent = detail;
    control.element.toggleAttribute('aria-invalid', Boolean(detail));
    if (detail) control.element.setAttribute('aria-invalid', 'true');
  };
  control.element.addEventListener('input', () => complain(''));
  return { name, element, control, complain };
};

const modelOption = model => [model.name, [model.name, parameters(model.parameters)].filter(Boolean).join(' · ')];
const profileOption = profile => [profile.name, [profile.name, profile.gpu].filter(Boolean).join(' · ')];

/** Return what the form needs from the server: the schema of its body, models and profiles. */
const material = async signal => {
  const [spec, models, profiles] = await Promise.all([get('openapi.json', { signal }), list('v1/models', { signal }),
    list('v1/profiles', { signal })]);
  const body = shape(spec, bodyOf(spec, spec.paths['/v1/tunes'].post).schema);
  return { spec, body, models, library: { model: models.map(modelOption),
    profile: profiles.filter(item => !item.problem).map(profileOption) } };
};

// A JSON pointer names a field; a text may name its option on the command line instead.
const nameOf = pointer => pointer?.replace(/^#/, '').split('/')[1];
const blamed = (problem, fields) => {
  const found = new Map();
  for (const { pointer, detail } of problem.errors) if (fields.has(nameOf(pointer))) found.set(nameOf(pointer), detail);
  if (!found.size) {
    const flags = [...problem.message.matchAll(/--([a-z-]+)/g)].map(([, flag]) => flag.replaceAll('-', '_'))
      .filter(name => fields.has(name));
    if (flags.length) found.set(flags[0], problem.message);
  }
  return found;
};

const show = (problem, fields, alert) => {
  const found = blamed(problem, fields);
  for (const [name, field] of fields) field.complain(found.get(name) ?? '');
  const first = [...fields.values()].find(field => found.has(field.name));
  const beside = first && [...found.values()].some(detail => problem.message.includes(detail));
  alert.textContent = beside ? '' : problem.message;
  first?.element.closest('details')?.setAttribute('open', '');
  (first?.control.element.matches('input, select, textarea') ? first.control.element
    : first?.control.element.querySelector('input'))?.focus();
};

/** Return GPUs, sequences and tokens of an iteration, in one line. */
const sums = (body, models) => {
  const { tp = 1, dp = 1, micro_batch_size: micro, seq_length: sequence, grad_accumulation: accumulate = 1 } = body;
  if (!micro || !sequence) return '';
  const batch = micro * accumulate * dp, most = models.find(model => model.name === body.model)?.model.max_position_embeddings;
  const long = most && sequence > most ? ` ${body.model} has ${count(most)} positions.` : '';
  return `${count(tp * dp)} GPUs, ${count(batch)} sequences, ${count(batch * sequence)} tokens an iteration.${long}`;
};

/** Return the form; call `begin(job)` with the new job. `from`: an earlier request that fills it. */
export const tuneForm = async ({ from, begin, signal }) => {
  const { spec, body, models, library } = await material(signal);
  const fields = new Map(Object.entries(body.properties).map(([name, schema]) => {
    const said = shape(spec, schema);
    const items = said.items && shape(spec, said.items);
    const required = (body.required ?? []).includes(name) || name in library;
    return [name, fieldOf(name, { ...said, ...(items && { items }), required }, library)];
  }));
  const start = from ?? USUAL;
  for (const [name, field] of fields) if (start[name] !== undefined && start[name] !== null) field.control.write(start[name]);
  const read = () => Object.fromEntries([...fields].map(([name, field]) => [name, field.control.read()])
    .filter(([, value]) => value !== undefined));
  const alert = h('p', { class: 'error', role: 'alert' }), total = h('p', { class: 'note', id: 'sums' });
  const submit = h('button', { class: 'primary' }, 'Tune');
  let sent = { text: '', key: '' };

  const go = async event => {
    event.preventDefault();
    if (submit.disabled) return;
    alert.textContent = '';
    submit.disabled = true;
    try {
      const asked = read(), text = JSON.stringify(asked);
      if (sent.text !== text) sent = { text, key: newKey() };  // after a lost answer the same key gives the same job
      const job = await post('v1/tunes', asked, { headers: { 'idempotency-key': sent.key } });
      sent = { text: '', key: '' };
      begin(job);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (problem.status) sent = { text: '', key: '' };
      show(problem, fields, alert);
    } finally {
      submit.disabled = false;
    }
  };
  const add = () => { try { total.textContent = sums(read(), models); } catch { total.textContent = ''; } };
  const groups = GROUPS.map(([title, names]) => h('fieldset', {}, h('legend', {}, title),
    h('div', { class: 'fields' }, names.filter(name => fields.has(name)).map(name => fields.get(name).element))));
  const rest = [...fields.values()].filter(field => !FIRST.includes(field.name));
  const more = h('details', { class: 'more' }, h('summary', {}, 'More options'),
    h('div', { class: 'fields' }, rest.map(field => field.element)));
  if (from && rest.some(field => field.control.read() !== undefined)) more.open = true;
  const reset = button('Clear',
    () => { for (const field of fields.values()) { field.control.write(USUAL[field.name]); field.complain(''); } add(); });
  const form = h('form', { class: 'ask', novalidate: true, onsubmit: go, oninput: add }, groups, more, total, alert,
    h('div', { class: 'row' }, submit, reset));
  add();
  return form;
};
