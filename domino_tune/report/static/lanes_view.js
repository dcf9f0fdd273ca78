// One view: a canvas with the three timelines, which zooms and pans.
class View {
  constructor(view) {
    this.view = view;
    this.chosen = null;
    this.whole = view.layer < 0;
    this.home();
    this.build();
  }

  home() { [this.low, this.high] = this.view.window; }

  build() {
    const box = document.createElement('div');
    box.className = 'view';
    const head = document.createElement('div');
    head.className = 'view-head';
    const title = document.createElement('h3');
    title.textContent = this.view.title;
    const tools = document.createElement('div');
    tools.className = 'tools';
    for (const [text, label, act] of [['−', 'Zoom out', () => this.zoom(1.6)],
      ['+', 'Zoom in', () => this.zoom(1 / 1.6)], ['Reset', 'Reset the view', () => this.reset()]]) {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = text;
      button.setAttribute('aria-label', `${label}: ${this.view.title}`);
      button.addEventListener('click', act);
      tools.append(button);
    }
    head.append(title, tools);
    this.canvas = document.createElement('canvas');
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute('role', 'application');
    this.canvas.setAttribute('aria-label', `${this.view.title}: ${lines.map((line, i) =>
      `${line.name} ${time(this.view.each[i])} ${this.view.unit}`).join(', ')}. ` +
      'Plus and minus zoom, arrows move, N and P step through operations.');
    this.live = document.createElement('div');
    this.live.className = 'sr';
    this.live.setAttribute('aria-live', 'polite');
    box.append(head, this.canvas, this.live);
    host.append(box);
    this.listen();
    this.draw();
    new ResizeObserver(() => { if (this.canvas.clientWidth !== this.drawn) this.draw(); }).observe(this.canvas);
  }

  // Geometry ------------------------------------------------------------------------------

  layout() {
    const width = this.canvas.clientWidth;
    this.gutter = width >= 620 ? 104 : 8;
    this.width = width - this.gutter - 10;
    let y = 8;
    this.rows = lines.map((line, index) => {
      const top = y;
      const lanes = [...line.lanes].filter(([lane, ops]) => lane === 0 || ops.length)
        .map(([lane, ops], i) => ({ lane, ops, y: top + HEAD + i * (LANE_HEIGHT + LANE_GAP) }));
      y = top + HEAD + lanes.length * (LANE_HEIGHT + LANE_GAP) + BETWEEN + (this.whole ? PHASES : 0);
      return { line, index, top, lanes, origin: this.view.origins[index] };
    });
    this.axis = y - 4;
    return y + AXIS;
  }

  x(ns) { return this.gutter + (ns - this.low) / (this.high - this.low) * this.width; }
  ns(x) { return this.low + (x - this.gutter) / this.width * (this.high - this.low); }

  // Drawing -------------------------------------------------------------------------------

  draw() {
    const height = this.layout(), ratio = window.devicePixelRatio || 1;
    const canvas = this.canvas, width = canvas.clientWidth;
    this.drawn = width;
    canvas.style.height = height + 'px';
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const pen = this.pen = canvas.getContext('2d');
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.textBaseline = 'middle';
    this.hatch = hatch(colours.wait);
    this.grid();
    for (const row of this.rows) this.row(row);
  }

  font(size, weight = 400) { this.pen.font = `${weight} ${size}px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif`; }

  grid() {
    const pen = this.pen, span = this.high - this.low;
    const rough = span / Math.max(3, this.width / 110), unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(k => k * unit).find(k => k >= rough);
    this.font(11);
    pen.textAlign = 'center';
    for (let at = Math.ceil(this.low / step) * step; at <= this.high; at += step) {
      const x = Math.round(this.x(at)) + .5;
      pen.fillStyle = colours.line;
      pen.fillRect(x - .5, 8, 1, this.axis - 8);
      pen.fillStyle = colours.faint;
      const text = tick(at, step, span);
      const half = pen.measureText(text).width / 2;
      if (x - half > this.gutter - 8 && x + half < this.gutter + this.width + 8) pen.fillText(text, x, this.axis + 11);
    }
  }

