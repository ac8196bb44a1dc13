// What keeps the tables up to date.
//
//   begin ─► read lists ─► follow events from their index, and the node ─┐ ends, or is silent
//     ▲                                                                  │
//     └── a pause, longer each time ◄──────────── "read again" ◄─────────┘
//
// Nothing is asked again and again: one stream tells of changes. A tab that nobody sees for a while lets go of
// it, and begins anew when it is seen.

import { get, lines, list } from './api.js';
import * as store from './store.js';
import { allocRow, jobKey, jobRow } from './rows.js';

/** Signs of life come each second. */
const SILENCE_MS = 30_000;
/** How often the use of a machine that says nothing of it is drawn on. */
const REMEMBER_MS = 10_000;
const PAGE = 500;
const PAUSE_MAX_MS = 15_000;
/** A browser has six connections to one address, for all its tabs: one that nobody sees gives its own back. */
const HIDDEN_MS = 5_000;

const say = (state, text = '') => store.feed.put({ state, text, at: Date.now() });

let current = null;
let pausing = null;
let readAgain = () => {};

/** Let go of the stream and begin anew, at once. */
export function restart() {
  current?.abort();
  pausing?.();
}

// A page that was left, and may be shown again by the browser as it was, keeps no connection.
let left = null;
addEventListener('pagehide', () => {
  left ??= new Promise((resolve) => addEventListener('pageshow', resolve, { once: true }));
  restart();
});

/** Never ends. */
export async function run() {
  let failures = 0;
  for (;;) {
    await left;
    left = null;
    current = new AbortController();
    try {
      say('reading', store.jobs.size ? 'reading again' : 'reading');
      await follow(current.signal, () => { failures = 0; });
    } catch (error) {
      if (current.signal.aborted) continue;
      current.abort();
      failures += 1;
      const pause = Math.min(PAUSE_MAX_MS, 500 * 2 ** Math.min(failures, 6)) * (0.75 + Math.random() / 2);
      if (error?.status === 401 || error?.status === 403) say('denied', error.message);
      else say('lost', `${error?.message ?? error}; reading again soon`);
      await rest(error?.status === 401 || error?.status === 403 ? PAUSE_MAX_MS * 20 : pause);
    }
    if (document.hidden) {
      say('asleep', 'nobody looked; reads again when somebody does');
      await seen();
    }
  }
}

const rest = (ms) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms);
  pausing = () => { clearTimeout(timer); resolve(); };
});

const seen = () => new Promise((resolve) => {
  if (!document.hidden) resolve();
  else document.addEventListener('visibilitychange', resolve, { once: true });
});

/** Lists, then the stream, until it ends. */
async function follow(signal, works) {
  const index = await readLists(signal);
  works();
  say('live');
  const own = new AbortController();
  signal.addEventListener('abort', () => own.abort());
  let timer;
  const hidden = () => {
    clearTimeout(timer);
    if (document.hidden) timer = setTimeout(() => own.abort(), HIDDEN_MS);
  };
  document.addEventListener('visibilitychange', hidden);
  hidden();
  try {
    await Promise.race([events(index, own.signal), asked()]);
  } catch (error) {
    if (!own.signal.aborted) throw error;
  } finally {
    clearTimeout(timer);
    document.removeEventListener('visibilitychange', hidden);
    own.abort();
  }
}

/** Ends when the lists have to be read again. */
const asked = () => new Promise((resolve) => { readAgain = resolve; });

/** The index that all lists are at least at. */
async function readLists(signal) {
  const all = { namespace: '*' };
  const [jobs, deployments, first] = await Promise.all([
    list('v1/jobs', all, signal),
    list('v1/deployments', all, signal),
    list('v1/allocations', { ...all, resources: true, per_page: PAGE }, signal),
  ]);
  store.jobs.replace(jobs.rows.map((job) => [jobKey(job.ID, job.Namespace), jobRow(job, store.jobs.get(jobKey(job.ID, job.Namespace)))]));
  store.deployments.replace(deployments.rows.map((one) => [one.ID, one]));
  // The first page is shown at once; what is not on any page is gone.
  const seenIds = new Set();
  for (let page = first; ; page = await list('v1/allocations', { ...all, resources: true, per_page: PAGE, next_token: page.next }, signal)) {
    for (const alloc of page.rows) {
      seenIds.add(alloc.ID);
      store.allocs.set(alloc.ID, allocRow(alloc, store.allocs.get(alloc.ID)));
    }
    if (!page.next) break;
    say('reading', `reading: ${seenIds.size.toLocaleString('en')} allocations`);
  }
  for (const id of store.allocs.rows.keys()) if (!seenIds.has(id)) store.allocs.drop(id);
  return Math.min(jobs.index, deployments.index, first.index);
}

async function events(index, signal) {
  const query = { namespace: '*', topic: '*', index: index || undefined, live: true };
  let moments = false;
  let told = 0;
  for await (const line of lines('v1/event/stream', query, signal, SILENCE_MS)) {
    for (const event of line.Events ?? []) take(event);
    const now = Date.now();
    if (line.Live) {
      // The node needs a right of its own: who has it not sees jobs and allocations alone.
      moments = !line.Live.refused;
      if (moments) moment(line.Live);
      else store.node.put({ refused: line.Live.refused });
    } else if (!moments || now - told < REMEMBER_MS) {
      continue;
    }
    // A machine at rest says nothing but a sign of life: what it used then it uses still.
    const used = store.use.value;
    if (!used) continue;
    told = now;
    store.remember(now / 1000, used.cpu_percent, used.memory_percent);
  }
  throw new Error('the stream ended');
}

/** One event. */
export function take(event) {
  const { Topic: topic, Payload: payload = {}, Key: key, Namespace: namespace } = event;
  if (topic === 'Job') {
    const own = jobKey(key, namespace);
    if (payload.Job) store.jobs.set(own, jobRow(payload.Job, store.jobs.get(own)));
    else store.jobs.drop(own);
    store.told(`job ${own}`, payload.Job);
  } else if (topic === 'Allocation' && payload.Allocation) {
    const alloc = payload.Allocation;
    const before = store.allocs.get(key) ?? { version: store.jobs.get(jobKey(alloc.JobID, namespace))?.version };
    store.allocs.set(key, allocRow(alloc, before));
    store.told(`alloc ${key}`, alloc);
  } else if (topic === 'Deployment' && payload.Deployment) {
    store.deployments.set(key, payload.Deployment);
  }
}

/** One line about the node. */
function moment(line) {
  if (line.node) store.node.put(line.node);
  if (line.use) {
    const used = line.use;
    const memory = used.memory_total_mb ? 100 * (1 - used.memory_available_mb / used.memory_total_mb) : 0;
    store.use.put({ ...used, memory_percent: memory });
  }
  for (const [table, entries] of [[store.devices, line.devices], [store.plugins, line.plugins]]) {
    for (const [key, value] of Object.entries(entries ?? {})) {
      if (value) table.set(key, value);
      else table.drop(key);
    }
  }
  for (const id of line.gone ?? []) {
    store.allocs.drop(id);
    store.told(`alloc ${id}`, null);
  }
  if (line.read_again) readAgain();
}

/** The node in full. */
export const readNode = (id, signal) => get(`v1/node/${id}`, {}, signal);
