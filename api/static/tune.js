// One tune: its progress while it runs, then its result.
import { getText } from './api.js';
import { answer } from './answer.js';
import { cuts } from './cuts.js';
import { h, link } from './dom.js';
import { files } from './files.js';
import { measured } from './measured.js';
import { progressBox } from './progress.js';
import { confidence } from './confidence.js';
import { timeline } from './timeline.js';
import { watch } from './watch.js';
import { whatIf } from './whatif.js';
import { asked, stateWords } from './words.js';

const PLACES = [['timeline', 'Timeline'], ['cuts', 'Cuts'], ['whatif', 'What if'], ['confidence', 'How sure'],
  ['measured', 'Measured'], ['files', 'Files']];

const head = (job, id) => h('p', { class: 'eyebrow' }, asked(job.request ?? {}), ' · ',
  link(`#/new/${id}`, 'change and tune again'));

const contents = id => h('nav', { class: 'contents', 'aria-label': 'On this page' },
  PLACES.map(([place, name]) => link(`#/tunes/${id}/${place}`, name)));

const finished = (job, { id, path, signal, fail }) => {
  const result = job.result, sim = result.simulation;
  let file = null;
  const plan = () => (file ??= getText(`${path}/plan`, { signal }).catch(problem => { file = null; throw problem; }));
  const name = [sim.model.name, `tp${sim.cluster.tp}`, sim.profile.name].join('-');
  return [head(job, id), answer(sim, result), contents(id), timeline({ path, signal, fail }), cuts(result),
    whatIf({ sim, plan, signal }), confidence(result), measured({ path, signal, fail }), files({ path, name, signal, fail })];
};

const stopped = (job, id) => [h('p', { class: 'eyebrow' }, asked(job.request ?? {})),
  h('h1', { tabindex: '-1' }, job.state === 'failed' ? 'This tune failed' : 'This tune was cancelled'),
  job.error ? h('p', { class: 'warn', role: 'alert' }, job.error.detail ?? job.error.title) : '',
  h('p', { class: 'row' }, link(`#/new/${id}`, 'Change it and tune again'))];

/** Show tune `id` in `host`; call `arrived` at each new content. Resolves when the tune is over and shown. */
export const showTune = async ({ id, host, signal, fail, arrived }) => {
  const path = `v1/tunes/${encodeURIComponent(id)}`;
  const trouble = h('div', {});
  const box = progressBox({ path, signal, fail: problem => fail(problem, trouble) });
  let began = false;
  const see = job => {
    if (!began && !['done', 'failed', 'cancelled'].includes(job.state)) {
      began = true;
      host.replaceChildren(head(job, id), h('h1', { tabindex: '-1' }, 'Looking for the best cut'), box.element, trouble);
      arrived();
    }
    if (began) box.update(job);
  };
  const job = await watch(path, see, signal);
  document.title = `${stateWords(job.state)} · ${asked(job.request ?? {})}`;
  host.replaceChildren(...(job.state === 'done' ? finished(job, { id, path, signal, fail }) : stopped(job, id)));
  arrived();
};
