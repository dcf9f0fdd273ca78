// Bars that move: of a tune that runs, and of a machine that is changed. What has ended is drawn by the report.
import { h, ms } from './dom.js';

/** Return bars on one scale; a row is `[kind, name, iteration ms, exposed ms or null]`. */
export const bars = (rows, longest = Math.max(...rows.map(([, , value]) => value))) => h('div', { class: 'totals' },
  rows.map(([kind, name, value, exposed]) => {
    const width = part => ({ style: { width: `${(100 * part / longest).toFixed(3)}%` } });
    return h('div', { class: `total ${kind}` }, h('span', { class: 'name' }, name),
      h('span', { class: 'track', 'aria-hidden': 'true' }, h('i', { class: 'busy', ...width(value - (exposed ?? 0)) }),
        exposed ? h('i', { class: 'exposed', ...width(exposed) }) : null),
      h('span', { class: 'value' }, `${ms(value)} ms`));
  }));

/** Return what the red part of bars means. */
export const exposedKey = () => h('p', { class: 'note' }, h('i', { class: 'swatch exposed' }), 'communication that nothing hides');
