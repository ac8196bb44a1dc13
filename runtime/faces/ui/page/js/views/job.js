// One job: its groups, allocations, versions; stop, start, scale, revert.

import { html, useEffect, useState } from '../html.js';
import { ask, get, list } from '../api.js';
import { confirm } from '../dialog.js';
import { many, moment } from '../format.js';
import { Ago, Empty, Heading, Loading, Panel, Status, Tabs, Trouble, useRead } from '../parts.js';
import { go, readJobPart } from '../place.js';
import { countByJob, jobKey, jobState } from '../rows.js';
import * as store from '../store.js';
import { AllocList } from './allocs.js';
import { DeploymentList } from './deployments.js';

const TABS = [['allocations', 'Allocations'], ['deployments', 'Deployments'], ['versions', 'Versions'], ['definition', 'Definition']];

export function JobView({ part }) {
  const { id, namespace } = readJobPart(part);
  const key = jobKey(id, namespace);
  store.useTables(store.jobs, store.allocs, store.deployments);
  const [tab, setTab] = useState('allocations');
  const path = `v1/job/${encodeURIComponent(id)}`;
  const query = { namespace };
  const read = useRead((signal) => get(path, query, signal), [key]);
  useEffect(() => store.follow(`job ${key}`, read.again), [key]);

  const job = read.value;
  if (read.error && !job) return html`<${Heading} title=${id} /><${Trouble} error=${read.error} again=${read.again} />`;
  if (!job) return html`<${Heading} title=${id} /><${Loading} what="the job" />`;
  const rows = store.allocs.all().filter((row) => row.job === id && row.namespace === namespace);
  const row = store.jobs.get(key);
  const state = jobState(row ?? { stop: job.Stop, type: job.Type, status: job.Status }, countByJob(rows).get(key));
  const own = store.deployments.all().filter((one) => one.JobID === id && (one.Namespace || 'default') === namespace);
  return html`
    <${Heading} title=${job.Name || id} state=${state} under=${`${job.Type} · version ${job.Version} · namespace ${namespace} · priority ${job.Priority}`}>
      <${Actions} job=${job} path=${path} query=${query} />
    </${Heading}>
    ${!row && store.feed.value?.state === 'live' && html`<p class="notice">This job was removed from the agent meanwhile.</p>`}
    ${job.StatusDescription && html`<p class="notice">${job.StatusDescription}</p>`}
    <${Panel} title="Groups"><${Groups} job=${job} rows=${rows} path=${path} query=${query} /></${Panel}>
    <${Tabs} label="Of the job" tabs=${TABS} now=${tab} choose=${setTab} />
    ${tab === 'allocations' && html`<${AllocList} rows=${rows} without=${['job']} label=${`Allocations of ${id}`}
      empty=${html`<${Empty} title="No allocations"><p>${job.Stop ? 'The job is stopped: start it above.' : 'Nothing is placed yet; the line above says what it waits for.'}</p></${Empty}>`} />`}
    ${tab === 'deployments' && html`<${DeploymentList} rows=${own} />`}
    ${tab === 'versions' && html`<${Versions} job=${job} path=${path} query=${query} />`}
    ${tab === 'definition' && html`<pre class="code" tabindex="0">${JSON.stringify(job, null, 2)}</pre>`}`;
}

/** The job as it is asked for again: `Stop` is what differs. What the agent says of it beside Nomad's keys goes. */
async function start(path, query) {
  const { Origin, Places, ...job } = await get(path, query);
  return ask('PUT', 'v1/jobs', { query, body: { Job: { ...job, Stop: false } } });
}

function Actions({ job, path, query }) {
  const name = job.Name || job.ID;
  const stop = () => confirm({
    title: `Stop ${name}?`,
    text: html`<p>Its tasks are told to end, and are killed when they take longer than their <code>kill_timeout</code>. The job stays in the list and can be started again.</p>`,
    action: 'Stop the job',
    danger: true,
    done: `${name} is stopped.`,
    fields: [{ name: 'purge', label: 'Remove it from the list too (purge)', type: 'checkbox', value: false }],
    run: async ({ purge }) => {
      await ask('DELETE', path, { query: { ...query, purge } });
      if (purge) go('jobs');
    },
  });
  const again = () => confirm({
    title: `Start ${name}?`,
    text: html`<p>Version ${job.Version} is registered again as it is.</p>`,
    action: 'Start the job',
    done: `${name} is started.`,
    run: () => start(path, query),
  });
  return job.Stop
    ? html`<button class="primary" onClick=${again}>Start …</button><button class="danger-quiet" onClick=${stop}>Remove …</button>`
    : html`<button class="danger-quiet" onClick=${stop} data-stop>Stop …</button>`;
}

function Groups({ job, rows, path, query }) {
  const scale = (group) => confirm({
    title: `Scale ${group.Name} of ${job.Name || job.ID}`,
    text: html`<p>It has ${many(group.Count, 'allocation')} now. What is too much is stopped, what is missing is placed.</p>`,
    action: 'Scale',
    done: 'The count is changed.',
    fields: [{ name: 'count', label: 'Allocations', type: 'number', min: 0, value: group.Count, required: true }],
    run: ({ count }) => ask('PUT', `${path}/scale`, { query, body: { Count: count, Target: { Group: group.Name }, Message: 'from the web page' } }),
  });
  return html`<ul class="plain-list">${(job.TaskGroups ?? []).map((group) => {
    const own = rows.filter((row) => row.group === group.Name);
    const running = own.filter((row) => row.client === 'running' && row.desired === 'run').length;
    return html`<li key=${group.Name}>
      <span class="name">${group.Name}</span>
      <span>${running} of ${group.Count} running</span>
      <span class="quiet grow">${(group.Tasks ?? []).map((task) => `${task.Name} (${task.Driver})`).join(', ')}</span>
      ${!job.Stop && html`<button onClick=${() => scale(group)} aria-label=${`Scale ${group.Name}`}>Scale …</button>`}
    </li>`;
  })}</ul>`;
}

function Versions({ job, path, query }) {
  const read = useRead((signal) => list(`${path}/versions`, query, signal), [job.Version, job.JobModifyIndex]);
  if (read.error) return html`<${Trouble} error=${read.error} again=${read.again} />`;
  if (!read.value) return html`<${Loading} what="versions" />`;
  const revert = (version) => confirm({
    title: `Go back to version ${version.Version}?`,
    text: html`<p>It becomes a new version of ${job.Name || job.ID}; the allocations are replaced as its <code>update</code> says.</p>`,
    action: 'Go back',
    done: `Version ${version.Version} is registered again.`,
    run: () => ask('PUT', `${path}/revert`, { query, body: { JobID: job.ID, JobVersion: version.Version } }),
  });
  return html`<ul class="plain-list panel">${(read.value.rows.Versions ?? []).map((version) => html`<li key=${version.Version}>
    <span class="name">Version ${version.Version}</span>
    ${version.Version === job.Version ? html`<${Status} state="in use" />` : version.Stable ? html`<span>stable</span>` : ''}
    <span class="quiet grow"><${Ago} time=${version.SubmitTime} /> · ${moment(version.SubmitTime)}</span>
    ${version.Version !== job.Version && html`<button onClick=${() => revert(version)}>Go back to it …</button>`}
  </li>`)}</ul>`;
}
