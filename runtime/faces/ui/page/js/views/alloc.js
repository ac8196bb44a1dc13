// One allocation: its tasks on a line of time, output, files, a terminal; restart and stop.

import { html, useEffect, useState } from '../html.js';
import { ask, get } from '../api.js';
import { confirm } from '../dialog.js';
import { mib, moment, short } from '../format.js';
import { Ago, Facts, Heading, Loading, Panel, Status, Tabs, Trouble } from '../parts.js';
import { Link, go, jobPart } from '../place.js';
import { allocRow, allocState, terminal } from '../rows.js';
import * as store from '../store.js';
import { Files } from './files.js';
import { Logs } from './logs.js';
import { Terminal } from './terminal.js';
import { Timeline } from './timeline.js';

const TABS = [['overview', 'Overview'], ['logs', 'Logs'], ['files', 'Files'], ['terminal', 'Terminal']];

/** The allocation as it was read, and as events tell it since; they leave its job out. */
function useAlloc(id) {
  const [state, set] = useState({});
  const [round, setRound] = useState(0);
  useEffect(() => {
    const abort = new AbortController();
    const ends = store.follow(`alloc ${id}`, (told) => set((old) => (told ? { alloc: { ...told, Job: old.alloc?.Job } } : { ...old, gone: true })));
    get(`v1/allocation/${id}`, {}, abort.signal).then(
      (alloc) => set({ alloc }),
      (error) => { if (!abort.signal.aborted) set((old) => ({ ...old, error })); },
    );
    return () => {
      ends();
      abort.abort();
    };
  }, [id, round]);
  return { ...state, again: () => setRound((count) => count + 1) };
}

export function AllocView({ id, rest: [tab = 'overview', ...below] }) {
  const { alloc, error, gone, again } = useAlloc(id);
  if (error && !alloc) return html`<${Heading} title=${short(id)} /><${Trouble} error=${error} again=${again} />`;
  if (!alloc) return html`<${Heading} title=${short(id)} /><${Loading} what="the allocation" />`;
  const row = allocRow(alloc, { version: alloc.Job?.Version });
  const tasks = Object.keys(alloc.TaskStates ?? {});
  const names = tasks.length ? tasks : Object.keys(alloc.AllocatedResources?.Tasks ?? {});
  // The first that is not over: that of a start-up step is seldom looked for.
  const first = names.find((name) => alloc.TaskStates?.[name]?.State === 'running') ?? names[0];
  const now = tab !== 'files' && names.includes(below[0]) ? below[0] : first;
  const show = (to, of = now) => go('allocations', id, to, ...(['logs', 'terminal'].includes(to) && of ? [of] : []));
  return html`
    <${Heading} title=${alloc.Name} state=${allocState(row)}>
      <${Actions} alloc=${alloc} row=${row} names=${names} />
    </${Heading}>
    <p class="quiet under-title">Job <${Link} to=${['jobs', jobPart(alloc.JobID, alloc.Namespace)]}>${alloc.JobID}</${Link}>, version ${row.version ?? '–'}${' · '}<span class="mono">${id}</span> · made <${Ago} time=${alloc.CreateTime} />${row.why && ` · ${row.why}`}</p>
    ${gone && html`<p class="notice">The agent has collected this allocation: its files are gone.</p>`}
    <${Tabs} label="Of the allocation" tabs=${TABS} now=${tab} choose=${(to) => show(to)} />
    ${tab === 'overview' && html`<${Overview} alloc=${alloc} row=${row} names=${names} />`}
    ${tab === 'logs' && html`<${Logs} key=${now} id=${id} tasks=${names} task=${now} choose=${(of) => show('logs', of)} />`}
    ${tab === 'files' && html`<${Files} id=${id} path=${below} />`}
    ${tab === 'terminal' && html`<${Terminal} key=${now} id=${id} tasks=${names} task=${now} running=${alloc.TaskStates?.[now]?.State === 'running'} choose=${(of) => show('terminal', of)} />`}`;
}

function Actions({ alloc, row, names }) {
  const over = terminal(row);
  const restart = () => confirm({
    title: `Restart ${alloc.Name}?`,
    text: html`<p>The task is told to end and starts again at once. This does not count as a failure. Without a name, all tasks that run restart.</p>`,
    action: 'Restart',
    done: `${alloc.Name} restarts.`,
    fields: [{ name: 'task', label: `Task (${names.join(', ')}), or nothing`, value: names.length === 1 ? names[0] : '' }],
    run: ({ task }) => ask('PUT', `v1/client/allocation/${alloc.ID}/restart`, { body: { TaskName: task.trim() } }),
  });
  const stop = () => confirm({
    title: `Stop ${alloc.Name}?`,
    text: html`<p>Its tasks are told to end. The job still wants it: another allocation takes its place. To end the job, stop the job.</p>`,
    action: 'Stop the allocation',
    danger: true,
    done: `${alloc.Name} is stopping.`,
    run: () => ask('PUT', `v1/allocation/${alloc.ID}/stop`),
  });
  if (over) return html`<span class="quiet">It is over.</span>`;
  return html`<button onClick=${restart}>Restart …</button><button class="danger-quiet" onClick=${stop} data-stop>Stop …</button>`;
}

function Overview({ alloc, row, names }) {
  const health = alloc.DeploymentStatus;
  const ports = alloc.AllocatedResources?.Shared?.Ports ?? [];
  return html`
    <${Panel} title="Tasks over time"><${Timeline} alloc=${alloc} names=${names} /></${Panel}>
    <div class="columns even">
      <${Panel} title="Facts"><${Facts} of=${[
        ['Wanted', `${alloc.DesiredStatus}${alloc.DesiredDescription ? `: ${alloc.DesiredDescription}` : ''}`],
        ['Health', health?.Healthy === true ? html`<${Status} state="healthy" />` : health?.Healthy === false ? html`<${Status} state="unhealthy" />` : ''],
        ['Canary', health?.Canary ? 'yes' : ''],
        ['Ports', ports.map((port) => `${port.Label} ${port.HostIP}:${port.Value}${port.To ? ` → ${port.To}` : ''}`).join(', ')],
        ['Network of its own', alloc.NetworkStatus?.Address],
        ['Takes the place of', alloc.PreviousAllocation && html`<${Link} class="mono" to=${['allocations', alloc.PreviousAllocation]}>${short(alloc.PreviousAllocation)}</${Link}>`],
        ['Its place is taken by', alloc.NextAllocation && html`<${Link} class="mono" to=${['allocations', alloc.NextAllocation]}>${short(alloc.NextAllocation)}</${Link}>`],
        ['Changed', moment(alloc.ModifyTime)],
      ]} /></${Panel}>
      <${Panel} title="What its tasks have"><${Given} alloc=${alloc} names=${names} /></${Panel}>
    </div>`;
}

function Given({ alloc, names }) {
  const given = alloc.AllocatedResources?.Tasks ?? {};
  return html`<ul class="plain-list">${names.map((name) => {
    const own = given[name] ?? {};
    const devices = (own.Devices ?? []).map((group) => `${group.Vendor}/${group.Type}/${group.Name}: ${group.DeviceIDs.join(', ')}`);
    return html`<li key=${name}><span class="name">${name}</span><${Status} state=${alloc.TaskStates?.[name]?.State ?? 'pending'} />
      <span class="quiet grow">${own.Cpu?.CpuShares ?? 0} MHz, ${mib(own.Memory?.MemoryMB ?? 0)}${devices.map((text) => html`<br /><span class="device">${text}</span>`)}</span></li>`;
  })}</ul>`;
}
