// From what the API says to what lists show: only what is shown is kept, so that ten thousand allocations are
// a few megabytes. Pure.

import { millis } from './format.js';

export const jobKey = (id, namespace) => `${namespace || 'default'}/${id}`;

/** A job of the list, or of an event. */
export function jobRow(job, before) {
  return {
    id: job.ID,
    namespace: job.Namespace || 'default',
    name: job.Name || job.ID,
    type: job.Type,
    priority: job.Priority,
    status: job.Status,
    why: job.StatusDescription ?? '',
    stop: Boolean(job.Stop),
    version: job.Version ?? before?.version,
    submitted: millis(job.SubmitTime),
  };
}

/** An allocation of the list, or of an event: there its job, and so its version, is not told. */
export function allocRow(alloc, before) {
  const tasks = Object.entries(alloc.TaskStates ?? {}).map(([name, task]) => ({
    name,
    state: task.State,
    failed: task.Failed,
    restarts: task.Restarts,
  }));
  const given = Object.values(alloc.AllocatedResources?.Tasks ?? {});
  const sum = (of) => given.reduce((total, task) => total + (of(task) || 0), 0);
  const health = alloc.DeploymentStatus;
  return {
    id: alloc.ID,
    namespace: alloc.Namespace || 'default',
    job: alloc.JobID,
    group: alloc.TaskGroup,
    name: alloc.Name,
    version: alloc.JobVersion ?? before?.version,
    desired: alloc.DesiredStatus,
    client: alloc.ClientStatus,
    why: alloc.ClientDescription || alloc.DesiredDescription || '',
    healthy: health?.Healthy ?? null,
    canary: Boolean(health?.Canary),
    deployment: alloc.DeploymentID ?? before?.deployment,
    created: millis(alloc.CreateTime),
    modified: millis(alloc.ModifyTime),
    restarts: tasks.reduce((total, task) => total + task.restarts, 0),
    tasks,
    cpu: sum((task) => task.Cpu?.CpuShares),
    memory: sum((task) => task.Memory?.MemoryMB),
  };
}

export const terminal = (row) => row.client === 'complete' || row.client === 'failed' || row.client === 'lost';

/** What an allocation is about, in a word: one that shall stop and runs still is stopping. */
export const allocState = (row) => (row.desired === 'stop' && !terminal(row) ? 'stopping' : row.client);

/** Allocations of each job by what became of them: `{running, pending, failed, complete}` by key of the job. */
export function countByJob(rows) {
  const counts = new Map();
  for (const row of rows) {
    const key = jobKey(row.job, row.namespace);
    let count = counts.get(key);
    if (!count) counts.set(key, count = { running: 0, pending: 0, failed: 0, complete: 0, lost: 0 });
    count[row.client] = (count[row.client] ?? 0) + 1;
  }
  return counts;
}

/** How a job is, by its allocations where it has any: no event says that one began to run. */
export function jobState(job, count) {
  if (job.stop) return count?.running || count?.pending ? 'stopping' : 'stopped';
  if (count?.running) return 'running';
  if (count?.pending) return 'pending';
  if (job.type === 'batch' && count) return count.failed ? 'failed' : 'complete';
  return count?.failed ? 'failed' : job.status;
}
