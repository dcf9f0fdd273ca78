// The API's documentation, made from openapi.json in the browser.
import { h, link } from './dom.js';
import { bodyOf, shape, typeWords } from './schema.js';

const METHODS = ['get', 'post', 'put', 'delete', 'head', 'patch'];

const operations = spec => Object.entries(spec.paths).flatMap(([path, item]) => METHODS.filter(method => item[method])
  .map(method => ({ path, method, said: item[method],
    parameters: [...(item.parameters ?? []), ...(item[method].parameters ?? [])] })));

const group = ({ said, path }) => said.tags?.[0] ?? path.split('/').filter(Boolean).slice(0, 2).join('/');

// Return paragraphs of a description: plain text with `code` in backquotes.
const prose = text => (text ?? '').split(/\n{2,}/).filter(Boolean).map(part =>
  h('p', {}, part.split('`').map((piece, index) => index % 2 ? h('code', {}, piece) : piece)));

const parameterOf = (spec, raw) => raw.$ref ? shape(spec, raw) : raw;

const limits = said => [['minimum', '≥'], ['maximum', '≤'], ['minLength', 'length ≥'], ['maxLength', 'length ≤'],
  ['maxItems', 'items ≤'], ['pattern', 'matches']]
  .filter(([key]) => said[key] !== undefined).map(([key, sign]) => `${sign} ${said[key]}`).join(', ');

const rowOf = (spec, name, schema, required, description) => {
  const said = shape(spec, schema);
  const fallback = said.default !== undefined && said.default !== null && !required
    ? `default ${JSON.stringify(said.default)}` : '';
  return h('tr', {}, h('th', { scope: 'row' }, h('code', {}, name), required ? h('span', { class: 'must' }, ' required') : ''),
    h('td', {}, h('code', {}, typeWords(spec, schema)),
      h('small', {}, [limits(said), fallback].filter(Boolean).join(', '))),
    h('td', {}, prose(description ?? said.description)));
};

const tableOf = (title, rows) => rows.length > 0 && [h('h4', {}, title),
  h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': title },
  h('table', { class: 'fields-table' }, h('tbody', {}, rows)))];

const properties = (spec, schema) => {
  const here = shape(spec, schema);
  return Object.entries(here.properties ?? {})
    .map(([name, inner]) => rowOf(spec, name, inner, (here.required ?? []).includes(name)));
};

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

const curl = (spec, { path, method, said, parameters }) => {
  const body = bodyOf(spec, said);
  const shown = new Map(parameters.map(one => parameterOf(spec, one)).filter(one => one.example !== undefined)
    .map(one => [one.name, one]));
  const place = path.replace(/\{(\w+)\}/g, (_, name) => shown.get(name)?.example ?? `$${name.toUpperCase()}`);
  const query = [...shown.values()].filter(one => one.in === 'query')
    .map(one => `${one.name}=${encodeURIComponent(one.example)}`);
  const url = new URL('.', document.baseURI).href.replace(/\/$/, '') + place + (query.length ? `?${query.join('&')}` : '');
  const lines = [`curl${method === 'get' ? '' : ` -X ${method.toUpperCase()}`} "${url}"`];
  if (said.security) lines.push('  -H "Authorization: Bearer $DOMINO_TUNE_TOKEN"');
  if (body) lines.push(`  -H 'Content-Type: ${body.type}'`, body['x-file'] ? `  --data-binary @${body['x-file']}`
    : `  --data-binary ${quoted(body.type === 'application/json' ? JSON.stringify(body.example) : body.example)}`);
  return lines.join(' \\\n');
};

const answers = (spec, said) => Object.entries(said.responses ?? {}).map(([status, raw]) => {
  const response = raw.$ref ? shape(spec, raw) : raw;
  const content = Object.entries(response.content ?? {}).map(([type, { schema }]) => h('div', {}, h('code', {}, type),
    schema ? [' ', h('code', { class: 'soft' }, typeWords(spec, schema))] : ''));
  return h('tr', { class: Number(status) < 400 ? 'fine' : 'problem' },
    h('th', { scope: 'row' }, h('code', {}, status)), h('td', {}, response.description ?? ''), h('td', {}, content));
});

const describe = (spec, operation) => {
  const { path, method, said, parameters } = operation, body = bodyOf(spec, said);
  const known = parameters.map(one => parameterOf(spec, one));
  return h('details', { class: 'operation', id: said.operationId },
    h('summary', {}, h('span', { class: `method ${method}` }, method.toUpperCase()),
      h('code', { class: 'path' }, path), h('span', { class: 'about' }, said.summary ?? '')),
    h('div', { class: 'inside' }, prose(said.description),
      tableOf('Parameters', known.map(one => rowOf(spec, one.name, one.schema ?? {}, one.required,
        one.description ?? `In the ${one.in}.`))),
      body && tableOf(`Body, ${body.type}`, properties(spec, body.schema)),
      tableOf('Answers', answers(spec, said)), h('h4', {}, 'Example'),
      h('pre', { tabindex: '0' }, h('code', {}, curl(spec, operation)))));
};

const open = () => {
  const at = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (at?.tagName !== 'DETAILS') return;
  at.open = true;
  at.scrollIntoView();
  at.querySelector('summary').focus({ preventScroll: true });
};

const draw = spec => {
  const groups = new Map();
  for (const operation of operations(spec)) {
    const name = group(operation);
    groups.set(name, [...(groups.get(name) ?? []), operation]);
  }
  const about = document.getElementById('about');
  about.prepend(h('strong', {}, `${spec.info.title} ${spec.info.version}. `));
  about.after(h('div', { class: 'about-api' }, prose(spec.info.description)));
  document.getElementById('operations').replaceChildren(...[...groups].map(([name, found]) => h('div', {}, h('h2', {}, name),
    h('ul', {}, found.map(({ said }) => h('li', {}, link(`#${said.operationId}`, said.operationId)))))));
  document.getElementById('described').replaceChildren(...[...groups].map(([name, found]) =>
    h('section', {}, h('h2', {}, name), found.map(operation => describe(spec, operation)))));
  addEventListener('hashchange', open);
  open();
};

const response = await fetch(new URL('openapi.json', document.baseURI), { credentials: 'omit' });
if (response.ok) draw(await response.json());
else document.getElementById('described').replaceChildren(h('p', { class: 'error', role: 'alert' },
  `openapi.json could not be read: ${response.status}.`));
