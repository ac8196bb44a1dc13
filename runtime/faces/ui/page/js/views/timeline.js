// Tasks of an allocation on one line of time: when each ran, what hooks did before, restarts, how it ended. The same
// is below it as a list of words.

import { html, useMemo, useState } from '../html.js';
import { clock, millis, moment, span } from '../format.js';
import { useTick } from '../store.js';

const LANE = 40;
const LEFT = 130;
const WIDTH = 1000;

/** Kinds of events that are more than a step on the way. */
const WEIGHT = {
  'Started': 'start', 'Terminated': 'end', 'Restarting': 'restart', 'Restart Signaled': 'restart', 'Not Restarting': 'bad', 'Driver Failure': 'bad',
  'Setup Failure': 'bad', 'Failed Validation': 'bad', 'Failed Artifact Download': 'bad', 'Killing': 'end', 'Killed': 'end', 'Sibling Task Failed': 'bad', 'Signaling': 'restart',
};
const weight = (event) => (event.FailsTask ? 'bad' : WEIGHT[event.Type] ?? 'step');

/** When a task ran: `{from, to, failed}`; `to` is absent of what runs. Before its first run it is prepared. */
export function runsOf(task) {
  const runs = [];
  for (const event of task.Events ?? []) {
    const at = event.Time / 1e6;
    const last = runs[runs.length - 1];
    if (event.Type === 'Started') runs.push({ from: at });
    else if (event.Type === 'Terminated' && last && !last.to) {
      last.to = at;
      last.failed = event.ExitCode !== 0 || event.Signal !== 0;
      last.how = event.DisplayMessage;
    }
  }
  // Of many events the oldest are not told: a task that runs began before them.
  if (!runs.length && task.State === 'running' && task.StartedAt) runs.push({ from: millis(task.StartedAt) });
  return runs;
}

/** In the order in which they run: start-up steps first, what comes after last. */
const ORDER = { prestart: 0, poststart: 2, poststop: 3 };
const hookOf = (alloc, name) => alloc.AllocatedResources?.TaskLifecycles?.[name];

const SPANS = [['all', 'its whole life'], ['start', 'its first minute'], ['last', 'the last ten minutes']];

export function Timeline({ alloc, names }) {
  const [what, setWhat] = useState('all');
  const over = names.every((name) => alloc.TaskStates?.[name]?.State === 'dead');
  useTick(over ? 3_600_000 : 2000);
  const order = (name) => ORDER[hookOf(alloc, name)?.Hook] ?? 1;
  const tasks = names.slice().sort((a, b) => order(a) - order(b)).map((name) => ({ name, hook: hookOf(alloc, name), ...alloc.TaskStates?.[name] }));
  const times = tasks.flatMap((task) => (task.Events ?? []).map((event) => event.Time / 1e6));
  const first = Math.min(millis(alloc.CreateTime), ...times);
  const end = over ? Math.max(first + 1000, ...times) : Date.now();
  const [from, to] = {
    all: [first, end],
    start: [first, Math.min(end, first + 60_000)],
    last: [Math.max(first, end - 600_000), end],
  }[what];
  const x = (at) => LEFT + ((at - from) / Math.max(1, to - from)) * (WIDTH - LEFT - 12);
  const height = tasks.length * LANE + 26;
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((share) => from + share * (to - from));
  return html`
    <div class="tools tight"><label class="inline">Shows <select value=${what} onChange=${(event) => setWhat(event.target.value)}>${SPANS.map(([name, text]) => html`<option key=${name} value=${name}>${text}</option>`)}</select></label>
      <span class="quiet">${span(to - from)} from ${moment(from * 1e6)}</span></div>
    <svg class="timeline" viewBox=${`0 0 ${WIDTH} ${height}`} role="img" aria-label="When each task ran; the list below says the same">
      ${ticks.map((at, index) => html`<g key=${index}><line class="tick" x1=${x(at)} x2=${x(at)} y1="0" y2=${height - 20} />
        <text class="tick-text" x=${x(at)} y=${height - 5} text-anchor=${index === 0 ? 'start' : index === 4 ? 'end' : 'middle'}>${clock(at)}</text></g>`)}
      ${tasks.map((task, index) => html`<${Lane} key=${task.name} task=${task} top=${index * LANE} x=${x} from=${from} to=${to} />`)}
    </svg>
    <${Events} tasks=${tasks} />`;
}

