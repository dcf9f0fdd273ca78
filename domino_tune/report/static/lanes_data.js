// From arrays to lanes of ops; texts and colours of ops. The function that wraps the three parts has
// the parameters `data`, `host` (the element of the views) and `legendBox`.
const LANE_HEIGHT = 30, LANE_GAP = 3, HEAD = 26, BETWEEN = 16, PHASES = 20, AXIS = 26;
const DEEPEST_NS = 200;
const colours = {};

const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['paper', 'panel', 'ink', 'soft', 'faint', 'line', 'accent', 'wait', 'edge',
    's0', 's1', 's2', 's3', 's4', 's5', 's6', 's7']) {
    colours[name] = style.getPropertyValue('--' + name).trim();
  }
};

const grouped = (value, digits) => value.toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: digits });

const time = ns => {
  const size = Math.abs(ns);
  if (size >= 1e8) return grouped(ns / 1e6, 1) + ' ms';
  if (size >= 1e6) return (ns / 1e6).toFixed(size >= 1e7 ? 2 : 3) + ' ms';
  return size >= 1e3 ? (ns / 1e3).toFixed(1) + ' µs' : Math.round(ns) + ' ns';
};

// A time in the unit of its axis, with the digits that the axis step needs.
const tick = (at, step, span) => {
  const unit = span > 2e6 ? 1e6 : 1e3;
  const digits = Math.max(0, Math.ceil(Math.log10(unit / step) - 1e-9));
  return grouped(at / unit, digits).replace(/^-(0(\.0*)?)$/, '$1') + (unit === 1e6 ? ' ms' : ' µs');
};

// Return a timeline's lanes of ops with absolute times, and the gaps of its compute lane.
const unpack = line => {
  const { t, l, m, g, d } = line.ops;
  const last = {}, lanes = new Map(line.lanes.map(lane => [lane, []]));
  for (let i = 0; i < t.length; i++) {
    const [label, role, slice, piece, lane, kind, shape, alone, inLayer, backward] = line.templates[t[i]];
    const start = (last[lane] || 0) + g[i];
    last[lane] = start + d[i];
    lanes.get(lane).push({ label, role, slice, piece, lane, kind, shape, alone, inLayer, backward,
      layer: l[i], micro: m.length ? m[i] : 0, start, end: last[lane], many: m.length > 0 });
  }
  const comm = [...lanes.keys()].filter(lane => lane).map(lane => lanes.get(lane));
  return { ...line, lanes, gaps: gaps(lanes.get(0), comm, line.cuts) };
};

const firstEnding = (ops, at) => {
  let low = 0, high = ops.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ops[middle].end <= at) low = middle + 1; else high = middle;
  }
  return low;
};

const gaps = (compute, comm, cuts) => {
  const found = [];
  const inCut = (start, end) => cuts.some(([low, high]) => low < end && start < high);
  compute.forEach((op, i) => {
    const before = i ? compute[i - 1].end : 0;
    if (op.start <= before || inCut(before, op.start)) return;
    const waits = comm.map(ops => ops[firstEnding(ops, before)])
      .filter(other => other && other.start < op.start).pop();
    found.push({ gap: true, start: before, end: op.start, waits, lane: 0, slice: -1 });
  });
  return found;
};

const lines = data.timelines.map(unpack);

const opName = op => (op.many ? `m${op.micro}.` : '') + (op.inLayer ? `l${op.layer}.` : '') +
  (op.slice >= 0 ? `s${op.slice}.` : '') + op.role + (op.piece >= 0 ? `.${op.piece}` : '');
const partner = (a, b) => a !== b && a.layer === b.layer && a.micro === b.micro &&
  a.slice === b.slice && a.piece === b.piece &&
  (a.role === b.role + '.ar' || b.role === a.role + '.ar');
const colourOf = op => op.slice < 0 ? colours.edge : colours['s' + op.slice % 8];
const ALPHA = { gemm: 1, comm: 1, attention: .78, wgrad: .56, pointwise: .34 };

const element = (name, text) => {
  const made = document.createElement(name);
  made.textContent = text;
  return made;
};

const describe = op => {
  if (op.gap) {
    const slice = op.waits && op.waits.slice >= 0 ? `, slice ${op.waits.slice}` : '';
    const why = op.waits ? `Waits for ${op.waits.label}${slice}` : 'Waits for the host';
    return [element('b', why), element('div', `${time(op.end - op.start)}, from ${time(op.start)}`)];
  }
  const parts = [op.label];
  if (op.inLayer) parts.push(`layer ${op.layer}`);
  if (op.slice >= 0) parts.push(`slice ${op.slice}`);
  if (op.piece >= 0) parts.push(`piece ${op.piece}`);
  const length = op.end - op.start, more = op.alone ? length / op.alone : 1;
  const slowed = more > 1.005 ? `, ${more.toFixed(2)}× its time alone` : '';
  return [element('b', parts.join(' · ')), element('div', `${time(length)}${slowed}`),
    element('div', `starts at ${time(op.start)}`), element('div', op.shape), element('code', opName(op))];
};

const sub = number => String(number).replace(/\d/g, digit => '₀₁₂₃₄₅₆₇₈₉'[digit]);
const inkOn = colour => {
  const [r, g, b] = [1, 3, 5].map(i => parseInt(colour.slice(i, i + 2), 16) / 255);
  return .299 * r + .587 * g + .114 * b > .58 ? '#14161a' : '#ffffff';
};
const hatches = {};
const hatch = colour => {
  if (hatches[colour]) return hatches[colour];
  const tile = document.createElement('canvas');
  tile.width = tile.height = 6;
  const pen = tile.getContext('2d');
  pen.strokeStyle = colour;
  pen.lineWidth = 1.6;
  pen.beginPath();
  pen.moveTo(-1, 7); pen.lineTo(7, -1);
  pen.moveTo(-1, 1); pen.lineTo(1, -1);
  pen.moveTo(5, 7); pen.lineTo(7, 5);
  pen.stroke();
  return hatches[colour] = pen.createPattern(tile, 'repeat');
};
