// What every view is made with: Preact's elements from tagged texts (htm), and its hooks. A text that is put into
// an element this way is a text node: what comes from guests never becomes HTML.

import { h, render } from '../vendor/preact.js';
import htm from '../vendor/htm.js';

export { render };
export { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useReducer, useRef, useState } from '../vendor/preact-hooks.js';

export const html = htm.bind(h);

/** Classes that hold, as one text: `classes('a', wide && 'b')`. */
export const classes = (...names) => names.filter(Boolean).join(' ');