  row({ line, index, top, lanes, origin }) {
    const pen = this.pen, each = this.view.each[index];
    pen.textAlign = 'left';
    this.font(13, 650);
    pen.fillStyle = colours.ink;
    pen.fillText(line.name, this.gutter, top + 12);
    const x = this.gutter + pen.measureText(line.name).width + 10;
    this.font(12);
    pen.fillStyle = colours.soft;
    const text = [`${time(each)} ${this.view.unit}`, line.plan && this.width > 520 ? line.plan : ''].filter(Boolean).join('  ·  ');
    pen.fillText(text, x, top + 12);
    if (this.whole) this.phases(line, top + HEAD + lanes.length * (LANE_HEIGHT + LANE_GAP) + 3, origin);
    pen.save();
    pen.beginPath();
    pen.rect(this.gutter, top, this.width, HEAD + lanes.length * (LANE_HEIGHT + LANE_GAP) + 2);
    pen.clip();
    this.cuts(line, lanes, origin);
    for (const lane of lanes) this.lane(lane, origin);
    this.waits(line, lanes[0].y, origin);
    this.end(line, lanes, origin);
    this.mark(lanes, origin);
    pen.restore();
    if (this.gutter < 50) return;
    this.font(11);
    pen.fillStyle = colours.faint;
    pen.textAlign = 'right';
    for (const { lane, y } of lanes) pen.fillText(data.laneNames[lane], this.gutter - 10, y + LANE_HEIGHT / 2);
  }

  phases(line, y, origin) {
    const pen = this.pen;
    this.font(10.5);
    pen.fillStyle = colours.faint;
    pen.textAlign = 'center';
    for (const [name, start, end] of line.phases) {
      const left = Math.max(this.x(start - origin), this.gutter), right = Math.min(this.x(end - origin), this.gutter + this.width);
      if (right <= left) continue;
      pen.fillRect(left, y, Math.max(1, right - left - 1), 1.5);
      if (pen.measureText(name).width + 6 < right - left) pen.fillText(name, (left + right) / 2, y + 10);
    }
    pen.textAlign = 'left';
  }

  lane({ ops, y }, origin) {
    const pen = this.pen, from = this.low + origin, to = this.high + origin;
    pen.fillStyle = colours.line;
    pen.globalAlpha = .38;
    pen.fillRect(this.gutter, y, this.width, LANE_HEIGHT);
    for (let i = firstEnding(ops, from); i < ops.length && ops[i].start < to; i++) {
      const op = ops[i], left = this.x(op.start - origin), wide = this.x(op.end - origin) - left;
      pen.globalAlpha = ALPHA[op.kind] * (this.here(op) ? 1 : .38);
      pen.fillStyle = colourOf(op);
      const seam = wide > 3 ? .8 : 0;
      pen.fillRect(left, y, wide - seam, LANE_HEIGHT);
      if (op.kind === 'comm' && wide > 3) {
        pen.globalAlpha *= .28;
        pen.fillStyle = colours.panel;
        pen.fillRect(left, y + LANE_HEIGHT - 4, wide - seam, 4);
      }
      if (wide > 20) this.label(op, Math.max(left, this.gutter), y, Math.min(left + wide, this.gutter + this.width));
    }
    pen.globalAlpha = 1;
  }

  here(op) {
    const { layer, backward, micro } = this.view;
    return layer < 0 || (op.inLayer && op.layer === layer && op.micro === micro && op.backward === backward);
  }

