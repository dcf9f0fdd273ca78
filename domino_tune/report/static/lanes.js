// The views of the page, with legend and keys.
const legend = () => {
  legendBox.replaceChildren();
  const add = (background, text) => {
    const item = document.createElement('span'), mark = document.createElement('i');
    mark.className = 'swatch';
    mark.style.background = background;
    item.append(mark, text);
    legendBox.append(item);
  };
  const slices = Math.max(...lines.map(line => line.slices));
  for (let i = 0; i < slices; i++) add(colours['s' + i % 8], `slice ${i}`);
  add(colours.edge, 'all slices');
  const of = share => `color-mix(in srgb, ${colours.ink} ${share * 80}%, ${colours.panel})`;
  add(of(1), 'GEMM');
  add(of(ALPHA.attention), 'attention');
  add(of(ALPHA.wgrad), 'weight gradient');
  add(of(ALPHA.pointwise), 'pointwise');
  add(`repeating-linear-gradient(135deg, ${colours.wait} 0 2px, transparent 2px 4px)`, 'waiting for communication');
};

const tip = document.createElement('div');
tip.className = 'tip';
tip.hidden = true;
document.body.append(tip);
for (const line of lines) for (const ops of line.lanes.values()) for (const op of ops) op.line = line;
readColours();
legend();
const all = data.views.map(view => new View(view));
const keys = document.createElement('p');
keys.className = 'keys';
const hints = matchMedia('(hover: none)').matches
  ? [['drag', 'moves'], ['pinch', 'zooms'], ['tap', 'tells an operation']]
  : [['drag', 'moves'], ['double-click, Ctrl + wheel', 'zooms'], ['+ − ← →', 'with a view in focus'],
    ['N P', 'next, previous operation'], ['0', 'resets']];
for (const [marks, what] of hints) {
  const item = document.createElement('span');
  item.append(element('kbd', marks), ` ${what}`);
  keys.append(item);
}
host.append(keys);
const repaint = () => { readColours(); legend(); all.forEach(view => view.draw()); };
const gone = new AbortController();
for (const query of ['(prefers-color-scheme: dark)', 'print']) {
  matchMedia(query).addEventListener('change', repaint, { signal: gone.signal });
}
return () => { gone.abort(); tip.remove(); };
