// The screen of a terminal: what programs write becomes cells. Knows the usual sequences of VT220 and xterm: cursor,
// erasing, colours, a scrolled region, inserted and deleted lines and characters, the other screen of full-screen
// programs, wide characters. What it does not know is passed over. Pure: no element of a page is touched.

import { Parser } from './parser.js';

export const BOLD = 1;
export const DIM = 2;
export const ITALIC = 4;
export const UNDERLINE = 8;
export const INVERSE = 16;
export const HIDDEN = 32;
export const STRIKE = 64;

const NO_STYLE = Object.freeze({ flags: 0, fg: null, bg: null });
/** Lines that DEC's drawing set has in place of letters. */
const DRAWING = Object.fromEntries([...'`afgjklmnopqrstuvwxyz{|}~'].map((from, index) => [from, [...'◆▒°±┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·'][index]]));
const FLAGS = { 1: BOLD, 2: DIM, 3: ITALIC, 4: UNDERLINE, 7: INVERSE, 8: HIDDEN, 9: STRIKE };
const UNFLAGS = { 22: BOLD | DIM, 23: ITALIC, 24: UNDERLINE, 27: INVERSE, 28: HIDDEN, 29: STRIKE };

/** Columns that a character takes. */
function widthOf(text) {
  const code = text.codePointAt(0);
  if (code < 0x300) return 1;
  if ((code >= 0x300 && code <= 0x36f) || (code >= 0x200b && code <= 0x200f) || (code >= 0xfe00 && code <= 0xfe0f)) return 0;
  const wide = (code >= 0x1100 && code <= 0x115f) || (code >= 0x2e80 && code <= 0xa4cf && code !== 0x303f) || (code >= 0xac00 && code <= 0xd7a3)
    || (code >= 0xf900 && code <= 0xfaff) || (code >= 0xfe30 && code <= 0xfe6f) || (code >= 0xff00 && code <= 0xff60) || (code >= 0xffe0 && code <= 0xffe6) || (code >= 0x1f300 && code <= 0x1faff) || (code >= 0x20000 && code <= 0x3fffd);
  return wide ? 2 : 1;
}

export class Screen {
  constructor(rows, columns) {
    this.rows = rows;
    this.columns = columns;
    /** What is to be sent back, as to a question for the place of the cursor. */
    this.answer = () => {};
    this.parser = new Parser(this);
    this.decoder = new TextDecoder();
    this.dirty = new Set();
    this.reset();
  }

  reset() {
    this.style = NO_STYLE;
    this.cursor = { row: 0, column: 0 };
    this.saved = null;
    this.top = 0;
    this.bottom = this.rows - 1;
    this.drawing = false;
    this.modes = { cursor: true, cursorKeys: false, wrap: true, insert: false, paste: false, origin: false };
    this.cells = Array.from({ length: this.rows }, () => this.blank());
    this.other = null;
    this.wrapping = false;
    this.all();
  }

  blank() {
    const style = this.style.bg === null ? NO_STYLE : Object.freeze({ ...NO_STYLE, bg: this.style.bg });
    return Array.from({ length: this.columns }, () => ({ text: ' ', style }));
  }

  all() {
    for (let row = 0; row < this.rows; row += 1) this.dirty.add(row);
  }

  line(row) {
    return this.cells[row];
  }

  /** A row as text, for tests and for who reads it aloud. */
  text(row) {
    return this.cells[row].map((cell) => cell.text).join('').trimEnd();
  }

  /** @param {Uint8Array | string} given */
  write(given) {
    this.parser.feed(typeof given === 'string' ? given : this.decoder.decode(given, { stream: true }));
  }

  resize(rows, columns) {
    const fit = (cells) => {
      while (cells.length > rows) cells.shift();
      const lines = cells.map((line) => (line.length > columns ? line.slice(0, columns)
        : line.concat(Array.from({ length: columns - line.length }, () => ({ text: ' ', style: NO_STYLE })))));
      while (lines.length < rows) lines.push(Array.from({ length: columns }, () => ({ text: ' ', style: NO_STYLE })));
      return lines;
    };
    const lost = Math.max(0, this.cursor.row + 1 - rows);
    // What is lost is what is above the cursor, as far as that goes.
    this.cells = fit(this.cells.slice(lost, lost + Math.max(rows, this.cursor.row + 1 - lost)));
    if (this.other) this.other.cells = fit(this.other.cells);
    this.rows = rows;
    this.columns = columns;
    this.top = 0;
    this.bottom = rows - 1;
    this.move(this.cursor.row - lost, this.cursor.column);
    this.all();
  }

