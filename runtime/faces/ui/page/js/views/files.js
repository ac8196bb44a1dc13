// Files of an allocation: looked through, read as text, saved. The address names what is shown, so that the browser's
// own way back leads to the directory before.

import { html } from '../html.js';
import { get, send } from '../api.js';
import { note } from '../dialog.js';
import { bytes, moment, plain } from '../format.js';
import { Empty, Loading, Trouble, useRead } from '../parts.js';
import { Link, go } from '../place.js';
import { List } from '../table.js';

/** Of a larger file, the first bytes are shown. */
const SHOWN = 256 * 1024;
/** Largest file that is saved from here: it is in memory first. */
const SAVED = 64 * 1024 * 1024;

const COLUMNS = (to) => [
  { key: 'name', title: 'Name', width: 'minmax(160px, 2fr)', sort: (file) => (file.IsDir ? '0' : '1') + file.Name, cell: (file) => html`<${Link} to=${to(file)}>${file.Name}${file.IsDir ? '/' : ''}</${Link}>` },
  { key: 'size', title: 'Size', width: '110px', end: true, sort: (file) => file.Size, cell: (file) => (file.IsDir ? '' : bytes(file.Size)) },
  { key: 'mode', title: 'Mode', width: '130px', cell: (file) => html`<span class="mono quiet">${file.FileMode}</span>` },
  { key: 'time', title: 'Changed', width: '180px', end: true, sort: (file) => file.ModTime, cell: (file) => html`<span class="quiet">${moment(file.ModTime)}</span>` },
];

/** `path`: the parts of what is shown, below the allocation's directory. */
export function Files({ id, path }) {
  const at = (parts) => ['allocations', id, 'files', ...parts];
  const crumbs = ['files', ...path];
  return html`
    <nav class="crumbs" aria-label="Directory">${crumbs.map((name, index) => html`<span key=${index}>${index < path.length || index === 0
      ? html`<${Link} to=${at(path.slice(0, index))}>${name}</${Link}> / ` : html`<b>${name}</b>`}</span>`)}</nav>
    <${Entry} key=${path.join('/')} id=${id} path=${path} at=${at} />`;
}

/** What is there: a directory, or a file. */
function Entry({ id, path, at }) {
  const whole = `/${path.join('/')}`;
  const read = useRead((signal) => (path.length ? get(`v1/client/fs/stat/${id}`, { path: whole }, signal) : Promise.resolve({ IsDir: true })), [id, whole]);
  if (read.error) return html`<${Trouble} error=${read.error} again=${read.again} />`;
  if (!read.value) return html`<${Loading} what="the entry" />`;
  if (read.value.IsDir) return html`<${Directory} id=${id} path=${path} at=${at} />`;
  return html`<${FileText} id=${id} path=${whole} file=${read.value} close=${() => go(...at(path.slice(0, -1)))} />`;
}

function Directory({ id, path, at }) {
  const read = useRead((signal) => get(`v1/client/fs/ls/${id}`, { path: `/${path.join('/')}` }, signal), [id, path.join('/')]);
  if (read.error) return html`<${Trouble} error=${read.error} again=${read.again} />`;
  if (!read.value) return html`<${Loading} what="the directory" />`;
  const to = (entry) => at([...path, entry.Name]);
  return html`<${List} label="Files" columns=${COLUMNS(to)} rows=${read.value} rowKey=${(entry) => entry.Name} order="name" open=${(entry) => go(...to(entry))} height="60vh"
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
    ${read.value?.binary && html`<${Empty} title="This is not text"><p>Save it to look at it with another program.</p></${Empty}>`}
    ${read.value?.text !== undefined && html`<pre class="log wrap" tabindex="0" aria-label=${file.Name}>${read.value.text}</pre>`}
    ${size > SHOWN && read.value?.text !== undefined && html`<p class="quiet">The first ${bytes(SHOWN)} are shown.</p>`}`;
}
