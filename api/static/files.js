// Files of a tune: the plan, the report, the trace, and a framework's arguments to paste.
import { get, getText } from './api.js';
import { button, h, section } from './dom.js';

const FILES = [['plan', 'Plan', 'json', 'application/json'], ['report', 'Report', 'html', 'text/html'],
  ['trace', 'Trace for Perfetto', 'json', 'application/json']];
const TARGETS = { megatron: 'Megatron-LM', deepspeed: 'DeepSpeed', env: 'Environment' };

/** Save a file that the page fetched: a plain link cannot send a token. */
export const save = (text, name, type) => {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const anchor = h('a', { href: url, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};

const copy = (pre, told) => async () => {
  try {
    await navigator.clipboard.writeText(pre.textContent);
    told('Copied.');
  } catch {  // no clipboard on plain http: select the text, so that Ctrl+C copies it
    getSelection().selectAllChildren(pre);
    told('Selected; copy it with Ctrl+C.');
  }
};

const paste = ({ path, signal }) => {
  const pre = h('pre', { tabindex: '0', hidden: true }), said = h('p', { class: 'note', role: 'status' });
  const copying = button('Copy', copy(pre, text => { said.textContent = text; }), { hidden: true });
  const choice = Object.entries(TARGETS).map(([to, name]) => button(name, async event => {
    for (const one of choice) one.setAttribute('aria-pressed', String(one === event.currentTarget));
    try {
      pre.textContent = (await get(`${path}/files/plan?to=${to}`, { signal })).text;
      said.textContent = '';
    } catch (problem) {
      if (problem.name === 'AbortError') return;
      pre.textContent = '';
      said.textContent = problem.message;
    }
    pre.hidden = copying.hidden = !pre.textContent;
  }, { 'aria-pressed': 'false' }));
  return [h('h3', {}, 'Paste into the launch script'),
    h('div', { class: 'row', role: 'group', 'aria-label': 'Framework' }, choice, copying), pre, said];
};

/** Return the section of a finished tune. */
export const files = ({ path, name, signal, fail }) => {
  const said = h('div', {});
  const saves = FILES.map(([kind, title, ending, type]) => button(title, async () => {
    said.replaceChildren();
    try {
      save(await getText(`${path}/files/${kind}`, { signal }), `${name}-${kind}.${ending}`, type);
    } catch (problem) {
      if (problem.name !== 'AbortError') fail(problem, said);
    }
  }, { id: `save-${kind}`, class: kind === 'plan' ? 'primary' : null }));
  return section('files', 'Take it along',
    'The plan file replays this very order wherever --plan is taken: simulate, whatif, validate, and the runtime.',
    h('div', { class: 'row' }, saves), said, paste({ path, signal }));
};