function Lane({ task, top, x, from, to }) {
  const events = (task.Events ?? []).filter((event) => event.Time / 1e6 >= from && event.Time / 1e6 <= to);
  const runs = runsOf(task).filter((run) => run.from <= to && (run.to ?? to) >= from);
  const inside = (at) => Math.min(to, Math.max(from, at));
  const waits = runsOf(task).slice(1).map((run, index) => [runsOf(task)[index].to, run.from]).filter(([a, b]) => a && b >= from && a <= to);
  const name = task.name.length > 15 ? `${task.name.slice(0, 14)}…` : task.name;
  return html`<g transform=${`translate(0 ${top})`}>
    <text class="lane-name" x="0" y="17"><title>${task.name}</title>${name}</text>
    <text class="lane-hook" x="0" y="31">${task.hook?.Hook ? `${task.hook.Hook}${task.hook.Sidecar ? ', sidecar' : ''}` : 'main'}${task.Restarts ? ` · ${task.Restarts} restarts` : ''}</text>
    <line class="lane" x1=${x(from)} x2=${x(to)} y1="18" y2="18" />
    ${waits.map(([a, b], index) => html`<line key=${`wait ${index}`} class="pause" x1=${x(inside(a))} x2=${x(inside(b))} y1="18" y2="18" />`)}
    ${runs.map((run, index) => html`<rect key=${index} class=${run.to ? (run.failed ? 'run bad' : 'run done') : 'run'} x=${x(inside(run.from))} y="9" height="18" rx="3"
      width=${Math.max(3, x(inside(run.to ?? to)) - x(inside(run.from)))}><title>${`run ${index + 1}: ${clock(run.from)}${run.to ? `, ${span(run.to - run.from)}, ${run.how}` : ', still runs'}`}</title></rect>`)}
    ${events.map((event, index) => html`<circle key=${`event ${index}`} class=${`event ${weight(event)}`} cx=${x(event.Time / 1e6)} cy="18" r=${weight(event) === 'step' ? 3 : 5}><title>${`${clock(event.Time / 1e6)} ${event.Type}: ${event.DisplayMessage}`}</title></circle>`)}
  </g>`;
}

/** All events, newest first. */
function Events({ tasks }) {
  const all = useMemo(() => tasks.flatMap((task) => (task.Events ?? []).map((event, index) => ({ ...event, task: task.name, index })))
    .sort((a, b) => b.Time - a.Time || b.index - a.index), [tasks.map((task) => task.EventsTotal).join()]);
  const more = tasks.reduce((sum, task) => sum + Math.max(0, (task.EventsTotal ?? 0) - (task.Events ?? []).length), 0);
  return html`<div class="scroll-x events-box" tabindex="0" role="region" aria-label="Events of the tasks"><table class="events"><thead><tr><th scope="col">When</th><th scope="col">Task</th><th scope="col">What</th><th scope="col">In words</th></tr></thead>
    <tbody>${all.map((event) => html`<tr key=${`${event.task} ${event.Time} ${event.index}`} class=${weight(event)}>
      <td title=${moment(event.Time)} class="mono">${clock(event.Time / 1e6)}</td><td>${event.task}</td>
      <td>${weight(event) === 'bad' ? html`<span class="status bad"><i aria-hidden="true"></i>${event.Type}</span>` : event.Type}</td><td>${event.DisplayMessage}${event.Message ? ` (${event.Message})` : ''}</td></tr>`)}
      ${more > 0 && html`<tr><td colspan="4" class="quiet">${more} older ones are not kept.</td></tr>`}
      ${all.length === 0 && html`<tr><td colspan="4" class="quiet">Nothing happened yet.</td></tr>`}</tbody></table></div>`;
}
