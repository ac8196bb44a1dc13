// Files of an allocation: looked through, read as text, saved.

import { html, useState } from '../html.js';
import { get, send } from '../api.js';
import { note } from '../dialog.js';
import { bytes, moment, plain } from '../format.js';
import { Empty, Loading, Trouble, useRead } from '../parts.js';
import { List } from '../table.js';

/** Of a larger file, the first bytes are shown. */
const SHOWN = 256 * 1024;
/** Largest file that is saved from here: it is in memory first. */
const SAVED = 64 * 1024 * 1024;

const COLUMNS = (open) => [
  { key: 'name', title: 'Name', width: 'minmax(160px, 2fr)', sort: (file) => (file.IsDir ? '0' : '1') + file.Name, cell: (file) => html`<button class="link" onClick=${() => open(file)}>${file.Name}${file.IsDir ? '/' : ''}</button>` },
  { key: 'size', title: 'Size', width: '110px', end: true, sort: (file) => file.Size, cell: (file) => (file.IsDir ? '' : bytes(file.Size)) },
  { key: 'mode', title: 'Mode', width: '130px', cell: (file) => html`<span class="mono quiet">${file.FileMode}</span>` },
  { key: 'time', title: 'Changed', width: '180px', end: true, sort: (file) => file.ModTime, cell: (file) => html`<span class="quiet">${moment(file.ModTime)}</span>` },
];

export function Files({ id }) {
  const [path, setPath] = useState([]);
  const [file, setFile] = useState(null);
  const to = (next) => { setFile(null); setPath(next); };
  const open = (entry) => (entry.IsDir ? to([...path, entry.Name]) : setFile(entry));
  const crumbs = ['files', ...path];
  return html`
    <nav class="crumbs" aria-label="Directory">${crumbs.map((name, index) => html`<span key=${index}><button class="link" onClick=${() => to(path.slice(0, index))}>${name}</button> / </span>`)}${file && html`<b>${file.Name}</b>`}</nav>
    ${file ? html`<${FileText} id=${id} path=${[...path, file.Name].join('/')} file=${file} close=${() => setFile(null)} />`
      : html`<${Directory} key=${path.join('/')} id=${id} path=${path} open=${open} />`}`;
}

function Directory({ id, path, open }) {
  const read = useRead((signal) => get(`v1/client/fs/ls/${id}`, { path: `/${path.join('/')}` }, signal), [id, path.join('/')]);
  if (read.error) return html`<${Trouble} error=${read.error} again=${read.again} />`;
  if (!read.value) return html`<${Loading} what="the directory" />`;
  return html`<${List} label="Files" columns=${COLUMNS(open)} rows=${read.value} rowKey=${(entry) => entry.Name} order="name" open=${open} height="60vh"
    empty=${html`<${Empty} title="The directory is empty" />`} />`;
}

function FileText({ id, path, file, close }) {
  const read = useRead(async (signal) => {
    const stat = await get(`v1/client/fs/stat/${id}`, { path }, signal);
    if (stat.ContentType && !stat.ContentType.startsWith('text/')) return { stat, binary: true };
    const answer = await send('GET', `v1/client/fs/readat/${id}`, { query: { path, offset: 0, limit: SHOWN }, signal });
    return { stat, text: plain(await answer.text()) };
  }, [id, path]);
  const save = async () => {
    const answer = await send('GET', `v1/client/fs/cat/${id}`, { query: { path } });
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([await answer.blob()], { type: 'application/octet-stream' }));
    link.download = file.Name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  const size = read.value?.stat.Size ?? file.Size;
  return html`
    <div class="tools"><button onClick=${close}>Back</button>
      <button disabled=${size > SAVED} title=${size > SAVED ? 'larger than is saved from here: use ostler alloc fs' : ''} onClick=${() => save().catch((error) => note(`Not saved: ${error.message}`))}>Save …</button>
      <button onClick=${read.again}>Read again</button><span class="quiet">${bytes(size)}</span></div>
    ${read.error && html`<${Trouble} error=${read.error} again=${read.again} />`}
    ${!read.value && !read.error && html`<${Loading} what="the file" />`}
    ${read.value?.binary && html`<${Empty} title="This is no text"><p>Save it to look at it with another program.</p></${Empty}>`}
    ${read.value?.text !== undefined && html`<pre class="log wrap" tabindex="0" aria-label=${file.Name}>${read.value.text}</pre>`}
    ${size > SHOWN && read.value?.text !== undefined && html`<p class="quiet">The first ${bytes(SHOWN)} are shown.</p>`}`;
}
