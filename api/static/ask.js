// What can be asked: the best layout of so many GPUs for a global batch, at one number or several, or the best plan of a layout.
import { get, list } from './api.js';
import { h, parameters } from './dom.js';
import { questionForm } from './form.js';
import { jobShape } from './schema.js';

const TRAINED = 'What is trained', CLUSTER = 'On which cluster';
const SAME = { model: 'gpt3-13b', profile: 'h100-dgx', seq_length: 2048 };
const QUESTIONS = {
  layout: { title: 'GPUs and a global batch', about: 'finds tp, pp, dp and the rest, and whether to cut', verb: 'Find layouts',
    groups: [[TRAINED, ['model', 'seq_length', 'global_batch_size', 'dtype']], [CLUSTER, ['profile', 'gpus']]],
    usual: { ...SAME, gpus: 32, global_batch_size: 128 } },
  scale: { title: 'Several numbers of GPUs', about: 'finds the best layout at each, for the same batch', verb: 'Compare numbers',
    groups: [[TRAINED, ['model', 'seq_length', 'global_batch_size', 'dtype']], [CLUSTER, ['profile', 'gpus']]],
    usual: { ...SAME, gpus: [8, 16, 32, 64], global_batch_size: 128 } },
  tune: { title: 'A fixed layout', about: 'finds the best cut of it', verb: 'Tune',
    groups: [[TRAINED, ['model', 'seq_length', 'micro_batch_size', 'grad_accumulation', 'dtype']],
      [CLUSTER, ['profile', 'tp', 'dp', 'nodes']]],
    usual: { ...SAME, tp: 8, micro_batch_size: 8 } },
};

const modelOption = model => [model.name, [model.name, parameters(model.parameters)].filter(Boolean).join(' · ')];
const profileOption = profile => [profile.name, [profile.name, profile.gpu].filter(Boolean).join(' · ')];

// What all questions need from the server: the schemas of their bodies, models and profiles.
const material = async signal => {
  const [spec, models, profiles] = await Promise.all([get('openapi.json', { signal }), list('v1/models', { signal }),
    list('v1/profiles', { signal })]);
  return { spec, models, library: { model: models.map(modelOption),
    profile: profiles.filter(item => !item.problem).map(profileOption) } };
};

/** Return the choice of a question above its form. `from`: `{kind, request}` of an earlier job that fills it. */
export const askForm = async ({ from, begin, signal }) => {
  const common = await material(signal), place = h('div', {});
  let form = null;
  const choose = (kind, given) => {
    const path = 'v1/jobs', body = jobShape(common.spec, kind);
    const kept = given ?? Object.fromEntries(Object.entries(form?.read() ?? {})
      .filter(([name]) => name in SAME || name === 'dtype' || name === 'global_batch_size'));  // what both questions ask stays
    form = questionForm({ question: { ...QUESTIONS[kind], ...common, kind, path, body }, given: kept, begin });
    place.replaceChildren(form.element);
  };
  const first = from?.kind ?? 'layout';
  const choice = Object.entries(QUESTIONS).map(([kind, { title, about }]) => h('label', { class: 'choice' },
    h('input', { type: 'radio', name: 'question', value: kind, checked: kind === first, onchange: () => choose(kind) }),
    h('span', {}, h('b', {}, title), h('small', {}, about))));
  choose(first, from?.request);
  return h('div', {}, h('fieldset', { class: 'question' }, h('legend', {}, 'What is given'), h('div', { class: 'choices' }, choice)), place);
};
