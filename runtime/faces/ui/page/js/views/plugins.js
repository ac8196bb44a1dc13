// Plugins: what they ask and hold, how they do; lift a quarantine, upgrade, record.

import { html } from '../html.js';
import { ask, get } from '../api.js';
import { confirm, note } from '../dialog.js';
import { bytes, moment, nanos } from '../format.js';
import { Ago, Empty, Facts, Heading, Loading, Panel, Refused, Status, Trouble, useRead } from '../parts.js';
import { go } from '../place.js';
import { List } from '../table.js';
import * as store from '../store.js';

/** Its state in a word: that of the plugin in use, else why it is not. */
function stateOf(one) {
  if (one.activity?.quarantine) return 'quarantined';
  if (one.status.state === 'loaded') return one.health?.state && one.health.state !== 'healthy' ? one.health.state : 'in use';
  return one.status.state;
}

const whyOf = (one) => one.activity?.quarantine?.reason ?? one.status.reason ?? one.health?.reason ?? '';
const key = (one) => `${one.block} ${one.source}`;
const totals = (one) => Object.values(one.activity?.calls ?? {}).reduce((sum, calls) => ({ calls: sum.calls + calls.calls, failed: sum.failed + calls.failed, p99: Math.max(sum.p99, calls.p99_nanos) }), { calls: 0, failed: 0, p99: 0 });

const COLUMNS = [
  { key: 'name', title: 'Plugin', width: 'minmax(120px, 1fr)', sort: (one) => one.name, cell: (one) => html`<b>${one.name}</b>` },
  { key: 'kind', title: 'Kind', width: '90px', sort: (one) => one.kind ?? '', cell: (one) => one.kind ?? '' },
  { key: 'version', title: 'Version', width: '90px', cell: (one) => one.version ?? '' },
  { key: 'state', title: 'State', width: '130px', sort: stateOf, cell: (one) => html`<${Status} state=${stateOf(one)} title=${whyOf(one)} />` },
  { key: 'strikes', title: 'Strikes', width: '85px', end: true, sort: (one) => one.activity?.strikes ?? -1, cell: (one) => (one.activity ? `${one.activity.strikes_counted} of ${one.activity.strikes_max}` : '') },
  { key: 'calls', title: 'Calls', width: '85px', end: true, sort: (one) => totals(one).calls, cell: (one) => (one.activity ? totals(one).calls.toLocaleString('en') : '') },
  { key: 'failed', title: 'Failed', width: '80px', end: true, sort: (one) => totals(one).failed, cell: (one) => totals(one).failed || '' },
  { key: 'p99', title: 'Slowest p99', width: '110px', end: true, sort: (one) => totals(one).p99, cell: (one) => (totals(one).p99 ? nanos(totals(one).p99) : '') },
  { key: 'source', title: 'From', width: 'minmax(90px, 1fr)', cell: (one) => html`<span class="quiet" title=${one.source}>${one.source}</span>` },
];

export function PluginsView({ chosen }) {
  store.useTables(store.plugins, store.node);
  const refused = store.node.value?.refused;
  if (refused) return html`<${Heading} title="Plugins" /><${Refused} why=${refused} />`;
  const all = store.plugins.all();
  const one = all.filter((plugin) => plugin.name === chosen).sort((a) => (a.activity ? -1 : 1))[0];
  const empty = html`<${Empty} title="No plugins"><p>Put <code>*.wasm</code> files into the agent's <code>plugin_dir</code>, or name one in its configuration.</p></${Empty}>`;
  return html`
    <${Heading} title="Plugins" under="Drivers start tasks, device plugins report devices. Each call runs in a sandbox of its own." />
    <${List} label="Plugins" columns=${COLUMNS} rows=${all} rowKey=${key} order="name" open=${(row) => go('plugins', row.name)} empty=${empty} height=${one ? '45vh' : undefined} />
    ${one && html`<${Plugin} key=${key(one)} one=${one} />`}`;
}

