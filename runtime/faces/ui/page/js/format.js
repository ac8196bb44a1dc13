// Numbers, times and states as people read them. Pure.

/** Of 1,536 MiB: `1.5 GiB`. */
export function bytes(count) {
  if (count === null || count === undefined || Number.isNaN(count)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  let value = count;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export const mib = (count) => bytes(count * 1024 * 1024);

/** Of nanoseconds since 1970, or RFC 3339, or nothing: milliseconds. */
export function millis(time) {
  if (!time) return 0;
  if (typeof time === 'number') return time / 1e6;
  const at = Date.parse(time);
  return Number.isNaN(at) || at < 0 ? 0 : at;
}

/** A span, ms: `1h 5m`, `42s`, `380ms`. */
export function span(ms) {
  if (ms < 1000) return `${Math.max(0, Math.round(ms))}ms`;
  const seconds = Math.floor(ms / 1000);
  const units = [['d', 86400], ['h', 3600], ['m', 60], ['s', 1]];
  const from = units.findIndex(([, size]) => seconds >= size);
  const [name, size] = units[from];
  const [next, small] = units[from + 1] ?? [];
  const rest = small ? Math.floor((seconds % size) / small) : 0;
  return `${Math.floor(seconds / size)}${name}${rest ? ` ${rest}${next}` : ''}`;
}

/** How long ago: `5m ago`. */
export function ago(time, now = Date.now()) {
  const at = millis(time);
  if (!at) return '–';
  return now - at < 2000 ? 'just now' : `${span(now - at)} ago`;
}

/** A moment in the browser's own zone: `2026-03-01 14:02:11`. */
export function moment(time) {
  const at = millis(time);
  if (!at) return '–';
  const date = new Date(at);
  const two = (number) => String(number).padStart(2, '0');
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${clock(at)}`;
}

/** The time of day alone. */
export function clock(ms) {
  const date = new Date(ms);
  const two = (number) => String(number).padStart(2, '0');
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Nanoseconds of a call: `1.3 ms`. */
export function nanos(count) {
  if (count === null || count === undefined) return '–';
  if (count < 1e6) return `${Math.round(count / 1e3)} µs`;
  return count < 1e9 ? `${(count / 1e6).toFixed(1)} ms` : `${(count / 1e9).toFixed(1)} s`;
}

export const percent = (value) => (value === null || value === undefined ? '–' : `${Math.round(value)} %`);
export const short = (id) => String(id).slice(0, 8);
export const many = (count, one, more = `${one}s`) => `${count.toLocaleString('en')} ${count === 1 ? one : more}`;

/** What is good, busy, a warning, bad, or at rest; for colours. */
const TONES = {
  ok: ['running', 'healthy', 'ready', 'successful', 'loaded', 'in use', 'eligible', 'up', 'passing', 'live'],
  busy: ['pending', 'starting', 'reading', 'stopping', 'initializing', 'paused', 'blocked', 'draining', 'waiting', 'proving', 'restarting'],
  warn: ['unknown', 'undetected', 'stale', 'ineligible', 'degraded', 'needs promotion', 'backing off', 'lost'],
  bad: ['failed', 'unhealthy', 'quarantined', 'down', 'refused', 'dead failed', 'critical', 'crashed'],
};

/** @param {string} state */
export function tone(state) {
  const found = Object.entries(TONES).find(([, states]) => states.includes(state));
  return found ? found[0] : 'rest';
}

// As `is_hidden_char` in runtime/base/model/src/printable.rs; tabs and ends of lines stay.
const HIDES = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/u;
const ALL_THAT_HIDES = new RegExp(HIDES.source, 'gu');

/** A text in which nothing is hidden and nothing turned: what would be is written as `\u{202e}`. */
export function visible(text) {
  if (!HIDES.test(text)) return text;
  return text.replace(ALL_THAT_HIDES, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** A text without the control sequences of terminals, which a list of lines cannot follow. */
export function plain(text) {
  return text.replace(/\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])/g, '')
    .replace(/[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]/g, '');
}
