// Jobs: all of them.

import { html, useState } from '../html.js';
import { Ago, Empty, Heading, Status } from '../parts.js';
import { Link, go, jobPart } from '../place.js';
import { countByJob, jobKey, jobState } from '../rows.js';
import { Filter, List, matching } from '../table.js';
import * as store from '../store.js';

const tally = (key) => ({ key, title: key[0].toUpperCase() + key.slice(1), width: '90px', end: true, sort: (row) => row.count?.[key] ?? 0, cell: (row) => row.count?.[key] || '' });

const COLUMNS = [
  { key: 'id', title: 'Job', width: 'minmax(160px, 2fr)', sort: (row) => row.id, cell: (row) => html`<${Link} to=${['jobs', jobPart(row.id, row.namespace)]}>${row.name}</${Link}>` },
  { key: 'namespace', title: 'Namespace', width: '120px', sort: (row) => row.namespace, cell: (row) => row.namespace },
  { key: 'type', title: 'Type', width: '90px', sort: (row) => row.type, cell: (row) => row.type },
  { key: 'state', title: 'State', width: '120px', sort: (row) => row.state, cell: (row) => html`<${Status} state=${row.state} title=${row.why} />` },
  tally('running'), tally('pending'), tally('failed'), tally('complete'),
  { key: 'priority', title: 'Priority', width: '80px', end: true, sort: (row) => row.priority, cell: (row) => row.priority },
  { key: 'submitted', title: 'Submitted', width: '110px', end: true, sort: (row) => -row.submitted, cell: (row) => html`<${Ago} time=${row.submitted * 1e6} />` },
];

export function JobsView() {
  store.useTables(store.jobs, store.allocs);
  const [text, setText] = useState('');
  const counts = countByJob(store.allocs.rows.values());
  const all = store.jobs.all().map((job) => {
    const count = counts.get(jobKey(job.id, job.namespace));
    return { ...job, count, state: jobState(job, count) };
  });
  const rows = matching(all, text, (row) => [row.id, row.name, row.namespace, row.type, row.state]);
  const empty = all.length === 0
    ? html`<${Empty} title="No jobs"><p><${Link} class="button primary" to=${['jobs', 'run']}>Run a job</${Link}></p><p>Or on the node: <code>ostler job run FILE</code>.</p></${Empty}>`
    : html`<${Empty} title="None of them matches"><p><button onClick=${() => setText('')}>Show all</button></p></${Empty}>`;
  return html`
    <${Heading} title="Jobs"><${Link} class="button primary" to=${['jobs', 'run']}>Run a job</${Link}></${Heading}>
    <div class="tools"><${Filter} label="Filter jobs" value=${text} change=${setText} count=${rows.length} all=${all.length} /></div>
    <${List} label="Jobs" columns=${COLUMNS} rows=${rows} rowKey=${(row) => jobKey(row.id, row.namespace)} order="id"
      open=${(row) => go('jobs', jobPart(row.id, row.namespace))} empty=${empty} />`;
}
