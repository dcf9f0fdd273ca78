// A line plot: the body of a function of `host`, whose data-plot holds `{label, x, xs, unit, digits, lines}`. A line is
// `{name, role, values}`, null where there is none; digits null: as many as a time in ms has.
const { label, x: what, xs, unit, digits, lines } = JSON.parse(host.dataset.plot);
const WIDE = Math.max(320, Math.min(host.clientWidth || 620, 760)), narrow = WIDE < 520;
const HIGH = narrow ? 240 : 290, LEFT = 62, TOP = 14, BOTTOM = 52, APART = 17, LETTER = 7.4;
const RIGHT = narrow ? 14 : 24 + LETTER * Math.max(0, ...lines.map(line => line.name.length));
const make = (name, attributes, ...children) => {
  const made = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const text = (said, x, y, anchor, more) => make('text', { x: x.toFixed(1), y: y.toFixed(1), 'text-anchor': anchor, ...more }, said);
const grouped = (value, places) => value.toLocaleString('en-US', { minimumFractionDigits: places, maximumFractionDigits: places });
const written = value => [grouped(value, digits ?? (value >= 100 ? 1 : value >= 1 ? 2 : 3)), unit].filter(Boolean).join(' ');

// Ticks from 0 in steps of 1, 2 or 5, up to the first at or above the highest value.
const highest = Math.max(0, ...lines.flatMap(line => line.values.filter(value => value !== null))) || 1;
const power = 10 ** Math.floor(Math.log10(highest / 4));
const step = [1, 2, 5, 10].map(k => k * power).find(size => size >= highest / 4);
const ticks = Array.from({ length: Math.ceil(highest / step - 1e-9) + 1 }, (_, index) => index * step);
const x = index => LEFT + (index + .5) * (WIDE - LEFT - RIGHT) / Math.max(1, xs.length);
const y = value => HIGH - BOTTOM - (HIGH - TOP - BOTTOM) * value / ticks.at(-1);

const grid = ticks.flatMap(tick => [make('line', { class: 'grid', x1: LEFT, x2: WIDE - RIGHT, y1: y(tick), y2: y(tick) }),
  text(tick.toLocaleString('en-US'), LEFT - 9, y(tick) + 4, 'end')]);
const room = LETTER * (2 + Math.max(0, ...xs.map(name => name.length)));
const every = Math.max(1, Math.ceil(xs.length * room / (WIDE - LEFT - RIGHT)));  // of names that are too close, each second or so
const names = xs.map((name, index) => index % every ? '' : text(name, x(index), HIGH - BOTTOM + 19, 'middle'));

// The names at the lines' ends, moved down where they would overlap, then up from the bottom.
const drawn = lines.map((line, number) => ({ ...line, kind: `line ${line.role || `s${number % 8}`}`,
  points: line.values.map((value, index) => [x(index), y(value ?? 0), value]).filter(point => point[2] !== null) }))
  .filter(line => line.points.length);
let last = -Infinity;
for (const line of [...drawn].sort((one, other) => one.points.at(-1)[1] - other.points.at(-1)[1])) {
  line.height = last = Math.max(line.points.at(-1)[1], last + APART);
}
const over = Math.max(0, last - (HIGH - BOTTOM));
const paths = drawn.map(line => make('g', { class: line.kind },
  make('polyline', { points: line.points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(' ') }),
  ...line.points.map(([a, b, value]) => make('circle', { cx: a.toFixed(1), cy: b.toFixed(1), r: 3.6 },
    make('title', {}, `${line.name}: ${written(value)}`))),
  ...narrow ? [] : [text(line.name, WIDE - RIGHT + 8, line.height - over + 4, 'start', { class: 'name' })]));

const svg = make('svg', { class: 'plot', viewBox: `0 0 ${WIDE} ${HIGH}`, width: WIDE, role: 'img',
  'aria-label': `${label} by ${what}: ${lines.map(line => line.name).join(', ')}` },
...grid, text(unit, LEFT - 9, HIGH - BOTTOM + 19, 'end'), ...names, text(what, (LEFT + WIDE - RIGHT) / 2, HIGH - 8, 'middle'), ...paths);
const keys = document.createElement('p');
keys.className = 'pass-keys';
keys.append(...narrow ? drawn.map(line => {
  const key = document.createElement('span');
  key.className = `key ${line.kind}`;
  key.append(line.name);
  return key;
}) : []);
host.replaceChildren(...narrow ? [keys, svg] : [svg]);