  label(op, left, y, right) {
    const pen = this.pen, room = right - left - 7, rows = op.slice >= 0 && op.line.slices > 1 ? sub(op.slice) : '';
    this.font(11, 560);
    const short = op.kind === 'comm' ? op.label.replace(/all-reduce|all-gather|reduce-scatter/,
      word => word.split('-').map(part => part[0].toUpperCase()).join('')) : op.label;
    const fitting = [op.label + rows, short + rows, short].find(text => pen.measureText(text).width <= room);
    if (!fitting) return;
    pen.globalAlpha = this.here(op) ? 1 : .45;
    pen.fillStyle = ALPHA[op.kind] > .7 && this.here(op) ? inkOn(colourOf(op)) : colours.ink;
    pen.textAlign = 'left';
    pen.fillText(fitting, left + 3.5, y + LANE_HEIGHT / 2 + .5);
  }

  waits(line, y, origin) {
    const pen = this.pen, from = this.low + origin, to = this.high + origin;
    for (let i = firstEnding(line.gaps, from); i < line.gaps.length && line.gaps[i].start < to; i++) {
      const gap = line.gaps[i], left = this.x(gap.start - origin), wide = this.x(gap.end - origin) - left;
      pen.fillStyle = !gap.waits ? colours.faint : wide > 3 ? this.hatch : colours.wait;
      pen.globalAlpha = gap.waits ? 1 : .5;
      pen.fillRect(left, y, wide, LANE_HEIGHT);
    }
    pen.globalAlpha = 1;
  }

  cuts(line, lanes, origin) {
    if (!line.cuts.length) return;
    const pen = this.pen;
    pen.textAlign = 'center';
    this.font(11);
    for (const [start, end] of line.cuts) {
      const left = Math.max(this.x(start - origin), this.gutter), right = Math.min(this.x(end - origin), this.gutter + this.width);
      if (right < left) continue;
      pen.fillStyle = hatch(colours.faint);
      for (const { y } of lanes) pen.fillRect(left, y, right - left, LANE_HEIGHT);
    }
  }

  end(line, lanes, origin) {
    const x = this.x(line.end - origin);
    const bottom = lanes[lanes.length - 1].y + LANE_HEIGHT;
    this.pen.fillStyle = colours.ink;
    this.pen.fillRect(x, lanes[0].y, 1.5, bottom - lanes[0].y);
  }

  mark(lanes, origin) {
    if (!this.chosen || this.chosen.gap) return;
    const pen = this.pen;
    pen.lineWidth = 2;
    pen.strokeStyle = colours.ink;
    for (const { ops, y } of lanes) {
      for (const op of ops) {
        if (op !== this.chosen && !partner(op, this.chosen)) continue;
        if (op !== this.chosen && op.line !== this.chosen.line) continue;
        const left = this.x(op.start - origin);
        pen.strokeRect(left, y + 1, Math.max(2, this.x(op.end - origin) - left), LANE_HEIGHT - 2);
      }
    }
  }

  // Moving --------------------------------------------------------------------------------

  again() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  bounds() {
    const starts = lines.map((line, i) => -this.view.origins[i]);
    const ends = lines.map((line, i) => line.end - this.view.origins[i]);
    const low = Math.min(...starts), high = Math.max(...ends), air = (high - low) * .01;
    return [low - air, high + air];
  }

  set(low, high) {
    const [least, most] = this.bounds();
    let span = Math.min(Math.max(high - low, DEEPEST_NS), most - least);
    low = Math.min(Math.max(low, least), most - span);
    [this.low, this.high] = [low, low + span];
    this.again();
  }

  zoom(factor, x = this.gutter + this.width / 2) {
    const at = this.ns(x);
    const room = this.bounds(), span = Math.min(Math.max((this.high - this.low) * factor, DEEPEST_NS), room[1] - room[0]);
    const share = (at - this.low) / (this.high - this.low);
    this.set(at - share * span, at - share * span + span);
  }

  pan(pixels) {
    const shift = pixels / this.width * (this.high - this.low);
    this.set(this.low + shift, this.high + shift);
  }

  reset() { this.home(); this.choose(null); this.again(); }

