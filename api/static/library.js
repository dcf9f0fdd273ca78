// Models and profiles that the server keeps: looked at, added from files, forgotten; profiles are calibrated.
import { list, newKey, post, remove, request } from './api.js';
import { count, h, parameters, section, sureButton, table } from './dom.js';

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
  lead: 'Profiles: what was measured, or published, of each machine. A profile keeps the name that its file gives it.',
  nameOf: parsed => String(parsed.name ?? ''), fixed: true,
  send: (name, body, known) => request(`v1/profiles/${name}`, { method: 'PUT', body,
    headers: known ? { 'if-match': `"${known.content_id}"` } : { 'if-none-match': '*' } }),
  head: ['Profile', 'GPU', 'from'],
  row: profile => [profile.problem || profile.gpu, profile.origin] };

const kept = (one, kind, again) => {
  const said = h('span', { class: 'error', role: 'alert' });
  const gone = sureButton('Forget', one.name, async () => {
    gone.disabled = true;
    try { await remove(`${kind.path}/${one.name}`); await again(); } catch (problem) { gone.disabled = false; said.textContent = problem.message; }
  });
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

const RUNS = 'label, measured_ms, model, tp, dp, nodes, seq_length, micro_batch_size, grad_accumulation …';

// Fit a profile to runs of a cluster: a job, whose result is a profile of a new name.
const calibrating = begin => {
  const wrong = h('p', { class: 'error', role: 'alert' });
  const base = h('select', { id: 'calibrate-profile' }), name = h('input', { id: 'calibrate-name', type: 'text', autocomplete: 'off', spellcheck: 'false' });
  const file = h('input', { id: 'calibrate-runs', type: 'file', accept: '.csv,text/csv' });
  const go = async event => {
    event.preventDefault();
    wrong.textContent = '';
    if (!file.files.length) { wrong.textContent = 'Choose a table of runs first.'; file.focus(); return; }
    try {
      begin(await post('v1/jobs', { kind: 'calibrate', profile: base.value, name: name.value.trim(), runs: await file.files[0].text() },
        { headers: { 'idempotency-key': newKey() } }));
    } catch (problem) { wrong.textContent = problem.message; }
  };
  const element = section('calibrate', 'Calibrate', 'Fit a profile to iterations that a cluster measured: a new profile, and how well it predicts runs that it did not see.',
    h('form', { class: 'sweep-form adding', novalidate: true, onsubmit: go },
      h('div', { class: 'field' }, h('label', { for: 'calibrate-profile' }, 'Machine'), base),
      h('div', { class: 'field wide' }, h('label', { for: 'calibrate-runs' }, 'A table of runs (CSV)'), file),
      h('div', { class: 'field' }, h('label', { for: 'calibrate-name' }, 'Name of the new profile'), name), h('button', {}, 'Calibrate'),
      h('p', { class: 'hint' }, `Its first line names the columns: ${RUNS}`), wrong));
  const choose = profiles => base.replaceChildren(...profiles.filter(one => !one.problem).map(one => h('option', { value: one.name }, one.name)));
  return { element, choose };
};

const shelf = (kind, signal, fail, told = () => {}) => {
  const host = h('div', {}, h('p', { class: 'note' }, 'Loading …'));
  let found = [];
  const again = async () => {
    found = await list(kind.path, { limit: 1000, signal });
    told(found);
    host.replaceChildren(table(kind.title, [...kind.head, ''], found.map(one => kept(one, kind, again)), 'shelf'));
  };
  again().catch(problem => fail(problem, host));
  return section(kind.one, kind.title, kind.lead, upload(kind, name => found.find(one => one.name === name), again), host);
};

/** Return the view of models and profiles; call `begin(job)` with a calibration. */
export const library = ({ signal, fail, begin }) => {
  const calibrate = calibrating(begin);
  return h('div', {}, shelf(MODELS, signal, fail), shelf(PROFILES, signal, fail, calibrate.choose), calibrate.element);
};
