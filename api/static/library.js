// Models and profiles that the server keeps: looked at, added from files, forgotten.
import { list, newKey, remove, request } from './api.js';
import { button, count, h, parameters, section, table } from './dom.js';

const SLUG = /^[a-z0-9](\.?[a-z0-9_-])*$/;
const slugOf = text => text.toLowerCase().replace(/\.json$/, '').replace(/[^a-z0-9._-]+/g, '-').replace(/^[^a-z0-9]+|[.]+$/g, '');

// The two libraries: where each lies, how a file goes there, what its table shows.
const MODELS = { path: 'v1/models', title: 'Models', one: 'model', file: 'A Hugging Face config.json',
  lead: 'Presets, and models that were added from their config.json. Only the shape is read.',
  nameOf: parsed => slugOf(String(parsed._name_or_path ?? parsed.model_type ?? '').split('/').pop()),
  send: (name, body) => request(`v1/models?name=${name}`, { method: 'POST', body, headers: { 'idempotency-key': newKey() } }),
  head: ['Model', 'parameters', 'layers', 'hidden', 'heads', 'from'],
  row: ({ parameters: size, model, origin }) => [parameters(size), ...['num_hidden_layers', 'hidden_size', 'num_attention_heads']
    .map(name => count(model[name])), origin] };
const PROFILES = { path: 'v1/profiles', title: 'Machines', one: 'profile', file: 'The file of a profile',
  lead: 'Profiles: what was measured, or published, of each machine. Their own names count.',
  nameOf: parsed => String(parsed.name ?? ''), fixed: true,
  send: (name, body, known) => request(`v1/profiles/${name}`, { method: 'PUT', body,
    headers: known ? { 'if-match': `"${known.content_id}"` } : { 'if-none-match': '*' } }),
  head: ['Profile', 'GPU', 'origin'],
  row: profile => [profile.problem || profile.gpu, profile.origin] };

const kept = (one, kind, again) => {
  const said = h('span', { class: 'error', role: 'alert' });
  const gone = button('Forget', async () => {
    gone.disabled = true;
    try { await remove(`${kind.path}/${one.name}`); await again(); } catch (problem) { gone.disabled = false; said.textContent = problem.message; }
  }, { 'aria-label': `Forget ${one.name}` });
  return [one.name, ...kind.row(one), h('span', {}, one.origin === 'library' ? gone : '', said)];
};

const upload = (kind, known, again) => {
  const id = `add-${kind.one}`, said = h('p', { class: 'note', role: 'status' }), wrong = h('p', { class: 'error', role: 'alert' });
  const file = h('input', { id, type: 'file', accept: '.json,application/json' });
  const name = h('input', { id: `${id}-name`, type: 'text', autocomplete: 'off', spellcheck: 'false', readonly: kind.fixed });
  let text = '';
  file.addEventListener('change', async () => {
    wrong.textContent = said.textContent = text = '';
    try {
      text = await file.files[0].text();
      name.value = kind.nameOf(JSON.parse(text));
    } catch { wrong.textContent = `${file.files[0]?.name ?? 'This'} is no JSON file.`; }
  });
  const go = async event => {
    event.preventDefault();
    wrong.textContent = said.textContent = '';
    if (!text) { wrong.textContent = 'Choose a file first.'; file.focus(); return; }
    if (!SLUG.test(name.value)) { wrong.textContent = 'A name has small letters, digits, and . _ - between them.'; name.focus(); return; }
    try {
      const response = await kind.send(name.value, text, known(name.value)), { notes = [] } = await response.json();
      said.textContent = [response.status === 201 ? `${name.value} was added.` : `${name.value} is this file from now on.`, ...notes].join(' ');
      file.value = text = '';  // so that the same file, changed, can be chosen again
      await again();
    } catch (problem) { wrong.textContent = problem.message; }
  };
  return h('form', { class: 'sweep-form adding', novalidate: true, onsubmit: go },
    h('div', { class: 'field wide' }, h('label', { for: id }, kind.file), file),
    h('div', { class: 'field' }, h('label', { for: `${id}-name` }, 'Name'), name), h('button', {}, `Add ${kind.one}`), said, wrong);
};

const shelf = (kind, signal, fail) => {
  const host = h('div', {}, h('p', { class: 'note' }, 'Loading …'));
  let found = [];
  const again = async () => {
    found = await list(kind.path, { limit: 1000, signal });
    host.replaceChildren(table(kind.title, [...kind.head, ''], found.map(one => kept(one, kind, again)), 'shelf'));
  };
  again().catch(problem => fail(problem, host));
  return section(kind.one, kind.title, kind.lead, upload(kind, name => found.find(one => one.name === name), again), host);
};

/** Return the view of models and profiles. */
export const library = ({ signal, fail }) => h('div', {}, shelf(MODELS, signal, fail), shelf(PROFILES, signal, fail));
