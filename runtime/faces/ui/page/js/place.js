// Where the page is, and what its address shows.
//
// This file is at UI/assets/js/place.js, whatever prefix a proxy puts before it: everything else is found from here.

import { html, useReducer, useEffect } from './html.js';

/** The page: ends with `/ui/`. */
export const UI = new URL('../../', import.meta.url);
/** What the API's paths begin after. */
export const API = new URL('../', UI);

const listeners = new Set();
const tell = () => listeners.forEach((listener) => listener());
addEventListener('popstate', tell);

/** The address of a view: `at('jobs', 'web')`. Each part is encoded. */
export const at = (...parts) => UI.pathname + parts.map(encodeURIComponent).join('/');

/** The parts of the present address below the page, decoded. */
export function parts() {
  const below = location.pathname.startsWith(UI.pathname) ? location.pathname.slice(UI.pathname.length) : '';
  return below.split('/').filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
}

/** Show another view. */
export function go(...to) {
  const address = at(...to);
  if (address !== location.pathname) history.pushState(null, '', address);
  tell();
}

/** The parts of the address, as they change. */
export function usePlace() {
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    listeners.add(again);
    return () => listeners.delete(again);
  }, []);
  return parts();
}

/** A link to a view: also opens in another tab. */
export function Link({ to, children, ...rest }) {
  const follow = (event) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    go(...to);
  };
  return html`<a href=${at(...to)} onClick=${follow} ...${rest}>${children}</a>`;
}

/** How the address names a job: its id, and its namespace where that is not the default one. */
export const jobPart = (id, namespace) => (namespace && namespace !== 'default' ? `${id}@${namespace}` : id);

/** The same read back. */
export function readJobPart(part = '') {
  const cut = part.lastIndexOf('@');
  return cut > 0 ? { id: part.slice(0, cut), namespace: part.slice(cut + 1) } : { id: part, namespace: 'default' };
}
