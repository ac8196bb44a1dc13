// What a key sends to a terminal (VT220 and xterm's usual ones). Pure.

const CURSOR = { ArrowUp: 'A', ArrowDown: 'B', ArrowRight: 'C', ArrowLeft: 'D', Home: 'H', End: 'F' };
const TILDE = { Insert: 2, Delete: 3, PageUp: 5, PageDown: 6, F5: 15, F6: 17, F7: 18, F8: 19, F9: 20, F10: 21, F11: 23, F12: 24 };
const PF = { F1: 'P', F2: 'Q', F3: 'R', F4: 'S' };
const PLAIN = { Enter: '\r', Backspace: '\x7f', Tab: '\t', Escape: '\x1b' };

/**
 * @param {KeyboardEvent} event @param {{cursorKeys: boolean}} modes
 * @returns {string | null} null: the browser keeps the key.
 */
export function bytesOf(event, modes) {
  if (event.isComposing || event.metaKey) return null;
  const { key, ctrlKey: ctrl, altKey: alt, shiftKey: shift } = event;
  // Copy and paste stay the browser's.
  if (ctrl && shift && ['C', 'V', 'I'].includes(key.toUpperCase())) return null;
  const modified = 1 + (shift ? 1 : 0) + (alt ? 2 : 0) + (ctrl ? 4 : 0);
  if (key in CURSOR) {
    if (modified > 1) return `\x1b[1;${modified}${CURSOR[key]}`;
    return (modes.cursorKeys ? '\x1bO' : '\x1b[') + CURSOR[key];
  }
  if (key in TILDE) return modified > 1 ? `\x1b[${TILDE[key]};${modified}~` : `\x1b[${TILDE[key]}~`;
  if (key in PF) return `\x1bO${PF[key]}`;
  if (key === 'Tab' && shift) return '\x1b[Z';
  const prefix = alt ? '\x1b' : '';
  if (key in PLAIN) return prefix + PLAIN[key];
  if (key.length !== 1) return null;
  if (!ctrl) return prefix + key;
  const code = key.toUpperCase().charCodeAt(0);
  if (key === ' ') return `${prefix}\0`;
  if (code >= 64 && code <= 95) return prefix + String.fromCharCode(code - 64);
  return key === '?' ? '\x7f' : null;
}
