// Output of a task, as it comes.

import { html, useEffect, useRef, useState } from '../html.js';
import { pieces } from '../api.js';
import { plain, visible } from '../format.js';
import { Trouble } from '../parts.js';

/** Bytes of the past that are read at first. */
const BEFORE = 64 * 1024;
/** Characters that are kept on the page: the oldest go first. */
const KEPT = 1_000_000;

export function Logs({ id, tasks, task, choose }) {
  const [kind, setKind] = useState('stdout');
  const [follows, setFollows] = useState(true);
  const [wrap, setWrap] = useState(true);
  return html`
    <div class="tools">
      <label class="inline">Task <select value=${task} onChange=${(event) => choose(event.target.value)}>${tasks.map((name) => html`<option key=${name}>${name}</option>`)}</select></label>
      <label class="inline">Output <select value=${kind} onChange=${(event) => setKind(event.target.value)}><option>stdout</option><option>stderr</option></select></label>
      <label class="inline"><input type="checkbox" checked=${follows} onChange=${(event) => setFollows(event.target.checked)} /> Follow</label>
      <label class="inline"><input type="checkbox" checked=${wrap} onChange=${(event) => setWrap(event.target.checked)} /> Wrap lines</label>
    </div>
    <${Output} key=${`${task} ${kind}`} id=${id} task=${task} kind=${kind} follows=${follows} unfollow=${() => setFollows(false)} wrap=${wrap} />`;
}

/** The text itself: appended, never made anew. */
function Output({ id, task, kind, follows, unfollow, wrap }) {
  const box = useRef(null);
  const end = useRef(follows);
  const [state, set] = useState({ text: 'Reading …' });
  const [round, setRound] = useState(0);
  end.current = follows;
  useEffect(() => {
    const abort = new AbortController();
    const view = box.current;
    view.replaceChildren();
    let kept = 0;
    const put = (text) => {
      const shown = visible(plain(text));
      if (!shown) return;
      view.append(document.createTextNode(shown));
      kept += shown.length;
      while (kept > KEPT && view.childNodes.length > 1) {
        kept -= view.firstChild.length;
        view.firstChild.remove();
      }
      if (end.current) view.scrollTop = view.scrollHeight;
    };
    (async () => {
      const query = { task, type: kind, follow: true, plain: true, origin: 'end', offset: BEFORE };
      set({ text: 'Waiting for output …' });
      for await (const piece of pieces(`v1/client/fs/logs/${id}`, query, abort.signal)) {
        put(piece);
        set((old) => (old.text ? {} : old));
      }
      set({ text: kept ? 'The task is over: this is all of its output that is kept.' : 'The task is over, and wrote nothing.' });
    })().catch((error) => { if (!abort.signal.aborted) set({ error }); });
    return () => abort.abort();
  }, [id, task, kind, round]);
  useEffect(() => { if (follows) box.current.scrollTop = box.current.scrollHeight; }, [follows]);
  const scrolled = () => {
    const view = box.current;
    // Who scrolls up wants to read.
    if (end.current && view.scrollTop + view.clientHeight < view.scrollHeight - 60) unfollow();
  };
  return html`
    <pre class=${wrap ? 'log wrap' : 'log'} ref=${box} tabindex="0" role="log" aria-label=${`${kind} of ${task}`} onWheel=${scrolled} onKeyUp=${scrolled}></pre>
    <p class="quiet" role="status">${state.text ?? ''}</p>
    ${state.error && html`<${Trouble} error=${state.error} again=${() => setRound((count) => count + 1)} />`}`;
}
