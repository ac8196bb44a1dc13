// What the page knows: tables that the feed fills and views follow.
//
//   feed ── set, drop, replace ──► Table ── at most each PAINT_MS ──► views that follow it
//
// A view is told that a table changed, not what: it reads the few rows it shows. A row is replaced, never changed,
// so that an unchanged row is known by its identity.

import { useEffect, useReducer } from './html.js';

/** Shortest time from one painting to the next: bursts of events become one. */
const PAINT_MS = 120;

const dirty = new Set();
let timer = 0;
function flush() {
  timer = 0;
  const tables = [...dirty];
  dirty.clear();
  const listeners = new Set(tables.flatMap((table) => [...table.listeners]));
  listeners.forEach((listener) => listener());
}

/** @template Row */
export class Table {
  constructor() {
    /** @type {Map<string, Row>} */
    this.rows = new Map();
    this.version = 0;
    this.listeners = new Set();
    this.kept = { version: -1, of: null, rows: [] };
  }

  changed() {
    this.version += 1;
    dirty.add(this);
    timer ||= setTimeout(flush, PAINT_MS);
  }

  get(key) {
    return this.rows.get(key);
  }

  get size() {
    return this.rows.size;
  }

  set(key, row) {
    this.rows.set(key, row);
    this.changed();
  }

  drop(key) {
    if (this.rows.delete(key)) this.changed();
  }

  /** All rows anew. */
  replace(pairs) {
    this.rows = new Map(pairs);
    this.changed();
  }

  all() {
    return [...this.rows.values()];
  }
}

/** A table with one row: something there is once. */
export class One extends Table {
  get value() {
    return this.rows.get('one');
  }

  put(value) {
    this.set('one', value);
  }
}

/** Keyed by `namespace/id`; ids of allocations, devices and plugins stand alone. */
export const jobs = new Table();
export const allocs = new Table();
export const deployments = new Table();
export const devices = new Table();
export const plugins = new Table();
export const node = new One();
export const use = new One();
/** How the feed is: `{state, text}`. */
export const feed = new One();
/** Use over time, oldest first: `[seconds, cpu percent, memory percent]`. */
export const history = [];

/** Seconds of it that are kept. */
const HISTORY_MAX = 1800;

export function remember(seconds, cpu, memory) {
  history.push([seconds, cpu, memory]);
  if (history.length > HISTORY_MAX) history.splice(0, history.length - HISTORY_MAX);
}

/** Paint this view again when one of these tables changed. */
export function useTables(...tables) {
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    tables.forEach((table) => table.listeners.add(again));
    return () => tables.forEach((table) => table.listeners.delete(again));
  }, []);
}

/** Paint this view again every so often: for what says how long ago something was. */
export function useTick(ms) {
  const [, again] = useReducer((count) => count + 1, 0);
  useEffect(() => {
    const ticking = setInterval(() => { if (!document.hidden) again(); }, ms);
    return () => clearInterval(ticking);
  }, []);
}

// Who wants each change of one thing as it was told, with all its fields.
const followers = new Map();

/** @returns {() => void} Ends it. */
export function follow(key, listener) {
  const own = followers.get(key) ?? new Set();
  own.add(listener);
  followers.set(key, own);
  return () => {
    own.delete(listener);
    if (!own.size) followers.delete(key);
  };
}

export const told = (key, value) => followers.get(key)?.forEach((listener) => listener(value));
