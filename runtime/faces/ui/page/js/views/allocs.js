// Allocations: all of them, or those of something.

import { html, useState } from '../html.js';
import { short } from '../format.js';
import { Ago, Empty, Heading, Status } from '../parts.js';
import { Link, go, jobPart } from '../place.js';
import { allocState } from '../rows.js';
import { Filter, List, matching } from '../table.js';
import * as store from '../store.js';

const COLUMNS = [
  { key: 'id', title: 'Allocation', width: '110px', cell: (row) => html`<${Link} class="mono" to=${['allocations', row.id]}>${short(row.id)}</${Link}>` },
  { key: 'name', title: 'Name', width: 'minmax(160px, 2fr)', sort: (row) => row.name, cell: (row) => html`<span title=${row.name}>${row.name}</span>` },
  { key: 'job', title: 'Job', width: 'minmax(100px, 1fr)', sort: (row) => row.job, cell: (row) => html`<${Link} to=${['jobs', jobPart(row.job, row.namespace)]}>${row.job}</${Link}>` },
  { key: 'state', title: 'State', width: '120px', sort: allocState, cell: (row) => html`<${Status} state=${allocState(row)} title=${row.why} />` },
  { key: 'health', title: 'Health', width: '110px', sort: (row) => String(row.healthy), cell: (row) => (row.healthy === null ? '' : html`<${Status} state=${row.healthy ? 'healthy' : 'unhealthy'} />`) },
  { key: 'version', title: 'Version', width: '80px', end: true, sort: (row) => row.version ?? -1, cell: (row) => row.version ?? '' },
  { key: 'restarts', title: 'Restarts', width: '85px', end: true, sort: (row) => row.restarts, cell: (row) => row.restarts || '' },
  { key: 'created', title: 'Made', width: '105px', end: true, sort: (row) => -row.created, cell: (row) => html`<${Ago} time=${row.created * 1e6} />` },
];

/** Without the column of what all of them share. */
export function AllocList({ rows, label = 'Allocations', without = [], height, empty }) {
  const columns = COLUMNS.filter((column) => !without.includes(column.key));
  return html`<${List} label=${label} columns=${columns} rows=${rows} rowKey=${(row) => row.id} order="created" height=${height}
    open=${(row) => go('allocations', row.id)} empty=${empty ?? html`<${Empty} title="No allocations" />`} />`;
}

const STATES = ['all', 'running', 'pending', 'stopping', 'failed', 'complete', 'lost'];

export function AllocsView() {
  store.useTables(store.allocs);
  const [text, setText] = useState('');
  const [state, setState] = useState('all');
  const all = store.allocs.all();
  const some = state === 'all' ? all : all.filter((row) => allocState(row) === state);
  const rows = matching(some, text, (row) => [row.id, row.name, row.job, row.namespace, row.client]);
  const empty = all.length === 0
    ? html`<${Empty} title="No allocations"><p>There are some as soon as a job runs: <${Link} to=${['jobs', 'run']}>run one</${Link}>.</p></${Empty}>`
    : html`<${Empty} title="None of them matches"><p><button onClick=${() => { setText(''); setState('all'); }}>Show all</button></p></${Empty}>`;
  return html`
    <${Heading} title="Allocations" />
    <div class="tools">
      <${Filter} label="Filter allocations" value=${text} change=${setText} count=${rows.length} all=${all.length} />
      <label class="inline">State <select value=${state} onChange=${(event) => setState(event.target.value)}>${STATES.map((one) => html`<option key=${one}>${one}</option>`)}</select></label>
    </div>
    <${AllocList} rows=${rows} empty=${empty} />`;
}
