// The page: the view of each address, and what all views share.
import { get, Problem } from './api.js';
import { button, h } from './dom.js';
import { tuneForm } from './form.js';
import { jobList } from './jobs.js';
import { forgetToken, mayAskAgain, token } from './token.js';
import { showTune } from './tune.js';

const host = document.getElementById('content'), account = document.getElementById('account');
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

const views = {
  async new(signal, id) {
    document.title = 'domino_tune';
    const form = h('div', {}, h('p', { class: 'note' }, 'Loading …'));
    host.replaceChildren(
      h('h1', { tabindex: '-1' }, 'Which cut is fastest?'),
      h('p', { class: 'lead' },
        'Slicing the batch and the weights hides tensor-parallel communication behind computation. '
        + 'Say what is trained and where; every cut is predicted, the best one shown.'),
      h('div', { class: 'home' }, form, h('section', { class: 'recent', 'aria-labelledby': 'recent' },
        h('h2', { id: 'recent' }, 'Tunes'),
        jobList({ limit: 12, signal, fail: (problem, place) => problem.status === 401 || fail(problem, place) }))));
    arrive();
    const from = id ? (await get(`v1/tunes/${encodeURIComponent(id)}`, { signal })).request : null;
    form.replaceChildren(await tuneForm({ from, signal, begin: job => { location.hash = `#/tunes/${job.id}`; } }));
  },
  async tunes(signal, id, place) {
    if (id) {
      host.replaceChildren(h('p', { class: 'note' }, 'Loading …'));
      await showTune({ id, host, signal, fail, arrived: () => arrive(place) });
      return;
    }
    document.title = 'Tunes · domino_tune';
    host.replaceChildren(h('h1', { tabindex: '-1' }, 'Tunes'), jobList({ signal, fail }));
    arrive();
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
  const [first, id = '', place = ''] = parts(), view = first in views ? first : 'new';
  if (here === `${view}/${id}` && place) { arrive(place); return; }
  here = `${view}/${id}`;
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