  listen() {
    const canvas = this.canvas, touches = new Map();
    canvas.addEventListener('keydown', event => this.key(event));
    canvas.addEventListener('wheel', event => {
      const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey;
      if (!sideways && !event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return;
      event.preventDefault();
      if (sideways) this.pan(event.deltaX || event.deltaY);
      else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * .006), event.offsetX);
    }, { passive: false });
    canvas.addEventListener('pointerdown', event => {
      touches.set(event.pointerId, event.offsetX);
      canvas.setPointerCapture(event.pointerId);
      if (event.pointerType !== 'mouse') this.choose(this.at(event.offsetX, event.offsetY), event);
    });
    canvas.addEventListener('pointermove', event => {
      const before = touches.get(event.pointerId);
      if (before === undefined) { this.choose(this.at(event.offsetX, event.offsetY), event); return; }
      if (touches.size === 2) {
        const other = [...touches].find(([id]) => id !== event.pointerId)[1];
        this.zoom(Math.max(8, Math.abs(before - other)) / Math.max(8, Math.abs(event.offsetX - other)), (event.offsetX + other) / 2);
      } else {
        this.pan(before - event.offsetX);
      }
      touches.set(event.pointerId, event.offsetX);
      if (event.pointerType === 'mouse') tip.hidden = true;
    });
    for (const name of ['pointerup', 'pointercancel']) canvas.addEventListener(name, event => touches.delete(event.pointerId));
    canvas.addEventListener('pointerleave', () => { if (!touches.size) this.choose(null); });
    canvas.addEventListener('dblclick', event => this.zoom(1 / 3, event.offsetX));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = { '+': () => this.zoom(1 / 1.6), '=': () => this.zoom(1 / 1.6), '-': () => this.zoom(1.6),
      ArrowUp: () => this.zoom(1 / 1.6), ArrowDown: () => this.zoom(1.6),
      ArrowLeft: () => this.pan(-this.width / 8), ArrowRight: () => this.pan(this.width / 8),
      0: () => this.reset(), Home: () => this.reset(), Escape: () => this.choose(null),
      n: () => this.step(1), p: () => this.step(-1) };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  // Choosing an op ------------------------------------------------------------------------

  at(x, y) {
    for (const row of this.rows) {
      for (const { lane, ops, y: top } of row.lanes) {
        if (y < top || y > top + LANE_HEIGHT) continue;
        const when = this.ns(x) + row.origin;
        const near = (this.high - this.low) / this.width * 2;
        const all = lane === 0 ? [ops, row.line.gaps] : [ops];
        for (const from of all) {
          const op = from[firstEnding(from, when - near)];
          if (op && op.start <= when + near) return op;
        }
      }
    }
    return null;
  }

  step(by) {
    const all = this.rows.flatMap(row => row.lanes.flatMap(({ ops }) => ops));
    const index = all.indexOf(this.chosen);
    const row = this.rows[1], first = row.lanes[0].ops;
    const op = index < 0 ? first[firstEnding(first, this.low + row.origin)] : all[index + by];
    if (!op) return;
    const origin = this.rows.find(r => r.line.name === op.line.name && r.line === op.line).origin;
    const middle = op.start - origin;
    if (middle < this.low || middle > this.high) this.set(middle - (this.high - this.low) / 2, middle + (this.high - this.low) / 2);
    const lane = this.rows.flatMap(r => r.lanes).find(({ ops }) => ops.includes(op));
    this.choose(op, { offsetX: this.x(op.start - origin), offsetY: lane.y });
    this.live.textContent = tip.textContent;
  }

  choose(op, at) {
    if (op !== this.chosen) { this.chosen = op; this.again(); }
    if (!op) { tip.hidden = true; return; }
    tip.replaceChildren(...describe(op));
    tip.hidden = false;
    const box = this.canvas.getBoundingClientRect();
    const left = box.left + window.scrollX + at.offsetX + 14, width = tip.offsetWidth;
    const right = window.scrollX + document.documentElement.clientWidth - width - 8;
    tip.style.left = Math.max(8, Math.min(left, right)) + 'px';
    tip.style.top = box.top + window.scrollY + at.offsetY + 22 + 'px';
  }
}
