// The report of a finished job: its own sections, drawn by the server, and the lanes that its script draws.
import { getText } from './api.js';

const LANES = 'id="lanes-data">';

const between = (text, begin, end) => {
  const from = text.indexOf(begin);
  if (from < 0) throw new Error(`The report holds no ${begin}.`);
  return text.slice(from + begin.length, text.indexOf(end, from));
};

// The page's policy forbids style attributes. Quotes in the report's texts are escaped, so this only meets tags.
const parse = html => new DOMParser().parseFromString(html.replaceAll(' style="', ' data-style="'), 'text/html');

const dress = element => {
  for (const one of element.dataset.style.split(';')) {
    const at = one.indexOf(':');
    element.style.setProperty(one.slice(0, at).trim(), one.slice(at + 1).trim());
  }
  element.removeAttribute('data-style');
};

/** Return `{head, sections, lanes}` of the job at `path`: elements of this document, sections by id. */
export const reportOf = async (path, signal) => {
  const text = await getText(`${path}/files/report`, { signal });
  const parts = [...parse(between(text, '<main>', '</main>')).body.children].map(part => document.importNode(part, true));
  for (const part of parts) for (const element of part.querySelectorAll('[data-style]')) dress(element);
  for (const title of parts.flatMap(part => [...part.querySelectorAll('h1, h2')])) title.tabIndex = -1;
  const sections = new Map(parts.filter(part => part.matches('section')).map(part => [part.id, part]));
  // The report escapes `<` in its arrays, so they end at the first closing tag.
  return { head: parts.find(part => part.id === 'answer'), sections, lanes: JSON.parse(between(text, LANES, '</script>')) };
};

/** Draw the lanes in their section, which must be in the document: they read its width. */
export const drawLanes = async (report, signal) => {
  const draw = await import('./lanes.js'), host = report.sections.get('lanes');
  host.querySelector('noscript')?.remove();
  const close = draw.drawLanes(report.lanes, host.querySelector('#lanes-views'), host.querySelector('#lanes-legend'));
  signal.addEventListener('abort', close, { once: true });
};
