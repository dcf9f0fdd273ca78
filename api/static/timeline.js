// The lanes of a finished tune: arrays from its report, drawn by the report's script.
import { getText } from './api.js';
import { h, section } from './dom.js';

const MARK = 'id="lanes-data">';

// The report escapes `<` in its arrays, so they end at the first closing tag.
const arraysOf = report => {
  const begin = report.indexOf(MARK);
  if (begin < 0) throw new Error('The report holds no timeline.');
  return JSON.parse(report.slice(begin + MARK.length, report.indexOf('</script>', begin)));
};

/** Return the section; the lanes appear when the report arrives. */
export const timeline = ({ path, signal, fail }) => {
  const legend = h('div', { class: 'legend' }),
    host = h('div', { id: 'lanes' }, h('p', { class: 'note' }, 'Loading the timeline …'));
  const draw = async () => {
    const [report, { drawLanes }] = await Promise.all([getText(`${path}/report`, { signal }), import('./lanes.js')]);
    host.replaceChildren();
    const close = drawLanes(arraysOf(report), host, legend);
    signal.addEventListener('abort', close, { once: true });
  };
  // The host must be in the document before the lanes read its width.
  requestAnimationFrame(() =>
    draw().catch(problem => { if (problem.name !== 'AbortError') { host.replaceChildren(); fail(problem, host); } }));
  return section('timeline', 'Timeline',
    'Upper lane: computation. Lower lane: all-reduces, in the colour of the slice they belong to. '
    + 'Hatched red: computation stands still until one arrives.', legend, host);
};
