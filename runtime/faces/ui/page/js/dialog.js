// Questions before something is done, and short notes after it. One dialog at a time.

import { html, useEffect, useRef, useState } from './html.js';
import { One, useTables } from './store.js';

const open = new One();
const notes = new One();

/**
 * Ask before something is done.
 * @param {{title: string, text: any, action: string, danger?: boolean, done?: string,
 *   fields?: {name: string, label: string, value?: any, type?: string, min?: number}[],
 *   run: (values: object) => Promise<any>}} question
 */
export const confirm = (question) => open.put(question);

/** Say something that needs no answer. */
export const note = (text) => notes.put({ text, at: Date.now() });

/** Where dialogs appear. */
export function Dialogs() {
  useTables(open, notes);
  const question = open.value;
  return html`
    ${question && html`<${Question} key=${question.title} of=${question} close=${() => open.put(null)} />`}
    <${Notes} />`;
}

function Question({ of, close }) {
  const dialog = useRef(null);
  const first = Object.fromEntries((of.fields ?? []).map((field) => [field.name, field.value ?? '']));
  const [values, setValues] = useState(first);
  const [state, setState] = useState({ busy: false, error: null });
  useEffect(() => { dialog.current.showModal(); }, []);
  const run = async (event) => {
    event.preventDefault();
    if (state.busy) return;
    setState({ busy: true, error: null });
    try {
      await of.run(values);
      if (of.done) note(of.done);
      close();
    } catch (error) {
      setState({ busy: false, error });
    }
  };
  const change = (field) => (event) => {
    const input = event.target;
    const value = field.type === 'checkbox' ? input.checked : field.type === 'number' ? Number(input.value) : input.value;
    setValues((old) => ({ ...old, [field.name]: value }));
  };
  const input = (field) => (field.type === 'checkbox'
    ? html`<label class="check" key=${field.name}><input type="checkbox" name=${field.name} checked=${values[field.name]} onChange=${change(field)} /> ${field.label}</label>`
    : html`<label class="field" key=${field.name}>${field.label}
        <input name=${field.name} type=${field.type ?? 'text'} min=${field.min} value=${values[field.name]} required=${field.required}
          autocomplete="off" spellcheck=${false} onInput=${change(field)} /></label>`);
  return html`<dialog ref=${dialog} aria-labelledby="dialog-title" onClose=${close} onCancel=${close}>
    <form method="dialog" onSubmit=${run}>
      <h2 id="dialog-title">${of.title}</h2>
      <div class="dialog-text">${of.text}</div>
      ${(of.fields ?? []).map(input)}
      ${state.error && html`<div class="trouble" role="alert"><p class="trouble-cause">${state.error.message}</p>${state.error.next && html`<p>${state.error.next}</p>`}</div>`}
      <div class="dialog-actions">
        <button type="button" onClick=${close}>Cancel</button>
        <button type="submit" class=${of.danger ? 'danger' : 'primary'} disabled=${state.busy} data-confirm>${state.busy ? 'Working …' : of.action}</button>
      </div>
    </form>
  </dialog>`;
}

/** The last note, for a while; read out. */
function Notes() {
  const said = notes.value;
  const [, again] = useState(0);
  useEffect(() => {
    if (!said) return undefined;
    const timer = setTimeout(() => again((count) => count + 1), 6100);
    return () => clearTimeout(timer);
  }, [said]);
  const fresh = said && Date.now() - said.at < 6000;
  return html`<div class="notes" role="status" aria-live="polite">${fresh && html`<p class="note">${said.text}</p>`}</div>`;
}