  move(row, column) {
    this.cursor.row = Math.max(0, Math.min(this.rows - 1, row));
    this.cursor.column = Math.max(0, Math.min(this.columns - 1, column));
    this.wrapping = false;
  }

  /** Lines of the region go up by `count`, or down. */
  scroll(count, top = this.top) {
    for (let left = Math.min(Math.abs(count), this.rows); left > 0; left -= 1) {
      if (count > 0) {
        this.cells.splice(top, 1);
        this.cells.splice(this.bottom, 0, this.blank());
      } else {
        this.cells.splice(this.bottom, 1);
        this.cells.splice(top, 0, this.blank());
      }
    }
    for (let row = top; row <= this.bottom; row += 1) this.dirty.add(row);
  }

  down() {
    if (this.cursor.row === this.bottom) this.scroll(1);
    else this.move(this.cursor.row + 1, this.cursor.column);
  }

  up() {
    if (this.cursor.row === this.top) this.scroll(-1);
    else this.move(this.cursor.row - 1, this.cursor.column);
  }

  // What the parser calls.

  print(character) {
    const text = this.drawing ? DRAWING[character] ?? character : character;
    const width = widthOf(text);
    const line = () => this.cells[this.cursor.row];
    if (width === 0) {
      const before = line()[Math.max(0, this.cursor.column - (this.wrapping ? 0 : 1))];
      if (before.text.length < 16) before.text += text;
      return;
    }
    if (this.wrapping || (width === 2 && this.cursor.column === this.columns - 1)) {
      this.wrapping = false;
      this.cursor.column = 0;
      this.down();
    }
    const { column } = this.cursor;
    if (this.modes.insert) {
      line().splice(column, 0, ...Array.from({ length: width }, () => ({ text: ' ', style: this.style })));
      line().length = this.columns;
    }
    line()[column] = { text, style: this.style };
    if (width === 2 && column + 1 < this.columns) line()[column + 1] = { text: '', style: this.style };
    this.dirty.add(this.cursor.row);
    if (column + width >= this.columns) this.wrapping = this.modes.wrap;
    this.cursor.column = Math.min(this.columns - 1, column + width);
  }

  control(code) {
    const { row, column } = this.cursor;
    if (code === 8) this.move(row, column - 1);
    else if (code === 9) this.move(row, (Math.floor(column / 8) + 1) * 8);
    else if (code === 10 || code === 11 || code === 12) this.down();
    else if (code === 13) this.move(row, 0);
    else if (code === 14) this.drawing = true;
    else if (code === 15) this.drawing = false;
  }

  escape(between, final) {
    if (between === '(') this.drawing = final === '0';
    else if (between) return;
    else if (final === 'D') this.down();
    else if (final === 'E') { this.move(this.cursor.row, 0); this.down(); }
    else if (final === 'M') this.up();
    else if (final === '7') this.save();
    else if (final === '8') this.restore();
    else if (final === 'c') this.reset();
  }

  save() {
    this.saved = { ...this.cursor, style: this.style, drawing: this.drawing };
  }

  restore() {
    const { row = 0, column = 0, style = NO_STYLE, drawing = false } = this.saved ?? {};
    this.move(row, column);
    this.style = style;
    this.drawing = drawing;
  }

  sequence(prefix, numbers, between, final) {
    if (between) {
      if (between === '!' && final === 'p') this.reset();
      return;
    }
    if (prefix === '?') {
      if (final === 'h' || final === 'l') numbers.forEach((mode) => this.mode(mode, final === 'h'));
      return;
    }
    if (prefix === '>' && final === 'c') { this.answer('\x1b[>0;10;0c'); return; }
    if (prefix) return;
    const count = Math.max(1, numbers[0] ?? 1);
    const { row, column } = this.cursor;
    switch (final) {
      case 'A': this.move(Math.max(row >= this.top ? this.top : 0, row - count), column); break;
      case 'B': case 'e': this.move(Math.min(row <= this.bottom ? this.bottom : this.rows, row + count), column); break;
      case 'C': case 'a': this.move(row, column + count); break;
      case 'D': this.move(row, column - count); break;
      case 'E': this.move(row + count, 0); break;
      case 'F': this.move(row - count, 0); break;
      case 'G': case '`': this.move(row, count - 1); break;
      case 'd': this.move(count - 1, column); break;
      case 'H': case 'f': this.move(count - 1 + (this.modes.origin ? this.top : 0), Math.max(1, numbers[1] ?? 1) - 1); break;
      case 'J': this.eraseScreen(numbers[0] ?? 0); break;
      case 'K': this.eraseLine(numbers[0] ?? 0); break;
      case 'L': if (row >= this.top && row <= this.bottom) this.scroll(-count, row); break;
      case 'M': if (row >= this.top && row <= this.bottom) this.scroll(count, row); break;
      case 'S': this.scroll(count); break;
      case 'T': this.scroll(-count); break;
      case 'P': this.shift(count, false); break;
      case '@': this.shift(count, true); break;
      case 'X': this.erase(row, column, column + count); break;
      case 'm': this.dress(numbers.length ? numbers : [0]); break;
      case 'r': this.region(numbers); break;
      case 's': this.save(); break;
      case 'u': this.restore(); break;
      case 'h': case 'l': if (numbers[0] === 4) this.modes.insert = final === 'h'; break;
      case 'n': if (numbers[0] === 6) this.answer(`\x1b[${row + 1};${column + 1}R`); else if (numbers[0] === 5) this.answer('\x1b[0n'); break;
      case 'c': this.answer('\x1b[?62;22c'); break;
      default:
    }
  }

