// The form of one question, made from the API's schema: a new field there appears here.
import { newKey, post, Problem } from './api.js';
import { button, count, h } from './dom.js';
import { fieldOf, label } from './fields.js';
import { shape } from './schema.js';

// The fields that a problem's JSON pointers name, each with what is wrong with it.
const nameOf = pointer => pointer?.replace(/^#/, '').split('/')[1];
const blamed = (problem, fields) => new Map(problem.errors.map(({ pointer, detail }) => [nameOf(pointer), detail])
  .filter(([name]) => fields.has(name)));

// Return the smallest change that fits, in words: `micro-batch 1, recompute full`.
const changeWords = change => Object.entries(change).map(([name, value]) => `${label(name).toLowerCase()} ${value}`).join(', ');

const show = (problem, fields, alert, apply) => {
  const found = blamed(problem, fields);
  for (const [name, field] of fields) field.complain(found.get(name) ?? '');
  const first = [...fields.values()].find(field => found.has(field.name));
  const beside = first && [...found.values()].some(detail => problem.message.includes(detail));
  alert.replaceChildren(beside ? '' : problem.message,
    problem.change ? button(`Use ${changeWords(problem.change)}`, () => apply(problem.change)) : '');
  first?.element.closest('details')?.setAttribute('open', '');
  (first?.control.element.matches('input, select, textarea') ? first.control.element
    : first?.control.element.querySelector('input'))?.focus();
};

/** Return GPUs, sequences and tokens of an iteration, in one line. */
const sums = (body, models) => {
  const { tp = 1, pp = 1, cp = 1, dp = 1, micro_batch_size: micro, seq_length: sequence, grad_accumulation: accumulate = 1 } = body;
  const gpus = [body.gpus ?? tp * pp * cp * dp].flat(), batch = body.global_batch_size ?? (micro && micro * accumulate * dp);
  if (![...gpus, batch, sequence].every(value => value > 0)) return '';
  const most = models.find(model => model.name === body.model)?.model.max_position_embeddings;
  const long = most && sequence > most ? ` ${body.model} has ${count(most)} positions.` : '';
  return `${gpus.map(count).join(', ')} GPUs, ${count(batch)} sequences, ${count(batch * sequence)} tokens an iteration.${long}`;
};

/** Return the form of `question` (`{kind, path, body, groups, usual, verb, spec, models, library}`); `given` fills it. Call
    `begin(job)` with the new job. `read()` gives what it holds. */
export const questionForm = ({ question, given, begin }) => {
  const { spec, body, models, library, usual } = question;
  const fields = new Map(Object.entries(body.properties).map(([name, schema]) => {
    const said = shape(spec, schema), items = said.items && shape(spec, said.items);
    const required = (body.required ?? []).includes(name) || name in library;
    return [name, fieldOf(name, { ...said, ...(items && { items }), required }, library)];
  }));
  const write = values => {
    for (const [name, field] of fields) if (values[name] !== undefined && values[name] !== null) field.control.write(values[name]);
  };
  write(usual);
  write(given ?? {});
  const read = () => Object.fromEntries([...fields].map(([name, field]) => [name, field.control.read()])
    .filter(([, value]) => value !== undefined));
  const alert = h('p', { class: 'error', role: 'alert' }), total = h('p', { class: 'note', id: 'sums' });
  const submit = h('button', { class: 'primary' }, question.verb);
  let sent = { text: '', key: '' };

  const add = () => { try { total.textContent = sums(read(), models); } catch { total.textContent = ''; } };
  const apply = change => {
    write(change);
    for (const field of fields.values()) field.complain('');
    alert.replaceChildren();
    add();
    submit.focus();
  };
  const go = async event => {
    event.preventDefault();
    if (submit.disabled) return;
    alert.replaceChildren();
    submit.disabled = true;
    try {
      const asked = read(), text = JSON.stringify(asked);
      if (sent.text !== text) sent = { text, key: newKey() };  // after a lost answer the same key gives the same job
      const job = await post(question.path, { kind: question.kind, ...asked }, { headers: { 'idempotency-key': sent.key } });
      sent = { text: '', key: '' };
      begin(job);
    } catch (problem) {
      if (!(problem instanceof Problem)) throw problem;
      if (problem.status) sent = { text: '', key: '' };
      show(problem, fields, alert, apply);
    } finally {
      submit.disabled = false;
    }
  };
  const groups = question.groups.map(([title, names]) => h('fieldset', {}, h('legend', {}, title),
    h('div', { class: 'fields' }, names.filter(name => fields.has(name)).map(name => fields.get(name).element))));
  const shown = new Set(question.groups.flatMap(([, names]) => names));
  const rest = [...fields.values()].filter(field => !shown.has(field.name));
  const more = h('details', { class: 'more' }, h('summary', {}, 'More options'),
    h('div', { class: 'fields' }, rest.map(field => field.element)));
  if (given && rest.some(field => given[field.name] !== undefined)) more.open = true;
  const reset = button('Back to the example', () => {
    for (const field of fields.values()) { field.control.write(usual[field.name]); field.complain(''); }
    add();
  });
  const element = h('form', { class: 'ask', novalidate: true, onsubmit: go, oninput: add }, groups, more, total, alert,
    h('div', { class: 'row' }, submit, reset));
  add();
  return { element, read: () => { try { return read(); } catch { return {}; } } };
};
