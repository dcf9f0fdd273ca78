// One job: its progress while it runs, then what came of it, with controls.
import { get, getText } from './api.js';
import { calibrated } from './calibration.js';
import { h, link } from './dom.js';
import { files } from './files.js';
import { frameworks } from './frameworks.js';
import { measured } from './measured.js';
import { followPoints } from './points.js';
import { progressBox } from './progress.js';
import { drawLanes, reportOf } from './report.js';
import { drawScale } from './scale.js';
import { drawSweep } from './sweep.js';
import { walkHeat } from './walk.js';
import { watch } from './watch.js';
import { whatIf } from './whatif.js';
import { asked, named, over, stateWords, swept } from './words.js';

const NAMES = { verdict: 'Verdict', layouts: 'Layouts', pipeline: 'Pipeline', lanes: 'Timeline', cuts: 'Cuts', time: 'Time',
  memory: 'Memory', whatif: 'What if', confidence: 'How sure', measured: 'Measured', files: 'Files', asked: 'Asked', again: 'Again' };

const head = (job, { kind, id }) => h('p', { class: 'eyebrow' }, asked(job.request ?? {}),
  ...(KINDS[kind].again ? [' · ', link(`#/new/${kind}/${id}`, 'change and ask again')] : []));

const contents = ({ kind, id }, sections) => h('nav', { class: 'contents', 'aria-label': 'On this page' },
  sections.map(({ id: place }) => link(`#/${kind}/${id}/${place}`, NAMES[place] ?? place)));

const STOPPED = { user: 'Stopped and kept: other plans may be faster.',
  time: 'Its time was spent: other plans may be faster.' };

// A plan or a layout that was found: the report's sections, with what can be done with them. Lanes are drawn when shown.
const planned = async (job, asking) => {
  const { path, signal, fail, begin } = asking, { result } = job, sim = result.best;
  const report = await reportOf(path, signal);
  let file = null;
  const plan = () => (file ??= getText(`${path}/files/plan`, { signal }).catch(problem => { file = null; throw problem; }));
  const name = [sim.model.name, `tp${sim.cluster.tp}`, sim.profile.name].join('-');
  const own = { whatif: whatIf({ sim, plan, margin: job.request?.memory_margin, signal }), files: files({ path, name, signal, fail }),
    ...(job.kind === 'tune' && { measured: measured({ job, path, signal, fail }) }) };
  const { asked: question, again, confidence, ...drawn } = Object.fromEntries(report.sections);
  const sections = [...Object.values(drawn), own.whatif, confidence, own.measured, own.files, question, again].filter(Boolean);
  report.head.querySelector('.eyebrow')?.replaceWith(head(job, asking));
  (report.head.querySelector('.verdict') ?? report.head.querySelector('h1')).after(STOPPED[result.stopped_by] ? h('p', { class: 'warn' }, STOPPED[result.stopped_by]) : '',
    frameworks({ job, begin }));
  walkHeat(drawn.cuts);
  return { parts: [report.head, contents(asking, sections), ...sections], shown: () => drawLanes(report, signal) };
};

const KINDS = {
  tune: { one: 'tune', running: 'Looking for the best cut', again: true, done: planned },
  layout: { one: 'search', running: 'Looking for the best layout', again: true, done: planned },
  whatif: { title: ({ request }) => `Over ${named(swept(request)[0])}`, draw: drawSweep },
  scale: { title: () => 'With more GPUs', again: true, draw: drawScale },
  calibrate: { one: 'calibration', running: 'Fitting the profile to the runs',
    done: (job, asking) => ({ parts: calibrated(job, head(job, asking), asking) }) },
};

const stopped = (job, { kind, id }) => [h('p', { class: 'eyebrow' }, asked(job.request ?? {})),
  h('h1', { tabindex: '-1' }, `This ${KINDS[kind].one} failed`),
  job.error ? h('p', { class: 'warn', role: 'alert' }, job.error.detail ?? job.error.title) : '',
  KINDS[kind].again ? h('p', { class: 'row' }, link(`#/new/${kind}/${id}`, 'Change it and ask again')) : ''];

/** Show job `id` of `kind` (`tune`, `layout`, `calibrate`) in `host`; call `arrived` at each new content, `begin(job)`
    with another job. Resolves when the job is over and shown. */
export const showJob = async ({ kind, id, host, signal, fail, arrived, begin }) => {
  const path = `v1/jobs/${encodeURIComponent(id)}`, asking = { kind, id, path, signal, fail, begin };
  const trouble = h('div', {});
  const box = progressBox({ path, signal, fail: problem => fail(problem, trouble) });
  let began = false;
  const see = job => {
    if (!began && !over(job.state)) {
      began = true;
      host.replaceChildren(head(job, asking), h('h1', { tabindex: '-1' }, KINDS[kind].running), box.element, trouble);
      arrived();
    }
    if (began) box.update(job);
  };
  const job = await watch(path, see, signal);
  document.title = `${stateWords(job.state)} · ${asked(job.request ?? {})}`;
  const done = job.state === 'done' && await KINDS[kind].done(job, asking);
  host.replaceChildren(...(done ? done.parts : stopped(job, asking)));
  arrived();
  await done?.shown?.();
};

/** Show job `id` of `kind` (`whatif`, `scale`) in `host`: its points are drawn as they come. */
export const showPoints = async ({ kind, id, host, signal, arrived }) => {
  const job = await get(`v1/jobs/${encodeURIComponent(id)}`, { signal }), place = h('div', { class: 'swept' });
  document.title = asked(job.request);
  host.replaceChildren(head(job, { kind, id }), h('h1', { tabindex: '-1' }, KINDS[kind].title(job)), place);
  arrived();
  await followPoints(job, place, KINDS[kind].draw(job), signal);
};