  region(numbers) {
    const top = Math.max(1, numbers[0] ?? 1) - 1;
    const bottom = Math.min(this.rows, numbers[1] || this.rows) - 1;
    if (top < bottom) [this.top, this.bottom] = [top, bottom];
    this.move(this.modes.origin ? this.top : 0, 0);
  }

  mode(mode, on) {
    const names = { 1: 'cursorKeys', 6: 'origin', 7: 'wrap', 25: 'cursor', 2004: 'paste' };
    if (names[mode]) this.modes[names[mode]] = on;
    if (mode === 25) this.dirty.add(this.cursor.row);
    if (mode === 47 || mode === 1047 || mode === 1049) this.alternate(on);
  }

  /** The screen of full-screen programs, and back to the one before it. */
  alternate(on) {
    if (on && !this.other) {
      this.other = { cells: this.cells, cursor: { ...this.cursor }, style: this.style };
      this.cells = Array.from({ length: this.rows }, () => this.blank());
    } else if (!on && this.other) {
      this.cells = this.other.cells;
      this.style = this.other.style;
      this.move(this.other.cursor.row, this.other.cursor.column);
      this.other = null;
    }
    this.top = 0;
    this.bottom = this.rows - 1;
    this.all();
  }

  erase(row, from, to) {
    const blank = this.blank();
    for (let column = Math.max(0, from); column < Math.min(this.columns, to); column += 1) this.cells[row][column] = blank[column];
    this.dirty.add(row);
  }

  eraseLine(what) {
    const { row, column } = this.cursor;
    this.erase(row, what === 0 ? column : 0, what === 1 ? column + 1 : this.columns);
  }

  eraseScreen(what) {
    const { row } = this.cursor;
    const [from, to] = what === 0 ? [row + 1, this.rows] : what === 1 ? [0, row] : [0, this.rows];
    for (let line = from; line < to; line += 1) this.erase(line, 0, this.columns);
    if (what < 2) this.eraseLine(what);
  }

  /** Characters after the cursor go right, or come from there. */
  shift(count, right) {
    const { row, column } = this.cursor;
    const line = this.cells[row];
    const many = Math.min(count, this.columns - column);
    const blanks = this.blank().slice(0, many);
    if (right) {
      line.splice(column, 0, ...blanks);
      line.length = this.columns;
    } else {
      line.splice(column, many);
      line.push(...blanks);
    }
    this.dirty.add(row);
  }

  dress(numbers) {
    const style = { ...this.style };
    for (let index = 0; index < numbers.length; index += 1) {
      const number = numbers[index];
      if (number === 0) Object.assign(style, NO_STYLE);
      else if (FLAGS[number]) style.flags |= FLAGS[number];
      else if (UNFLAGS[number]) style.flags &= ~UNFLAGS[number];
      else if (number >= 30 && number <= 37) style.fg = number - 30;
      else if (number >= 40 && number <= 47) style.bg = number - 40;
      else if (number >= 90 && number <= 97) style.fg = number - 82;
      else if (number >= 100 && number <= 107) style.bg = number - 92;
      else if (number === 39) style.fg = null;
      else if (number === 49) style.bg = null;
      else if (number === 38 || number === 48) {
        const key = number === 38 ? 'fg' : 'bg';
        const byte = (value) => Math.max(0, Math.min(255, value ?? 0));
        if (numbers[index + 1] === 5) {
          style[key] = byte(numbers[index + 2]);
          index += 2;
        } else if (numbers[index + 1] === 2) {
          style[key] = numbers.slice(index + 2, index + 5).map(byte);
          index += 4;
        }
      }
    }
    this.style = Object.freeze(style);
  }
}
