// A list of any length: only the rows that are seen are there. Rows have one height.
//
// Keys: arrows or j/k move, Home, End, Page up, Page down, Enter opens; a heading sorts.

import { classes, html, useEffect, useMemo, useReducer, useRef, useState } from './html.js';
import { WhenKnown } from './parts.js';

const ROW = 34;
/** Rows beyond the seen ones, so that scrolling shows no gap. */
const BEYOND = 12;

const compare = (a, b) => {
  if (typeof a === 'number' && typeof b === 'number') return a - b;
  return String(a ?? '').localeCompare(String(b ?? ''), 'en', { numeric: true });
};

/** Sorted by a column, then by key so that equal ones stay where they are. */
function sorted(rows, column, down, rowKey) {
  if (!column?.sort) return rows;
  const keyed = rows.map((row) => [column.sort(row), rowKey(row), row]);
  keyed.sort((a, b) => (down ? -compare(a[0], b[0]) : compare(a[0], b[0])) || (a[1] < b[1] ? -1 : 1));
  return keyed.map(([, , row]) => row);
}

/**
 * @param {{label: string, columns: {key: string, title: string, width?: string, cell: (row) => any,
 *   sort?: (row) => any, end?: boolean}[], rows: any[], rowKey: (row) => string, open?: (row) => void,
 *   empty: any, order?: string, height?: string}} props `order`: the first column to sort by, `-name` downwards.
 */
export function List({ label, columns, rows, rowKey, open, empty, order = '', height }) {
  const [sort, setSort] = useState(order);
  const [at, setAt] = useState(null);
  const [, again] = useReducer((count) => count + 1, 0);
  const box = useRef(null);
  const name = useMemo(() => `list-${Math.random().toString(36).slice(2)}`, []);
  const column = columns.find((one) => one.key === sort.replace(/^-/, ''));
  const shown = useMemo(() => sorted(rows, column, sort.startsWith('-'), rowKey), [rows, sort]);
  useEffect(() => {
    const seen = new ResizeObserver(again);
    if (box.current) seen.observe(box.current);
    return () => seen.disconnect();
  }, [shown.length === 0]);

  if (!shown.length) return html`<div class="list-empty"><${WhenKnown}>${empty}</${WhenKnown}></div>`;
  const position = Math.max(0, shown.findIndex((row) => rowKey(row) === at));
  const view = box.current;
  const first = Math.max(0, Math.floor((view?.scrollTop ?? 0) / ROW) - BEYOND);
  const count = Math.ceil((view?.clientHeight || 600) / ROW) + 2 * BEYOND;
  const part = shown.slice(first, first + count);
  const grid = { gridTemplateColumns: columns.map((one) => one.width ?? '1fr').join(' ') };

  const moveTo = (index) => {
    const next = Math.max(0, Math.min(shown.length - 1, index));
    setAt(rowKey(shown[next]));
    const top = next * ROW;
    if (top < view.scrollTop) view.scrollTop = top;
    else if (top + 2 * ROW > view.scrollTop + view.clientHeight) view.scrollTop = top + 2 * ROW - view.clientHeight;
  };
  const keyed = (event) => {
    if (event.target !== view || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(view.clientHeight / ROW) - 2);
    const from = at === null ? -1 : position;
    const moves = {
      ArrowDown: from + 1, j: from + 1, ArrowUp: from - 1, k: from - 1, PageDown: from + page, PageUp: from - page,
      Home: 0, End: shown.length - 1,
    };
    if (event.key in moves) moveTo(moves[event.key]);
    else if (event.key === 'Enter' && at !== null && open) open(shown[position]);
    else return;
    event.preventDefault();
  };
  const by = (one) => () => setSort((old) => (old === one.key ? `-${one.key}` : one.key));
  const heading = (one) => {
    const down = sort === `-${one.key}`;
    const sorting = sort === one.key ? 'ascending' : down ? 'descending' : 'none';
    const mark = sorting === 'none' ? '' : down ? ' ↓' : ' ↑';
    return html`<div role="columnheader" aria-sort=${sorting} class=${classes(one.end && 'end')} key=${one.key}>
      ${one.sort ? html`<button class="sort" onClick=${by(one)}>${one.title}<span aria-hidden="true">${mark}</span></button>` : one.title}
    </div>`;
  };
  return html`<div class="list" role="grid" aria-label=${label} aria-rowcount=${shown.length + 1} tabindex="0" ref=${box}
      aria-activedescendant=${at === null ? undefined : `${name}-${position}`} onKeyDown=${keyed} onScroll=${again}
      style=${height ? { maxHeight: height } : {}}>
    <div class="list-head" role="row" aria-rowindex="1" style=${grid}>${columns.map(heading)}</div>
    <div role="rowgroup" class="list-body" style=${{ height: `${shown.length * ROW}px` }}>
      ${part.map((row, index) => html`<${Row} key=${rowKey(row)} row=${row} columns=${columns} index=${first + index} grid=${grid.gridTemplateColumns}
        name=${name} chosen=${rowKey(row) === at} open=${open} />`)}
    </div>
  </div>`;
}

/** One row. It is made again only when it is another one, or elsewhere. */
function Row({ row, columns, index, name, chosen, open, grid }) {
  const place = { transform: `translateY(${index * ROW}px)`, gridTemplateColumns: grid };
  const click = (event) => { if (open && !event.target.closest('a,button')) open(row); };
  return html`<div role="row" id=${`${name}-${index}`} aria-rowindex=${index + 2} aria-selected=${String(chosen)}
      class=${classes('list-row', open && 'opens', chosen && 'chosen')} style=${place} onClick=${click}>
    ${columns.map((one) => html`<div role="gridcell" class=${classes(one.end && 'end')} key=${one.key}>${one.cell(row)}</div>`)}
  </div>`;
}

/** A text that chooses among rows; `/` goes there. */
export function Filter({ value, change, count, all, label }) {
  return html`<div class="filter">
    <input type="search" class="filter-text" data-filter placeholder="Filter ( / )" aria-label=${label} value=${value}
      onInput=${(event) => change(event.target.value)} spellcheck=${false} autocomplete="off" />
    <span class="quiet" role="status">${count === all ? all.toLocaleString('en') : `${count.toLocaleString('en')} of ${all.toLocaleString('en')}`}</span>
  </div>`;
}

/** Rows one of whose texts has every word that was typed. */
export function matching(rows, text, texts) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return rows;
  return rows.filter((row) => {
    const all = texts(row).join(' ').toLowerCase();
    return words.every((word) => all.includes(word));
  });
}
