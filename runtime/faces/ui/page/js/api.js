// The agent's API: one question, or a stream of lines.

import { API } from './place.js';

/** Why something did not work: what, the cause, and the next step. */
export class Problem extends Error {
  /** @param {string} text @param {{status?: number, next?: string}} more */
  constructor(text, { status = 0, next = '' } = {}) {
    super(text);
    this.status = status;
    this.next = next;
  }
}

/** Only this tab knows the token, and forgets it when it is closed. */
const TOKEN = 'ostler-token';
export const token = () => sessionStorage.getItem(TOKEN) ?? '';
export function setToken(text) {
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
}

let denied = () => {};
/** Whom to tell that a token is needed, or may not do something. */
export const onDenied = (listener) => { denied = listener; };

/** The address of a path of the API. Each `undefined` in the query is left out. */
export function address(path, query = {}) {
  const url = new URL(path.replace(/^\//, ''), API);
  for (const [key, value] of Object.entries(query)) {
    if (value !== undefined) url.searchParams.set(key, value);
  }
  return url;
}

const NEXT = {
  401: 'Give a token: the button is at the lower left.',
  403: 'Give a token that may do this: the button is at the lower left.',
  404: 'It may have gone meanwhile: go back to the list.',
  409: 'It changed meanwhile: look at it again, then repeat.',
  429: 'Wait a moment, then repeat.',
  503: 'The agent is starting or busy: wait a moment, then repeat.',
};

/** Longest that a question takes: some wait for a plugin or for a task to end. */
const PATIENCE_MS = 75_000;

/** The words of a refusal, whatever form they have. */
function wordsOf(text, status) {
  const words = text.trim().slice(0, 2000);
  return words || `the agent answered ${status} without a reason`;
}

/**
 * Ask, and get the answer itself.
 * @param {string} method @param {string} path
 * @param {{query?: object, body?: unknown, signal?: AbortSignal, quiet?: boolean}} more `quiet`: a refusal asks for no token.
 * @returns {Promise<Response>}
 */
export async function send(method, path, { query, body, signal, quiet } = {}) {
  const headers = {};
  if (token()) headers['X-Nomad-Token'] = token();
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const text = body === undefined ? undefined : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(address(path, query), { method, headers, body: text, signal, cache: 'no-store' });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem('the agent does not answer', { next: 'Is it running? The page tries again by itself.' });
  }
  if (answer.ok) return answer;
  const problem = new Problem(wordsOf(await answer.text(), answer.status), { status: answer.status, next: NEXT[answer.status] });
  if (!quiet && (answer.status === 401 || answer.status === 403)) denied(problem);
  throw problem;
}

/** Ask for JSON. */
export async function ask(method, path, more = {}) {
  const patience = AbortSignal.timeout(PATIENCE_MS);
  const signal = more.signal ? AbortSignal.any([more.signal, patience]) : patience;
  try {
    const answer = await send(method, path, { ...more, signal });
    const text = await answer.text();
    return text ? JSON.parse(text) : null;
  } catch (error) {
    if (!patience.aborted || more.signal?.aborted) throw error;
    throw new Problem(`no answer came in ${PATIENCE_MS / 1000} seconds`, { next: 'The agent may be busy. A browser has six connections to one address: close other windows of this page.' });
  }
}

export const get = (path, query, signal) => ask('GET', path, { query, signal });

/** A list and the index it was read at. */
export async function list(path, query, signal) {
  const answer = await send('GET', path, { query, signal });
  const index = Number(answer.headers.get('x-nomad-index') ?? 0);
  return { rows: (await answer.json()) ?? [], index, next: answer.headers.get('x-nomad-nexttoken') };
}

/**
 * Pieces of a streamed answer as text. Ends with a `Problem` when nothing came for `silence` ms, of 0 never.
 * @returns {AsyncGenerator<string>}
 */
export async function* pieces(path, query, signal, silence = 0) {
  const own = new AbortController();
  const stop = () => own.abort();
  signal?.addEventListener('abort', stop);
  let timer;
  let silent = false;
  const again = () => {
    clearTimeout(timer);
    if (silence) timer = setTimeout(() => { silent = true; stop(); }, silence);
  };
  try {
    again();
    const answer = await send('GET', path, { query, signal: own.signal });
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      again();
      yield decoder.decode(value, { stream: true });
    }
  } catch (error) {
    if (silent) throw new Problem('the connection went silent');
    throw error instanceof Problem || signal?.aborted ? error : new Problem('the connection was cut');
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener('abort', stop);
    stop();
  }
}

/** A streamed answer line by line, each JSON. */
export async function* lines(path, query, signal, silence) {
  let rest = '';
  for await (const piece of pieces(path, query, signal, silence)) {
    const parts = (rest + piece).split('\n');
    rest = parts.pop();
    for (const part of parts) {
      if (part) yield JSON.parse(part);
    }
  }
}
