// The cuts: row × column slices as a heat map that arrow keys walk through, and the best plans.
import { count, gib, h, ms, section, table, times } from './dom.js';
import { label, reason } from './words.js';

const STRONGEST = 72, LISTED = 10;

const cellOf = (cell, baseline, [best, worst]) => {
  if (!cell || cell.iteration_ms === null) return h('td', { class: 'none', role: 'gridcell', tabindex: '-1' }, '–');
  const time = cell.iteration_ms, faster = time < baseline;
  const edge = faster ? best : Math.max(worst, baseline);
  const part = edge === baseline ? 0 : Math.min(1, Math.abs(baseline - time) / Math.abs(baseline - edge));
  return h('td', { class: `${faster ? 'good' : 'bad'} ${time === best ? 'best' : ''}`, role: 'gridcell', tabindex: '-1',
    style: { '--v': `${(8 + (STRONGEST - 8) * part).toFixed(0)}%` } }, ms(time), h('small', {}, times(baseline / time)));
};

const words = (row, column, cell, baseline) => {
  const cut = `${row} row × ${column} column slices`;
  if (!cell || cell.iteration_ms === null) return `${cut}: ${reason(cell?.reason)}.`;
  return `${cut}: ${ms(cell.iteration_ms)} ms, ${times(baseline / cell.iteration_ms)} as ${cell.plan.label}.`;
};

// Arrow keys move within the grid. Tab leaves it: the whole grid is one tab stop.
const walk = (cells, tell) => {
  const go = (row, column) => {
    const next = cells[row]?.[column];
    if (!next) return;
    cells.flat().forEach(cell => { cell.tabIndex = cell === next ? 0 : -1; });
    next.focus();
  };
  cells.forEach((line, row) => line.forEach((cell, column) => {
    cell.addEventListener('focus', () => tell(row, column));
    cell.addEventListener('mouseenter', () => tell(row, column));
    cell.addEventListener('keydown', event => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (step) { event.preventDefault(); go(row + step[0], column + step[1]); }
      if (event.key === 'Home') { event.preventDefault(); go(row, 0); }
      if (event.key === 'End') { event.preventDefault(); go(row, line.length - 1); }
    });
  }));
};

const heat = (grid, baseline) => {
  const sorted = key => [...new Set(grid.map(cell => cell[key]))].sort((a, b) => a - b);
  const rows = sorted('row_slices'), columns = sorted('col_slices');
  const at = (row, column) => grid.find(cell => cell.row_slices === row && cell.col_slices === column);
  const known = grid.map(cell => cell.iteration_ms).filter(time => time !== null);
  const ends = [Math.min(...known), Math.max(...known)];
  const cells = rows.map(row => columns.map(column => cellOf(at(row, column), baseline, ends)));
  const said = h('p', { class: 'note told', 'aria-live': 'polite' },
    'Point at a cut, or walk with the arrow keys, to see its plan.');
  walk(cells, (r, c) => { said.textContent = words(rows[r], columns[c], at(rows[r], columns[c]), baseline); });
  const first = cells.flat().find(cell => cell.classList.contains('best')) ?? cells[0][0];
  first.tabIndex = 0;
  return h('div', {}, h('div', { class: 'scroll' },
    h('table', { class: 'heat', role: 'grid', 'aria-label': 'Iteration in ms by row and column slices' },
    h('caption', {}, 'Iteration in ms by row and column slices; green beats Megatron-LM'),
    h('thead', {}, h('tr', {}, h('th', { class: 'corner', scope: 'col' }, 'rows ↓ columns →'),
      columns.map(column => h('th', { scope: 'col' }, column)))),
    h('tbody', {}, rows.map((row, index) => h('tr', {}, h('th', { scope: 'row' }, row), cells[index]))))), said);
};

const plans = (trials, baseline) => {
  const best = [...trials].sort((a, b) => a.iteration_ms - b.iteration_ms).slice(0, LISTED);
  const many = new Set(trials.map(trial => trial.micro_batch_size)).size > 1;
  return table('The fastest plans', ['Plan', 'ms', 'speedup', 'GiB'], best.map(trial => [
    label(trial.plan) + (many ? `, micro-batch ${trial.micro_batch_size}` : ''),
    ms(trial.iteration_ms), times(baseline / trial.iteration_ms), gib(trial.peak_memory_gib)]), 'plans');
};

/** Return the section of a finished tune; its lead is empty without feasible cuts. */
export const cuts = result => {
  const baseline = result.baseline_ms;
  const known = result.grid.map(cell => cell.iteration_ms).filter(time => time !== null);
  const faster = known.filter(time => time < baseline).length;
  const slowest = `the slowest takes ${ms(Math.max(...known))} ms`;
  const lead = known.length ? `${faster} of ${known.length} cuts beat Megatron-LM’s ${ms(baseline)} ms; ${slowest}.` : '';
  return section('cuts', 'Every way to cut it', lead,
    h('div', { class: 'pair' }, known.length ? heat(result.grid, baseline) : null,
      result.trials.length ? h('div', {}, plans(result.trials, baseline),
        h('p', { class: 'note' },
          `${count(result.evaluations)} of ${count(result.space_size)} plans were simulated, `
          + `${count(result.pruned)} ruled out by bounds.`)) : null));
};