function Plugin({ one }) {
  const { activity, upgrade } = one;
  const path = (what) => `v1/ostler/plugin/${encodeURIComponent(one.name)}/${what}`;
  const lift = () => confirm({
    title: `Lift the quarantine of ${one.name}?`,
    text: html`<p>Its strikes are forgotten and it is asked at once. If it fails again, it comes back here.</p>`,
    action: 'Lift it',
    done: `The quarantine of ${one.name} is lifted.`,
    run: () => ask('PUT', path('lift')),
  });
  const record = () => confirm({
    title: `Write down the last calls of ${one.name}?`,
    text: html`<p>They become a file in the data directory, for <code>ostler plugin replay</code>. Values that look like secrets are left out.</p>`,
    action: 'Write them down',
    run: async () => {
      const [said] = await ask('PUT', path('record'));
      if (said.error) throw new Error(said.error);
      note(said.file ? `Written to ${said.file}.` : 'Nothing is kept of it yet.');
    },
  });
  const renew = () => confirm({
    title: `Upgrade ${one.name}`,
    text: html`<p>The new file is tried beside the one in use. It takes over when it answers; when it does not prove itself, the old one comes back.</p>`,
    action: 'Upgrade',
    fields: [
      { name: 'file', label: 'Path of the file on the node; empty: its own file, changed', value: '' },
      { name: 'consents', label: 'I agree to more asks, and to an older version', type: 'checkbox', value: false },
    ],
    run: async ({ file, consents }) => {
      const said = await ask('PUT', path('upgrade'), { body: { file: file.trim() || null, consents } });
      note(`Upgrade of ${one.name}: ${outcome(said)}`);
    },
  });
  return html`
    <header class="heading under"><div><h2>${one.name}</h2><${Status} state=${stateOf(one)} /></div>
      ${activity && html`<div class="actions">
        ${activity.quarantine && html`<button class="primary" onClick=${lift}>Lift quarantine …</button>`}
        <button onClick=${renew}>Upgrade …</button><button onClick=${record}>Record …</button></div>`}</header>
    ${whyOf(one) && html`<p class="notice">${whyOf(one)}${activity?.quarantine && html`; since <${Ago} time=${activity.quarantine.since} />, ${activity.quarantine.until ? `tried again at ${moment(activity.quarantine.until)}` : 'until a person lifts it'}`}</p>`}
    <div class="columns even">
      <${Panel} title="What it asks and may"><${Permissions} one=${one} /></${Panel}>
      <${Panel} title="How it does">${activity ? html`
        <${Facts} of=${[['State', activity.state], ['Strikes', `${activity.strikes_counted} of ${activity.strikes_max} (${activity.strikes} lately)`],
          ['Quarantines', activity.quarantines || ''], ['Last answer', html`<${Ago} time=${activity.last_ok} />`], ['Next check', activity.next_check ? moment(activity.next_check) : 'when what it watches changes'],
          ['Processor time', nanos(activity.cpu_nanos)], ['Most memory of a call', bytes(activity.peak_memory_bytes)],
          ['Last error', activity.last_error && html`${activity.last_error.reason}, <${Ago} time=${activity.last_error.at} />`],
          ['Upgrades', upgrade ? `${upgrade.mode}${upgrade.last ? `; last ${moment(upgrade.last.at)}: ${outcome(upgrade.last)}` : ''}` : '']]} />` : html`<p class="quiet">It is not in use.</p>`}</${Panel}>
    </div>
    ${activity && html`<${Panel} title="Latency of its calls"><${Calls} calls=${activity.calls} /></${Panel}>`}`;
}

/** How an upgrade went, in words. */
function outcome({ outcome: state, reason, asks = [], downgrade }) {
  if (state === 'consent_needed') {
    const older = downgrade ? `; it is older (${downgrade.join(' and ')})` : '';
    return `it needs your consent${asks.length ? `: it asks for ${asks.join(', ')} too` : ''}${older}`;
  }
  const words = { same: 'it is what runs already', switched: 'it is in place and proves itself', accepted: 'it proved itself', refused: 'refused', rolled_back: 'the one before runs again' };
  return `${words[state] ?? state}${reason ? `: ${reason}` : ''}`;
}

function Permissions({ one }) {
  const read = useRead((signal) => get('v1/ostler/plugins', {}, signal), [one.digest, one.status.state]);
  if (read.error) return html`<${Trouble} error=${read.error} again=${read.again} />`;
  if (!read.value) return html`<${Loading} what="grants" />`;
  const entry = read.value.find((other) => other.name === one.block && other.source === one.source);
  if (!entry) return html`<p class="quiet">Nothing is known of it.</p>`;
  const grants = entry.grants ?? {};
  const paths = (list) => (list ?? []).map((file) => `${file.path}${file.write ? ' (may write)' : ''}`).join(', ');
  const answers = grants.answers ?? {};
  return html`<${Facts} of=${[
    ['Asks for', (entry.asks ?? []).join(', ')], ['Files', paths(grants.files)], ['Directories of tasks', paths(grants.dirs)],
    ['Commands', (grants.commands ?? []).map((command) => command.program).join(', ')], ['Connections', (grants.connect ?? []).map((to) => (typeof to === 'string' ? to : JSON.stringify(to))).join(', ')],
    ['Processes', grants.process ? 'may start tasks as processes' : ''], ['WASM tasks', grants.wasm_task ? 'may start them' : ''],
    ['Users', (grants.users ?? []).join(', ')], ['Groups it may report', (answers.groups ?? []).join(', ')], ['Mounts it may give', paths(answers.mounts)],
    ['Variables it may set', (answers.task_env ?? []).join(', ')], ['Trusted by', trust(one.trust)], ['Digest', html`<span class="mono">${(one.digest ?? '').slice(0, 16)}</span>`], ['Size', bytes(entry.size_bytes)],
  ]} />`;
}

const trust = (voucher) => (voucher ? [voucher.by, voucher.name, voucher.comment].filter(Boolean).join(' · ') : 'nobody');

function Calls({ calls }) {
  const rows = Object.entries(calls);
  if (!rows.length) return html`<p class="quiet">It has not been called.</p>`;
  return html`<table><thead><tr><th scope="col">Function</th><th scope="col" class="end">Calls</th><th scope="col" class="end">Failed</th><th scope="col" class="end">Half are faster than</th><th scope="col" class="end">99 of 100 are faster than</th><th scope="col" class="end">In</th><th scope="col" class="end">Out</th></tr></thead>
    <tbody>${rows.map(([name, one]) => html`<tr key=${name}><th scope="row">${name}</th><td class="end">${one.calls.toLocaleString('en')}</td><td class="end">${one.failed || ''}</td><td class="end">${nanos(one.p50_nanos)}</td><td class="end">${nanos(one.p99_nanos)}</td><td class="end">${bytes(one.bytes_in)}</td><td class="end">${bytes(one.bytes_out)}</td></tr>`)}</tbody></table>`;
}
