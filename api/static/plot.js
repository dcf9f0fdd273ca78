// Line plot over the points of a sweep: evenly spaced in the given order, from zero up.
import { ms, s } from './dom.js';

const WIDE = 620, HIGH = 240, LEFT = 52, RIGHT = 132, TOP = 12, BOTTOM = 44, APART = 15;

/** Return ticks from 0 in steps of 1, 2 or 5 to the first at or above `highest`. */
const ticks = highest => {
  const rough = highest / 4, unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(k => k * unit).find(k => k >= rough);
  return Array.from({ length: Math.ceil(highest / step - 1e-9) + 1 }, (_, index) => index * step);
};

// Return the heights of the names at the lines' ends, moved apart where they would overlap.
const apart = wanted => {
  const placed = new Map();
  let last = -Infinity;
  for (const [name, y] of [...wanted].sort((a, b) => a[1] - b[1])) placed.set(name, last = Math.max(y, last + APART));
  const over = Math.max(0, last - (HIGH - BOTTOM));
  return name => placed.get(name) - over;
};

/** Return the plot. `series`: `[kind, name, values]`, null for a missing value; `xs` labels the points. */
export const lines = (what, xs, series) => {
  const known = series.flatMap(([, , values]) => values).filter(Number.isFinite);
  if (!known.length) return '';
  const steps = ticks(Math.max(...known)), top = steps.at(-1);
  const x = index => LEFT + (index + 0.5) * (WIDE - LEFT - RIGHT) / xs.length;
  const y = value => HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * value / top;
  const placed = values => values.map((value, index) => [x(index), y(value), value]).filter(point => Number.isFinite(point[2]));
  const drawn = series.map(([kind, name, values]) => [kind, name, placed(values)]);
  const place = apart(drawn.filter(([, , points]) => points.length).map(([, name, points]) => [name, points.at(-1)[1]]));
  return s('svg', { class: 'lines', viewBox: `0 0 ${WIDE} ${HIGH}`, role: 'img', 'aria-label': `Iteration in ms by ${what}` },
    steps.map(step => [s('line', { class: 'rail', x1: LEFT, x2: WIDE - RIGHT, y1: y(step), y2: y(step) }),
      s('text', { x: LEFT - 8, y: y(step) + 4, 'text-anchor': 'end' }, step.toLocaleString('en-US'))]),
    s('text', { x: LEFT - 8, y: HIGH - BOTTOM + 18, 'text-anchor': 'end' }, 'ms'),
    s('text', { x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 4, 'text-anchor': 'middle' }, what),
    xs.map((text, index) => s('text', { x: x(index), y: HIGH - BOTTOM + 18, 'text-anchor': 'middle' }, text)),
    drawn.filter(([, , points]) => points.length).map(([kind, name, points]) => s('g', { class: kind },
      s('polyline', { points: points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(' ') }),
      points.map(([a, b, value]) => s('circle', { cx: a, cy: b, r: 3.4 }, s('title', {}, `${name}: ${ms(value)} ms`))),
      s('text', { class: 'name', x: WIDE - RIGHT + 4, y: place(name) + 4 }, name))));
};
