// What is around every view: navigation, how the feed is, the token, light and dark, the list of shortcuts.

import { classes, html, useEffect, useRef, useState } from './html.js';
import { Problem, ask, setToken, token } from './api.js';
import { confirm } from './dialog.js';
import { restart } from './feed.js';
import { Link, go, usePlace } from './place.js';
import * as store from './store.js';

/** Views of the navigation: path, title, key after `g`. */
export const VIEWS = [
  ['', 'Node', 'n'],
  ['jobs', 'Jobs', 'j'],
  ['allocations', 'Allocations', 'a'],
  ['deployments', 'Deployments', 'd'],
  ['devices', 'Devices', 'v'],
  ['plugins', 'Plugins', 'p'],
];

const SHORTCUTS = [
  ['?', 'this list'], ['/', 'filter the list'], ['g then n, j, a, d, v, p', 'node, jobs, allocations, deployments, devices, plugins'],
  ['↑ ↓ or k j', 'move in a list'], ['Enter', 'open what is chosen'], ['Home, End, Page up, Page down', 'move far in a list'],
  ['← →', 'move between tabs'], ['l', 'go into the list'], ['t', 'light, dark, or as the system has it'], ['Esc', 'close, or leave the filter'],
];

const THEMES = ['system', 'light', 'dark'];
const stored = () => { try { return localStorage.getItem('ostler-theme') ?? 'system'; } catch { return 'system'; } };

/** Tell those who draw with colours of their own. */
export const themeChanged = new EventTarget();

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem('ostler-theme', theme); } catch { /* a browser that keeps nothing */ }
  themeChanged.dispatchEvent(new Event('change'));
}
applyTheme(stored());
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => themeChanged.dispatchEvent(new Event('change')));

/** What the agent says of the token that this tab has: the word at the button. */
const standing = new store.One();

/** Ask the agent who bears the token that is kept. Without one there is nothing to ask. */
async function look() {
  if (!token()) return standing.put(null);
  try {
    const own = await ask('GET', 'v1/acl/token/self', { quiet: true });
    return standing.put({ word: 'in use', name: own.Name });
  } catch (error) {
    const word = error.status === 400 ? 'not needed here' : error.status === 403 || error.status === 401 ? 'refused' : 'kept';
    return standing.put({ word, name: error.message });
  }
}

/** Ask for a token. */
export function askToken(why) {
  confirm({
    title: 'Token',
    text: html`${why && html`<p class="trouble-cause">${why}</p>`}<p>The token is kept for this tab alone, until it is closed. An empty one means none.</p>`,
    action: 'Use it',
    fields: [{ name: 'token', label: 'Secret ID of the token', type: 'password', value: '' }],
    run: async ({ token: text }) => {
      const before = token();
      setToken(text.trim());
      try {
        // One that is not known is said here, and that there are none.
        if (text.trim()) await ask('GET', 'v1/acl/token/self', { quiet: true });
      } catch (error) {
        setToken(before);
        if (error.status === 400) throw new Problem('this agent knows no tokens: whoever reaches it may do everything', { next: 'Its configuration would say acl { enabled = true }.' });
        throw error;
      } finally {
        look();
      }
      restart();
    },
  });
}

