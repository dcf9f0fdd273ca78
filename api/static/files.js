// What one takes along: the plan file, the paste block of a framework, the report, the trace.
import { get, getText } from './api.js';
import { button, h, section } from './dom.js';

const FILES = [['plan', 'Plan', 'json', 'application/json'], ['report', 'Report', 'html', 'text/html'],
  ['trace', 'Trace for Perfetto', 'json', 'application/json']];
const TARGETS = { megatron: 'Megatron-LM', deepspeed: 'DeepSpeed', env: 'Environment' };

// Fetched and saved by the page, because a plain link could carry no token.
const save = (text, name, type) => {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const anchor = h('a', { href: url, download: name });
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
};

const copy = (pre, told) => async () => {
  try {
    await navigator.clipboard.writeText(pre.textContent);
    told('Copied.');
  } catch {  // no clipboard on plain http: select it for the user's own Ctrl+C
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
      pre.textContent = (await get(`${path}/plan?to=${to}`, { signal })).text;
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

/** The section of a finished tune. */
export const files = ({ path, name, signal, fail }) => {
  const said = h('div', {});
  const saves = FILES.map(([kind, title, ending, type]) => button(title, async () => {
    said.replaceChildren();
    try {
      save(await getText(`${path}/${kind}`, { signal }), `${name}-${kind}.${ending}`, type);
    } catch (problem) {
      if (problem.name !== 'AbortError') fail(problem, said);
    }
  }, { id: `save-${kind}`, class: kind === 'plan' ? 'primary' : null }));
  return section('files', 'Take it along',
    'The plan file replays this very order wherever --plan is taken: simulate, whatif, validate, and the runtime.',
    h('div', { class: 'row' }, saves), said, paste({ path, signal }));
};
