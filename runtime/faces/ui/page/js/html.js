// What every view is made with: Preact's elements from tagged texts (htm), and its hooks. A text that is put into
// an element this way is a text node: what comes from guests never becomes HTML, and nothing in it is hidden.

import { h, render } from '../vendor/preact.js';
import htm from '../vendor/htm.js';
import { visible } from './format.js';

export { render };
export { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useReducer, useRef, useState } from '../vendor/preact-hooks.js';

const shown = (child) => (typeof child === 'string' ? visible(child) : Array.isArray(child) ? child.map(shown) : child);

/** Attributes that people read. */
const READ = ['title', 'aria-label', 'aria-valuetext'];

function element(type, props, ...children) {
  if (typeof type === 'string' && props) {
    for (const name of READ) if (typeof props[name] === 'string') props = { ...props, [name]: visible(props[name]) };
  }
  return h(type, props, ...children.map(shown));
}

export const html = htm.bind(element);

/** Classes that hold, as one text: `classes('a', wide && 'b')`. */
export const classes = (...names) => names.filter(Boolean).join(' ');