export function Shell({ children }) {
  const [view = ''] = usePlace();
  const [theme, setTheme] = useState(stored());
  const [help, setHelp] = useState(false);
  const turn = () => setTheme((old) => {
    const next = THEMES[(THEMES.indexOf(old) + 1) % THEMES.length];
    applyTheme(next);
    return next;
  });
  useShortcuts({ turn, help: () => setHelp(true) });
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.querySelector('main').focus(); }}>To the content</a>
    <div class="shell">
      <nav class="side" aria-label="Views">
        <div class="brand"><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" class="mark" /><path d="M9 24V15a7 7 0 0 1 14 0v9" class="arch" /></svg>Ostler</div>
        <ul>${VIEWS.map(([path, title]) => html`<li key=${path}><${Link} to=${path ? [path] : []} class=${classes('nav', path === view && 'now')}
          aria-current=${path === view ? 'page' : undefined}>${title}<${Count} of=${path} /></${Link}></li>`)}</ul>
        <div class="side-foot">
          <${Feed} />
          <${TokenButton} />
          <button class="quiet-button" onClick=${turn} data-theme-switch>Theme: ${theme}</button>
          <button class="quiet-button" onClick=${() => setHelp(true)}>Shortcuts ( ? )</button>
        </div>
      </nav>
      <main id="main" tabindex="-1">${children}</main>
    </div>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}`;
}

/** Which token is used: as the agent says it, not as the tab remembers it. */
function TokenButton() {
  store.useTables(standing, store.feed);
  const state = store.feed.value?.state;
  // Again when the agent answers again: it may be another one, or know the token no more.
  useEffect(() => { look(); }, [state === 'live', state === 'denied']);
  const { word, name } = (token() && standing.value) || {};
  return html`<button class="quiet-button" title=${name} onClick=${() => askToken('')} data-token>${word ? `Token ${word}` : token() ? 'Token kept' : 'Token'}</button>`;
}

const TABLES = { jobs: store.jobs, allocations: store.allocs, deployments: store.deployments, devices: store.devices, plugins: store.plugins };

function Count({ of }) {
  const table = TABLES[of];
  useCount(table);
  if (!table) return null;
  const count = of === 'devices' ? table.all().reduce((sum, group) => sum + group.instances.length, 0) : table.size;
  return html`<span class="count">${count.toLocaleString('en')}</span>`;
}

function useCount(table) {
  store.useTables(...(table ? [table] : []));
}

const WORDS = { live: 'live', reading: 'reading', lost: 'connection lost', denied: 'token needed', asleep: 'asleep' };

/** How up to date the page is; read out when it changes. */
function Feed() {
  store.useTables(store.feed);
  const { state = 'reading', text = '' } = store.feed.value ?? {};
  const kind = { live: 'ok', reading: 'busy', lost: 'bad', denied: 'bad', asleep: 'rest' }[state];
  return html`<div class="feed" role="status" aria-live="polite" data-feed=${state}>
    <span class=${classes('status', kind)}><i aria-hidden="true"></i>${WORDS[state]}</span>
    ${text && html`<span class="quiet feed-text">${text}</span>`}
    ${(state === 'lost' || state === 'denied') && html`<button onClick=${restart}>Read again now</button>`}
  </div>`;
}

function Help({ close }) {
  const dialog = useRef(null);
  useEffect(() => { dialog.current.showModal(); }, []);
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="help-title"><h2 id="help-title">Shortcuts</h2>
    <dl class="keys">${SHORTCUTS.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl>
    <div class="dialog-actions"><button autofocus onClick=${close}>Close</button></div>
  </dialog>`;
}

function useShortcuts({ turn, help }) {
  useEffect(() => {
    let prefix = 0;
    const pressed = (event) => {
      const target = event.target;
      const writes = target.closest?.('input,textarea,select,[data-keys]');
      if (event.key === 'Escape' && target.matches?.('[data-filter]')) target.blur();
      if (writes || document.querySelector('dialog[open]') || event.ctrlKey || event.metaKey || event.altKey) return;
      const after = Date.now() - prefix < 1500;
      prefix = 0;
      const view = after && VIEWS.find(([, , key]) => key === event.key);
      if (view) go(...(view[0] ? [view[0]] : []));
      else if (event.key === 'g') prefix = Date.now();
      else if (event.key === '?') help();
      else if (event.key === 't') turn();
      else if (event.key === '/') document.querySelector('[data-filter]')?.focus();
      else if (event.key === 'l') document.querySelector('.list')?.focus();
      else return;
      event.preventDefault();
    };
    addEventListener('keydown', pressed);
    return () => removeEventListener('keydown', pressed);
  }, []);
}
