// A job that is pasted: planned first, then run.

import { html, useState } from '../html.js';
import { ask } from '../api.js';
import { confirm } from '../dialog.js';
import { many } from '../format.js';
import { Heading, Panel } from '../parts.js';
import { go, jobPart } from '../place.js';

const EXAMPLE = `job "hello" {
  group "g" {
    task "greet" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "while :; do echo hello; sleep 5; done"]
      }
      resources {
        cpu    = 20
        memory = 32
      }
    }
  }
}
`;

export function RunView() {
  const [text, setText] = useState('');
  const [state, setState] = useState({});
  const read = async () => {
    const trimmed = text.trim();
    if (trimmed.startsWith('{')) {
      const given = JSON.parse(trimmed);
      return given.Job ?? given;
    }
    return ask('PUT', 'v1/jobs/parse', { body: { JobHCL: text, Canonicalize: true } });
  };
  const plan = async () => {
    setState({ busy: true });
    try {
      const job = await read();
      const query = { namespace: job.Namespace || undefined };
      const answer = await ask('PUT', `v1/job/${encodeURIComponent(job.ID)}/plan`, { query, body: { Job: job, Diff: true } });
      setState({ job, plan: answer });
    } catch (error) {
      setState({ error });
    }
  };
  const { job, plan: planned, error, busy } = state;
  const run = () => confirm({
    title: `Run ${job.ID}?`,
    text: html`<p>It is registered as it was planned. Did somebody change it meanwhile, it is refused.</p>`,
    action: 'Run the job',
    done: `${job.ID} is registered.`,
    run: async () => {
      const body = { Job: job, EnforceIndex: true, JobModifyIndex: planned.JobModifyIndex ?? 0 };
      await ask('PUT', 'v1/jobs', { query: { namespace: job.Namespace || undefined }, body });
      go('jobs', jobPart(job.ID, job.Namespace));
    },
  });
  return html`
    <${Heading} title="Run a job" under="A job file (HCL), or a job as JSON. The plan says what would happen." />
    <label class="field">Job
      <textarea class="code" rows="18" spellcheck=${false} value=${text} placeholder=${EXAMPLE}
        onInput=${(event) => { setText(event.target.value); setState({}); }}></textarea></label>
    <div class="tools">
      <button class="primary" disabled=${!text.trim() || busy} onClick=${plan}>${busy ? 'Planning …' : 'Plan'}</button>
      ${!text && html`<button onClick=${() => setText(EXAMPLE)}>Begin with an example</button>`}
      ${planned && html`<button class="primary" onClick=${run} data-run>Run …</button>`}
    </div>
    ${error && html`<pre class="code trouble" role="alert">${error.message}</pre>`}
    ${planned && html`<${Plan} job=${job} plan=${planned} />`}`;
}

function Plan({ job, plan }) {
  // What waits is of those to be placed, what changes later of those left alone for now.
  const apart = (counts) => ({ ...counts, Place: (counts.Place ?? 0) - (counts.Waiting ?? 0), Ignore: (counts.Ignore ?? 0) - (counts.Later ?? 0) });
  const groups = Object.entries(plan.Annotations?.DesiredTGUpdates ?? {}).map(([name, counts]) => [name, apart(counts)]);
  const words = { Place: 'to place', Canary: 'canaries', InPlaceUpdate: 'to change in place', DestructiveUpdate: 'to replace', Later: 'to replace or stop later', Stop: 'to stop', Waiting: 'do not fit now', Ignore: 'unchanged' };
  const failed = Object.entries(plan.FailedTGAllocs ?? {});
  const fields = plan.Diff?.Fields ?? [];
  return html`<${Panel} title=${`Plan of ${job.ID}`}>
    <ul class="plain-list">${groups.map(([name, counts]) => html`<li key=${name}><span class="name">${name}</span>
      <span>${Object.entries(words).filter(([key]) => counts[key]).map(([key, word]) => `${counts[key]} ${word}`).join(', ') || 'nothing to do'}</span></li>`)}</ul>
    ${failed.length > 0 && html`<div class="trouble"><p class="trouble-title">Not all of it fits now</p>${failed.map(([name]) => html`<p key=${name}>Group ${name} waits to be placed.</p>`)}</div>`}
    ${plan.Warnings && html`<pre class="code">${plan.Warnings}</pre>`}
    ${plan.Changes?.length > 0 && html`<pre class="code" data-changes>${plan.Changes.join('\n')}</pre>`}
    <p class="quiet">${plan.Diff?.Type === 'None' ? 'It is equal to what runs.' : `${plan.Diff?.Type ?? ''}: ${many(fields.length, 'field')} of the job itself`}</p>
  </${Panel}>`;
}
