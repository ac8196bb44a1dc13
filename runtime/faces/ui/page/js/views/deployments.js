// Deployments: how new versions take over; promote and fail.

import { html, useState } from '../html.js';
import { ask } from '../api.js';
import { confirm } from '../dialog.js';
import { short } from '../format.js';
import { Empty, Heading, Status } from '../parts.js';
import { Link, jobPart } from '../place.js';
import { Filter, List, matching } from '../table.js';
import * as store from '../store.js';

const groups = (one) => Object.values(one.TaskGroups ?? {});
const sum = (one, field) => groups(one).reduce((total, group) => total + (group[field] || 0), 0);
const waits = (one) => one.Status === 'running' && groups(one).some((group) => group.DesiredCanaries > 0 && !group.Promoted);
const active = (one) => ['running', 'paused', 'blocked'].includes(one.Status);

function change(one, what) {
  const query = { namespace: one.Namespace || undefined };
  const path = `v1/deployment/${what}/${one.ID}`;
  const texts = {
    promote: ['Promote the canaries', 'They are accepted: the remaining allocations of older versions are replaced.', { DeploymentID: one.ID, All: true }, 'The canaries are promoted.'],
    fail: ['Fail the deployment', 'Nothing more of this version is placed. Where the job says auto_revert, the last stable version comes back.', { DeploymentID: one.ID }, 'The deployment failed, as asked.'],
  };
  const [title, text, body, done] = texts[what];
  confirm({ title: `${title} of ${one.JobID}?`, text: html`<p>${text}</p>`, action: title, danger: what === 'fail', done, run: () => ask('PUT', path, { query, body }) });
}

const COLUMNS = [
  { key: 'id', title: 'Deployment', width: '110px', cell: (one) => html`<span class="mono" title=${one.ID}>${short(one.ID)}</span>` },
  { key: 'job', title: 'Job', width: 'minmax(120px, 1fr)', sort: (one) => one.JobID, cell: (one) => html`<${Link} to=${['jobs', jobPart(one.JobID, one.Namespace)]}>${one.JobID}</${Link}>` },
  { key: 'version', title: 'Version', width: '80px', end: true, sort: (one) => one.JobVersion, cell: (one) => one.JobVersion },
  { key: 'state', title: 'State', width: '150px', sort: (one) => one.Status, cell: (one) => html`<${Status} state=${waits(one) ? 'needs promotion' : one.Status} title=${one.StatusDescription} />` },
  { key: 'healthy', title: 'Healthy', width: '100px', end: true, sort: (one) => sum(one, 'HealthyAllocs'), cell: (one) => `${sum(one, 'HealthyAllocs')} of ${sum(one, 'DesiredTotal')}` },
  { key: 'why', title: 'About it', width: 'minmax(140px, 3fr)', cell: (one) => html`<span class="quiet" title=${one.StatusDescription}>${one.StatusDescription}</span>` },
  {
    key: 'do', title: '', width: '170px', cell: (one) => active(one) && html`<span class="row-actions">
      ${waits(one) && html`<button class="small primary" onClick=${() => change(one, 'promote')}>Promote …</button>`}
      <button class="small danger-quiet" onClick=${() => change(one, 'fail')}>Fail …</button></span>`,
  },
];

export function DeploymentList({ rows, empty }) {
  return html`<${List} label="Deployments" columns=${COLUMNS} rows=${rows.slice().sort((a, b) => b.CreateIndex - a.CreateIndex)} rowKey=${(one) => one.ID}
    empty=${empty ?? html`<${Empty} title="No deployments"><p>A service has one for each version, when it is registered.</p></${Empty}>`} />`;
}

export function DeploymentsView() {
  store.useTables(store.deployments);
  const [text, setText] = useState('');
  const all = store.deployments.all();
  const rows = matching(all, text, (one) => [one.ID, one.JobID, one.Status, one.Namespace]);
  return html`
    <${Heading} title="Deployments" />
    <div class="tools"><${Filter} label="Filter deployments" value=${text} change=${setText} count=${rows.length} all=${all.length} /></div>
    <${DeploymentList} rows=${rows} />`;
}
