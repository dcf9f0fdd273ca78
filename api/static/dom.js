// Helpers that make elements, and numbers as text. Text never becomes markup.
const SVG = 'http://www.w3.org/2000/svg';

const dress = (made, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') made.addEventListener(name.slice(2), value);
    else if (name === 'style') for (const [key, text] of Object.entries(value)) made.style.setProperty(key, text);
    else made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined && child !== false));
  return made;
};

/** Return an HTML element; `onclick: f` listens, `style: {width: '3px'}` sets properties (CSP allows both). */
export const h = (name, attributes = {}, ...children) => dress(document.createElement(name), attributes, children);
export const s = (name, attributes = {}, ...children) => dress(document.createElementNS(SVG, name), attributes, children);

/** Return a link, or a button that does not submit a form. */
export const link = (href, ...children) => h('a', { href }, ...children);
export const button = (text, onclick, attributes = {}) => h('button', { type: 'button', onclick, ...attributes }, text);

const ASKED_MS = 20000, SETTLED_MS = 500;
/** Return a button for what cannot be undone: the first click asks, one more does `what(button)`; the second click of a
    double click does not. */
export const sureButton = (text, name, what) => {
  const timers = [];
  const say = (said, waits) => {
    timers.splice(0).forEach(clearTimeout);
    made.textContent = said;
    made.setAttribute('aria-label', `${said} ${name}`);
    made.toggleAttribute('data-asked', said !== text);
    made.setAttribute('aria-disabled', waits);
  };
  const rest = () => say(text, false);
  const made = button(text, () => {
    if (made.ariaDisabled === 'true') return;
    if (made.hasAttribute('data-asked')) { rest(); what(made); return; }
    say(`${text} for good?`, true);
    timers.push(setTimeout(() => made.setAttribute('aria-disabled', false), SETTLED_MS), setTimeout(rest, ASKED_MS));
  }, { onblur: rest, 'aria-label': `${text} ${name}`, 'aria-live': 'polite' });
  return made;
};

export const section = (id, title, lead, ...children) => h('section', { id, 'aria-labelledby': `${id}-title` },
  h('h2', { id: `${id}-title`, tabindex: '-1' }, title), lead && h('p', { class: 'lead' }, lead), ...children);

/** Return a table whose first column names the row; `head` and rows hold text or elements. */
export const table = (label, head, rows, kind = '') => h('div',
  { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': label },
  h('table', { class: kind || null },
    h('thead', {}, h('tr', {}, head.map(cell => h('th', { scope: 'col' }, cell)))),
    h('tbody', {}, rows.map(([first, ...rest]) => h('tr', {}, h('th', { scope: 'row' }, first),
      rest.map(cell => h('td', {}, cell)))))));

const number = (value, digits) => value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits });
const known = value => typeof value === 'number' && Number.isFinite(value);

/** Return milliseconds with three or four digits: 369.7, 4.18, 0.738. */
export const ms = value => !known(value) ? '–' : value === 0 ? '0' : number(value, value >= 100 ? 1 : value >= 1 ? 2 : 3);
export const times = value => known(value) ? `${value.toFixed(2)}×` : '–';
export const gib = value => known(value) ? number(value, 1) : '–';
export const count = value => known(value) ? value.toLocaleString('en-US') : '–';
export const percent = (fraction, digits = 1) => known(fraction)
  ? `${(100 * fraction).toFixed(digits).replace(/\.0+$/, '')} %` : '–';
export const signed = fraction => known(fraction)
  ? `${Math.abs(fraction) < 5e-4 ? '±' : fraction > 0 ? '+' : '−'}${percent(Math.abs(fraction))}` : '–';
export const parameters = value => !known(value) ? '' : value >= 1e9 ? `${(value / 1e9).toPrecision(3)} B`
  : `${(value / 1e6).toPrecision(3)} M`;

/** Return a time as text: the clock if it is today, else with the day. */
export const when = text => {
  const at = new Date(text);
  if (!text || Number.isNaN(at.getTime())) return '–';
  const clock = at.toLocaleTimeString(undefined, { hour: '2-digit', minute: '2-digit' });
  return at.toDateString() === new Date().toDateString() ? clock
    : `${at.toLocaleDateString(undefined, { day: 'numeric', month: 'short' })} ${clock}`;
};
