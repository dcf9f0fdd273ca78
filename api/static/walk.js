// The report's heat map, walked with arrow keys: each cell tells its plan.
import { h } from './dom.js';

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

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
      const step = STEPS[event.key];
      if (step) { event.preventDefault(); go(row + step[0], column + step[1]); }
      if (event.key === 'Home') { event.preventDefault(); go(row, 0); }
      if (event.key === 'End') { event.preventDefault(); go(row, line.length - 1); }
    });
  }));
};

/** Let arrow keys walk through the heat map of a section, and a line below it tell the cell's plan. */
export const walkHeat = section => {
  const heat = section?.querySelector('table.heat');
  if (!heat) return;
  const columns = [...heat.tHead.rows[0].cells].slice(1).map(cell => cell.textContent);
  const lines = [...heat.tBodies[0].rows], rows = lines.map(line => line.cells[0].textContent);
  const cells = lines.map(line => [...line.cells].slice(1));
  const told = h('p', { class: 'note told', 'aria-live': 'polite' },
    'Point at a cut, tap it, or walk with the arrow keys, to see its plan.');
  const words = cell => [cell.firstChild.textContent, cell.querySelector('small')?.textContent].filter(text => text && text !== '–');
  const tell = (row, column) => {
    const cell = cells[row][column], time = words(cell);
    told.textContent = `${rows[row]} row × ${columns[column]} column slices: `
      + [time.length ? `${time[0]} ms, ${time[1]}` : '', cell.dataset.plan].filter(Boolean).join(' as ');
  };
  heat.setAttribute('role', 'grid');
  for (const line of heat.rows) line.setAttribute('role', 'row');
  for (const cell of heat.querySelectorAll('th')) cell.setAttribute('role', cell.scope === 'row' ? 'rowheader' : 'columnheader');
  for (const cell of cells.flat()) {
    cell.setAttribute('role', 'gridcell');
    cell.tabIndex = -1;
    cell.dataset.plan = cell.title;  // told below the map: a tooltip over it would hide it
    cell.removeAttribute('title');
  }
  const scroll = heat.parentElement;
  scroll.removeAttribute('tabindex');
  scroll.after(told);
  (cells.flat().find(cell => cell.classList.contains('best')) ?? cells[0]?.[0])?.setAttribute('tabindex', '0');
  walk(cells, tell);
};
