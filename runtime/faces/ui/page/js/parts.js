// Small things that views are made of.

import { classes, html, useEffect, useRef, useState } from './html.js';
import { ago, moment, tone, visible } from './format.js';
import { feed, useTables, useTick } from './store.js';

/** A state by its word and, beside it, its colour and shape. */
export function Status({ state, title }) {
  return html`<span class=${classes('status', tone(state))} title=${title}><i aria-hidden="true"></i>${state}</span>`;
}

/** Something of a whole, as a bar and in words. */
export function Meter({ label, value, max, text }) {
  const share = max > 0 ? Math.min(100, (100 * value) / max) : 0;
  const level = share > 95 ? 'bad' : share > 80 ? 'warn' : 'ok';
  return html`<div class="meter">
    <span class="meter-label">${label}</span>
    <span class=${classes('bar', level)} role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100"
      aria-valuenow=${Math.round(share)} aria-valuetext=${text}><i style=${{ width: `${share}%` }}></i></span>
    <span class="meter-text">${text}</span>
  </div>`;
}

/** Nothing is there: says what to do. */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p><div>${children}</div></div>`;
}

const UNKNOWN = {
  denied: ['Nothing may be seen', 'Give a token that may: the button is at the lower left.'],
  lost: ['The agent does not answer', 'The page tries again by itself. Is the agent running?'],
};

/** That nothing is there is said only when that is known. */
export function WhenKnown({ children }) {
  useTables(feed);
  const state = feed.value?.state;
  if (state === 'live') return children;
  const [title, next] = UNKNOWN[state] ?? [];
  return title ? html`<${Empty} title=${title}><p>${next}</p></${Empty}>` : html`<${Empty} title="Reading …" />`;
}

/** What went wrong: the cause and the next step. */
export function Trouble({ error, again }) {
  return html`<div class="trouble" role="alert">
    <p class="trouble-title">That did not work</p>
    <p class="trouble-cause">${error.message}</p>
    ${error.next && html`<p>${error.next}</p>`}
    ${again && html`<button onClick=${again}>Try again</button>`}
  </div>`;
}

export const Loading = ({ what }) => html`<p class="quiet" aria-busy="true">Reading ${what} …</p>`;

/** In place of what the token may not see. */
export const Refused = ({ why }) => html`<${Trouble} error=${{ message: why, next: 'Jobs and allocations that the token may see are at the left. For the node itself it needs read in all namespaces.' }} />`;

/** Names and values: `[[name, value], …]`; what has no value is left out. */
export function Facts({ of }) {
  const shown = of.filter(([, value]) => value !== undefined && value !== null && value !== '');
  return html`<dl class="facts">${shown.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

export function Panel({ title, side, children, ...rest }) {
  return html`<section class="panel" ...${rest}>
    ${(title || side) && html`<header><h2>${title}</h2>${side}</header>`}
    ${children}
  </section>`;
}

/** How long ago, kept right. */
export function Ago({ time }) {
  useTick(5000);
  return html`<time title=${moment(time)}>${ago(time)}</time>`;
}

/** Heading of a view, with what can be done. */
export function Heading({ title, state, under, children }) {
  useEffect(() => { document.title = `${visible(title)} · Ostler`; }, [title]);
  return html`<header class="heading">
    <div><h1 tabindex="-1">${title}</h1>${state && html` <${Status} state=${state} />`}${under && html`<p class="quiet">${under}</p>`}</div>
    <div class="actions">${children}</div>
  </header>`;
}

/** Tabs: `[[name, title], …]`. The arrows move between them. */
export function Tabs({ tabs, now, choose, label }) {
  const list = useRef(null);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (tabs.findIndex(([name]) => name === now) + step + tabs.length) % tabs.length;
    choose(tabs[next][0]);
    list.current.children[next].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} ref=${list} onKeyDown=${move}>
    ${tabs.map(([name, title]) => html`<button key=${name} role="tab" aria-selected=${String(name === now)}
      tabindex=${name === now ? 0 : -1} onClick=${() => choose(name)}>${title}</button>`)}
  </div>`;
}

/**
 * Something read once for a view, again when `keys` change or it is asked for. Not again and again.
 * @returns {{value: any, error: any, again: () => void}}
 */
export function useRead(read, keys) {
  const [state, set] = useState({ value: undefined, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    read(abort.signal).then(
      (value) => { if (!abort.signal.aborted) set({ value, error: null }); },
      (error) => { if (!abort.signal.aborted) set((old) => ({ ...old, error })); },
    );
    return () => abort.abort();
  }, [...keys, round]);
  return { ...state, again: () => setRound((count) => count + 1) };
}
