// From what a program writes to what it means: characters, controls and sequences (ECMA-48), in any pieces.
//
//   ground ─ ESC ─► escape ─ [ ─► sequence ─ final ─► ground
//                      │ ] P ^ _ X ─► text ─ BEL or ESC \ ─► ground: titles and the like, passed over
//                      └ 0x20-0x2f ─► … final
// Pure. Whatever comes, a sequence is bounded: one that is too long is passed over.

const LONG = 256;

export class Parser {
  /** @param {{print, control, escape, sequence}} to */
  constructor(to) {
    this.to = to;
    this.state = 'ground';
    this.held = '';
  }

  /** @param {string} text */
  feed(text) {
    for (const character of text) this.one(character, character.codePointAt(0));
  }

  one(character, code) {
    if (this.state === 'text') {
      // A long text is not kept: only its end matters.
      if (code === 7) this.state = 'ground';
      else if (code === 0x1b) this.state = 'text-end';
    } else if (this.state === 'text-end') {
      this.state = character === '\\' ? 'ground' : 'text';
    } else if (code === 0x1b) {
      this.state = 'escape';
      this.held = '';
    } else if (code === 0x18 || code === 0x1a) {
      this.state = 'ground';
    } else if (code < 0x20 || code === 0x7f) {
      this.to.control(code);
    } else if (this.state === 'ground') {
      this.to.print(character);
    } else if (this.state === 'escape') {
      this.escape(character, code);
    } else {
      this.sequence(character, code);
    }
  }

  escape(character, code) {
    if (code >= 0x20 && code <= 0x2f) {
      this.held += character;
      if (this.held.length > LONG) this.state = 'ground';
    } else if (!this.held && character === '[') this.state = 'sequence';
    else if (!this.held && ']P^_X'.includes(character)) this.state = 'text';
    else {
      this.state = 'ground';
      this.to.escape(this.held, character);
    }
  }

  sequence(character, code) {
    if (code >= 0x40 && code <= 0x7e) {
      this.state = 'ground';
      const [, prefix, numbers, between] = /^([<=>?]?)([0-9;:]*)([ -/]*)$/.exec(this.held) ?? [];
      if (numbers === undefined) return;
      const parts = numbers === '' ? [] : numbers.split(/[;:]/).slice(0, 32).map((part) => Math.min(9999, Number(part || 0)));
      this.to.sequence(prefix, parts, between, character);
    } else {
      this.held += character;
      if (this.held.length > LONG) this.state = 'ground';
    }
  }
}
