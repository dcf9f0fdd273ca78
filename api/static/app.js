// The page: the view of each address, and what all views share.
import { get, Problem } from './api.js';
import { askForm } from './ask.js';
import { comparison } from './compare.js';
import { button, h } from './dom.js';
import { history } from './history.js';
import { showJob, showPoints } from './job.js';
import { jobList } from './jobs.js';
import { library } from './library.js';
import { forgetToken, mayAskAgain, token } from './token.js';

const host = document.getElementById('content'), account = document.getElementById('account');
const ASKED = ['layout', 'scale', 'tune'], OF_POINTS = ['whatif', 'scale'], JOBS = [...ASKED, 'whatif', 'calibrate'];  // asked by the form; shown point by point; all
let leave = new AbortController();

/** Show a problem in `place`; after a 401, with a button to give a token. */
const fail = (problem, place = host) => {
  if (problem.name === 'AbortError') return;
  if (!(problem instanceof Problem)) console.error(problem);
  const again = problem.status === 401 && button('Give a token', () => { here = ''; show(); });
  place.replaceChildren(h('p', { class: 'error', role: 'alert' }, problem.message), again || '');
};

const arrive = place => {
  const target = place ? document.getElementById(place)?.querySelector('h2') : null;
  const title = target ?? host.querySelector('h1');
  title?.focus({ preventScroll: true });
  if (target) target.scrollIntoView(); else scrollTo(0, 0);
};

const begin = job => { location.hash = `#/${job.kind}/${job.id}`; };
const jobView = kind => async (signal, id, place) => {
  if (!id) { location.replace('#/history'); return; }
  host.replaceChildren(h('p', { class: 'note' }, 'Loading …'));
  await (OF_POINTS.includes(kind) ? showPoints : showJob)({ kind, id, host, signal, fail, begin, arrived: () => arrive(place) });
};
const titled = (title, text, ...children) => {
  document.title = `${title} · domino_tune`;
  host.replaceChildren(h('h1', { tabindex: '-1' }, title), text ? h('p', { class: 'lead' }, text) : '', ...children);
  arrive();
};

const views = {
  async new(signal, kind, id) {
    document.title = 'domino_tune';
    const form = h('div', {}, h('p', { class: 'note' }, 'Loading …'));
    host.replaceChildren(
      h('h1', { tabindex: '-1' }, 'Which layout, and does Domino pay?'),
      h('p', { class: 'lead' },
        'Say what is trained and where. Every layout and every cut of it is predicted; the best are shown, with the chance '
        + 'that each strategy is the fastest.'),
      h('div', { class: 'home' }, form, h('section', { class: 'recent', 'aria-labelledby': 'recent' },
        h('h2', { id: 'recent' }, 'Asked lately'),
        jobList({ limit: 12, signal, fail: (problem, place) => problem.status === 401 || fail(problem, place) }).element)));
    arrive();
    const from = ASKED.includes(kind) && id
      ? { kind, request: (await get(`v1/jobs/${encodeURIComponent(id)}`, { signal })).request } : null;
    form.replaceChildren(await askForm({ from, signal, begin }));
  },
  ...Object.fromEntries(JOBS.map(kind => [kind, jobView(kind)])),
  async history(signal) { titled('History', null, history({ signal, fail })); },
  async library(signal) {
    titled('Library', 'What can be trained, and on which machines.', library({ signal, fail, begin }));
  },
  async compare(signal, one, other) {
    titled('Side by side', null, await comparison([one, other], signal));
  },
};

const parts = () => location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);

const mark = view => {
  for (const anchor of document.querySelectorAll('.bar nav a[data-view]')) {
    if (anchor.dataset.view === view) anchor.setAttribute('aria-current', 'page'); else anchor.removeAttribute('aria-current');
  }
};

let here = '';
const show = async () => {
  const [first, id = '', place = ''] = parts(), view = Object.hasOwn(views, first) ? first : 'new';
  const isJob = JOBS.includes(view), now = isJob ? `${view}/${id}` : [view, id, place].join('/');
  if (isJob && here === now && place) { arrive(place); return; }
  here = now;
  mayAskAgain();
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  mark(view);
  try {
    await views[view](signal, id, place);
  } catch (problem) {
    if (!signal.aborted) fail(problem);
  }
};

const tell = () => account.replaceChildren(...(token() ? [h('span', { class: 'note' }, 'token given'),
  button('Forget', () => { forgetToken(); here = ''; show(); }, { 'aria-label': 'Forget the token' })] : []));

document.getElementById('skip').addEventListener('click', event => {
  event.preventDefault();
  (host.querySelector('h1') ?? host).focus();
});
document.addEventListener('token', tell);
addEventListener('hashchange', () => { if (/^#\//.test(location.hash) || !location.hash) show(); });
tell();
show();
