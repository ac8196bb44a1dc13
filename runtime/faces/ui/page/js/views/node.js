// The node: what it uses over time, what is placed on it, what drivers it has.

import { html, useState } from '../html.js';
import { get } from '../api.js';
import { Chart } from '../chart.js';
import { mib, percent } from '../format.js';
import { Empty, Facts, Heading, Loading, Meter, Panel, Refused, Status, Trouble, useRead } from '../parts.js';
import { Link, go } from '../place.js';
import { allocState, terminal } from '../rows.js';
import * as store from '../store.js';
import { AllocList } from './allocs.js';

export function NodeView() {
  store.useTables(store.node, store.allocs, store.feed);
  const node = store.node.value;
  if (!node) return html`<${Heading} title="Node" /><${Loading} what="the node" />`;
  if (node.refused) return html`<${Heading} title="Node" /><${Refused} why=${node.refused} />`;
  const rows = store.allocs.all();
  const trouble = rows.filter((row) => row.client === 'failed' || row.healthy === false);
  const eligible = node.SchedulingEligibility;
  const state = node.Drain ? 'draining' : node.Status;
  return html`
    <${Heading} title=${node.Name} state=${state} under=${`${node.Datacenter} · ${node.Address} · version ${node.Version}`}>
      ${eligible !== 'eligible' && html`<${Status} state=${eligible} />`}
      <${Link} class="button primary" to=${['jobs', 'run']}>Run a job</${Link}>
    </${Heading}>
    ${node.StatusDescription && html`<p class="notice">${node.StatusDescription}</p>`}
    <div class="columns">
      <${Panel} title="Use over time" side=${html`<${Legend} />`}><${Chart} /></${Panel}>
      <${Panel} title="Use now"><${Now} /></${Panel}>
    </div>
    <div class="columns even">
      <${Panel} title="Placed on it"><${Placed} node=${node} rows=${rows} /></${Panel}>
      <${Panel} title="Drivers"><${Drivers} drivers=${node.Drivers ?? {}} /></${Panel}>
    </div>
    ${trouble.length > 0 && html`<${Panel} title="Failed allocations"><${AllocList} rows=${trouble} height="320px" label="Failed allocations" /></${Panel}>`}
    ${rows.length === 0 && store.feed.value?.state === 'live' && html`<${Panel}><${Empty} title="Nothing runs here yet">
      <p>Run a job: <button onClick=${() => go('jobs', 'run')}>paste a job file</button>, or <code>ostler job run FILE</code>.</p></${Empty}></${Panel}>`}
    <${Attributes} id=${node.ID} />`;
}

const Legend = () => html`<span class="legend"><i class="cpu"></i>processors <i class="memory"></i>memory</span>`;

function Now() {
  store.useTables(store.use);
  const now = store.use.value;
  if (!now) return html`<${Loading} what="what it uses" />`;
  const used = now.memory_total_mb - now.memory_available_mb;
  return html`
    <${Meter} label="Processors" value=${now.cpu_percent} max=${100} text=${`${now.cpu_percent.toFixed(1)} % of ${now.cores_percent.length}`} />
    <${Meter} label="Memory" value=${used} max=${now.memory_total_mb} text=${`${mib(used)} of ${mib(now.memory_total_mb)}`} />
    ${now.disks.slice(0, 6).map((disk) => html`<${Meter} key=${disk.mountpoint} label=${disk.mountpoint} value=${disk.used_mb} max=${disk.size_mb} text=${`${mib(disk.used_mb)} of ${mib(disk.size_mb)}`} />`)}
    <div class="cores" role="img" aria-label=${`each processor: ${now.cores_percent.map((core) => percent(core)).join(', ')}`}>
      ${now.cores_percent.map((core, index) => html`<i key=${index} title=${`processor ${index}: ${percent(core)}`}><b style=${{ height: `${Math.max(2, core)}%` }}></b></i>`)}
    </div>`;
}

function Placed({ node, rows }) {
  const live = rows.filter((row) => !terminal(row));
  const sum = (of) => live.reduce((total, row) => total + of(row), 0);
  const cpu = node.NodeResources?.Cpu?.CpuShares ?? 0;
  const memory = node.NodeResources?.Memory?.MemoryMB ?? 0;
  const counts = {};
  for (const row of rows) counts[allocState(row)] = (counts[allocState(row)] ?? 0) + 1;
  return html`
    <${Meter} label="Processors" value=${sum((row) => row.cpu)} max=${cpu} text=${`${sum((row) => row.cpu).toLocaleString('en')} of ${cpu.toLocaleString('en')} MHz`} />
    <${Meter} label="Memory" value=${sum((row) => row.memory)} max=${memory} text=${`${mib(sum((row) => row.memory))} of ${mib(memory)}`} />
    <p class="tally">${Object.entries(counts).map(([state, count]) => html`<${Link} key=${state} to=${['allocations']}><b>${count.toLocaleString('en')}</b> <${Status} state=${state} /></${Link}>`)}</p>`;
}

function Drivers({ drivers }) {
  const names = Object.keys(drivers);
  if (!names.length) return html`<p class="quiet">None is in use. <${Link} to=${['plugins']}>Plugins</${Link}> says why.</p>`;
  return html`<ul class="plain-list">${names.map((name) => {
    const driver = drivers[name];
    const state = driver.Healthy ? 'healthy' : driver.Detected ? 'unhealthy' : 'undetected';
    return html`<li key=${name}><span class="name">${name}</span><${Status} state=${state} />${!driver.Healthy && html`<span class="quiet">${driver.HealthDescription}</span>`}</li>`;
  })}</ul>`;
}

/** Read when it is opened: hundreds of lines that few look at. */
function Attributes({ id }) {
  const [open, setOpen] = useState(false);
  return html`<details class="panel" onToggle=${(event) => setOpen(event.target.open)}><summary>Attributes, for constraints of jobs</summary>${open && html`<${AttributeList} id=${id} />`}</details>`;
}

function AttributeList({ id }) {
  const { value, error, again } = useRead((signal) => get(`v1/node/${id}`, {}, signal), [id]);
  if (error) return html`<${Trouble} error=${error} again=${again} />`;
  if (!value) return html`<${Loading} what="attributes" />`;
  const of = [...Object.entries(value.Attributes), ...Object.entries(value.Meta ?? {}).map(([key, one]) => [`meta.${key}`, one])];
  return html`<${Facts} of=${of.sort(([a], [b]) => (a < b ? -1 : 1))} />`;
}
