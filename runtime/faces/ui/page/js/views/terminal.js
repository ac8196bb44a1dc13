// A terminal into a task: a command with a terminal of its own, over a WebSocket.
//
//   keys ──► bytes ─► {"stdin":{"data"}} ──► socket ──► the command
//   screen ◄── Screen ◄── {"stdout":{"data"}} ◄─────────┘
//   size of the box ─► {"tty_size"}         close: 1000, or why not

import { html, useEffect, useRef, useState } from '../html.js';
import { address, token } from '../api.js';
import { Empty } from '../parts.js';
import { bytesOf } from '../vt/keys.js';
import { Painter } from '../vt/painter.js';
import { Screen } from '../vt/screen.js';

export function Terminal({ id, tasks, task, running, choose }) {
  const [command, setCommand] = useState('/bin/sh');
  const [session, setSession] = useState(0);
  const begin = (event) => { event.preventDefault(); setSession((count) => count + 1); };
  return html`
    <form class="tools" onSubmit=${begin}>
      <label class="inline">Task <select value=${task} onChange=${(event) => choose(event.target.value)}>${tasks.map((name) => html`<option key=${name}>${name}</option>`)}</select></label>
      <label class="inline">Command <input class="mono" value=${command} onInput=${(event) => setCommand(event.target.value)} required spellcheck=${false} autocomplete="off" /></label>
      <button class="primary" data-open-terminal disabled=${!running}>${session ? 'Begin again' : 'Open'}</button>
      <span class="quiet">It runs as the task does. Leave it with Ctrl+Shift+Esc.</span>
    </form>
    ${session > 0 ? html`<${Session} key=${session} id=${id} task=${task} command=${command.trim().split(/\s+/)} />`
      : html`<${Empty} title=${running ? 'No command runs yet' : 'The task does not run'}><p>${running ? 'Open one: it ends when this view is left.' : 'A command runs only inside a task that runs.'}</p></${Empty}>`}`;
}

const encode = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(''));
const decode = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

function Session({ id, task, command }) {
  const box = useRef(null);
  const [ended, setEnded] = useState('');
  useEffect(() => {
    const painter = new Painter(box.current);
    const screen = new Screen(...painter.size());
    const url = address(`v1/client/allocation/${id}/exec`, { task, tty: true, ws_handshake: true, command: JSON.stringify(command) });
    url.protocol = url.protocol === 'https:' ? 'wss:' : 'ws:';
    const socket = new WebSocket(url);
    const say = (frame) => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(frame)); };
    const write = (bytes) => { if (bytes.length) say({ stdin: { data: encode(bytes) } }); };
    const text = new TextEncoder();
    screen.answer = (reply) => write(text.encode(reply));
    const resize = () => {
      const [rows, columns] = painter.size();
      if (rows === screen.rows && columns === screen.columns) return;
      screen.resize(rows, columns);
      painter.paint(screen);
      say({ tty_size: { height: rows, width: columns } });
    };
    let code = null;
    socket.onopen = () => {
      say({ version: 1, auth_token: token() });
      say({ tty_size: { height: screen.rows, width: screen.columns } });
      painter.focus();
    };
    socket.onmessage = ({ data }) => {
      const frame = JSON.parse(data);
      for (const part of [frame.stdout, frame.stderr]) if (part?.data) screen.write(decode(part.data));
      if (frame.exited) code = frame.result?.exit_code ?? 0;
      painter.paint(screen);
    };
    socket.onclose = ({ reason, code: why }) => setEnded(code !== null ? `The command ended with exit code ${code}.`
      : reason ? `Refused: ${reason}` : why === 1000 ? 'The command ended.' : 'The connection was cut: is the task still there? A token may be missing.');
    const typed = (event) => {
      if (event.key === 'Escape' && event.ctrlKey && event.shiftKey) { document.querySelector('.tools button')?.focus(); return; }
      const bytes = bytesOf(event, screen.modes);
      if (!bytes) return;
      event.preventDefault();
      write(text.encode(bytes));
    };
    const pasted = (event) => {
      event.preventDefault();
      const given = event.clipboardData.getData('text').replace(/\r?\n/g, '\r');
      write(text.encode(screen.modes.paste ? `\x1b[200~${given}\x1b[201~` : given));
    };
    painter.input.addEventListener('keydown', typed);
    painter.input.addEventListener('paste', pasted);
    const composed = (event) => { write(text.encode(event.data ?? '')); painter.input.value = ''; };
    painter.input.addEventListener('compositionend', composed);
    const seen = new ResizeObserver(resize);
    seen.observe(box.current);
    painter.paint(screen);
    return () => {
      seen.disconnect();
      socket.onclose = null;
      socket.close();
      painter.end();
    };
  }, []);
  return html`<div class="terminal" ref=${box} data-keys role="group" aria-label=${`Terminal in ${task}`}></div>
    <p class="quiet" role="status">${ended}</p>`;
}
