// Shows a screen: a line of elements for each row, of which only those that changed are made again.

import { BOLD, INVERSE, ITALIC, STRIKE, UNDERLINE, DIM, HIDDEN } from './screen.js';

const FONT = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';

/** One of 256 colours, or three parts of one. */
function colour(value) {
  if (value === null || value === undefined) return '';
  if (Array.isArray(value)) return `rgb(${value.join(',')})`;
  if (value < 16) return `var(--ansi-${value})`;
  if (value >= 232) return `rgb(${Array(3).fill(8 + (value - 232) * 10).join(',')})`;
  const at = value - 16;
  const part = (one) => (one ? 55 + one * 40 : 0);
  return `rgb(${[Math.floor(at / 36), Math.floor(at / 6) % 6, at % 6].map(part).join(',')})`;
}

export class Painter {
  /** @param {HTMLElement} box */
  constructor(box) {
    this.box = box;
    this.lines = document.createElement('div');
    this.lines.className = 'terminal-lines';
    this.lines.setAttribute('aria-live', 'off');
    this.input = document.createElement('textarea');
    this.input.className = 'terminal-input';
    this.input.setAttribute('aria-label', 'Keys go to the terminal');
    this.input.setAttribute('autocapitalize', 'off');
    this.input.spellcheck = false;
    box.replaceChildren(this.lines, this.input);
    box.style.fontFamily = FONT;
    this.focusBox = () => { if (!String(getSelection())) this.focus(); };
    box.addEventListener('mouseup', this.focusBox);
    this.frame = 0;
  }

  focus() {
    this.input.focus({ preventScroll: true });
  }

  /** Rows and columns that there is room for. */
  size() {
    const probe = document.createElement('span');
    probe.textContent = 'W'.repeat(50);
    probe.className = 'terminal-probe';
    this.box.append(probe);
    const { width, height } = probe.getBoundingClientRect();
    probe.remove();
    const columns = Math.floor((this.box.clientWidth - 16) / (width / 50 || 8));
    const rows = Math.floor((this.box.clientHeight - 12) / (height || 17));
    return [Math.max(4, Math.min(200, rows)), Math.max(20, Math.min(400, columns))];
  }

  /** At the next frame, once. */
  paint(screen) {
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.show(screen);
    });
  }

  show(screen) {
    while (this.lines.children.length > screen.rows) this.lines.lastChild.remove();
    while (this.lines.children.length < screen.rows) {
      const line = document.createElement('div');
      line.className = 'terminal-line';
      this.lines.append(line);
      screen.dirty.add(this.lines.children.length - 1);
    }
    const at = screen.cursor;
    if (this.last !== undefined) screen.dirty.add(this.last);
    screen.dirty.add(at.row);
    this.last = at.row;
    for (const row of screen.dirty) {
      if (row < screen.rows) this.lines.children[row].replaceChildren(...this.parts(screen, row));
    }
    screen.dirty.clear();
  }

  /** Cells that look the same become one element. */
  parts(screen, row) {
    const parts = [];
    let text = '';
    let style = null;
    let cursor = false;
    const close = () => {
      if (!text) return;
      const part = document.createElement('span');
      part.textContent = text;
      this.dress(part, style, cursor);
      parts.push(part);
      text = '';
    };
    screen.line(row).forEach((cell, column) => {
      if (cell.text === '') return;
      const here = screen.modes.cursor && row === screen.cursor.row && column === screen.cursor.column;
      if (cell.style !== style || here !== cursor) {
        close();
        ({ style } = cell);
        cursor = here;
      }
      text += cell.text;
    });
    close();
    return parts;
  }

  dress(part, style, cursor) {
    const { flags, fg, bg } = style;
    const swap = Boolean(flags & INVERSE);
    let [front, back] = [colour(fg), colour(bg)];
    if (swap) [front, back] = [back || 'var(--term-bg)', front || 'var(--term-fg)'];
    if (front) part.style.color = front;
    if (back) part.style.backgroundColor = back;
    const names = [flags & BOLD && 'bold', flags & DIM && 'dim', flags & ITALIC && 'italic', flags & UNDERLINE && 'underline',
      flags & STRIKE && 'strike', flags & HIDDEN && 'hidden', cursor && 'cursor'].filter(Boolean);
    if (names.length) part.className = names.join(' ');
  }

  end() {
    cancelAnimationFrame(this.frame);
    this.box.removeEventListener('mouseup', this.focusBox);
    this.box.replaceChildren();
  }
}
