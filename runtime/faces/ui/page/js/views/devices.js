// Devices: what there is, how it is, who holds it, what it measures, live.

import { html, useState } from '../html.js';
import { Empty, Heading, Refused, Status } from '../parts.js';
import { Link, go } from '../place.js';
import { short } from '../format.js';
import { Filter, List, matching } from '../table.js';
import * as store from '../store.js';

/** A value of a plugin as text, with its unit. */
export function measured(value) {
  if (!value) return '';
  const number = value.int_numerator ?? value.float_numerator;
  const of = value.int_denominator ?? value.float_denominator;
  const unit = value.unit ? ` ${value.unit}` : '';
  const shown = (one) => (Number.isInteger(one) ? one.toLocaleString('en') : Number(one).toFixed(2));
  if (number !== null && number !== undefined) return of ? `${shown(number)} of ${shown(of)}${unit}` : `${shown(number)}${unit}`;
  return value.text ?? (value.boolean === null || value.boolean === undefined ? '' : String(value.boolean));
}

/** Everything a device measures: `[name, value]`, nested names with dots. */
function all(stats, prefix = '') {
  if (!stats) return [];
  const own = Object.entries(stats.attributes ?? {}).map(([name, value]) => [prefix + name, value]);
  return own.concat(Object.entries(stats.nested ?? {}).flatMap(([name, nested]) => all(nested, `${prefix}${name}.`)));
}

function rowsOf(groups) {
  return groups.flatMap((group) => group.instances.map((instance) => ({
    ...instance,
    group: `${group.group.vendor}/${group.group.type}/${group.group.name}`,
    plugin: group.plugin,
    stale: group.stale,
    attributes: group.attributes,
    key: `${group.group.vendor}/${group.group.type}/${group.group.name}/${instance.id}`,
  })));
}

function holder(row) {
  if (!row.holder) return html`<span class="quiet">free</span>`;
  const { alloc, job, task, note } = row.holder;
  return html`<${Link} to=${['allocations', alloc]} title=${note ?? ''}>${job ?? short(alloc)} · ${task}</${Link}>${note && html` <span class="quiet">${note}</span>`}`;
}

const COLUMNS = [
  { key: 'id', title: 'Device', width: 'minmax(140px, 1fr)', sort: (row) => row.id, cell: (row) => html`<span class="mono" title=${row.id}>${row.id}</span>` },
  { key: 'group', title: 'Group', width: 'minmax(160px, 1.2fr)', sort: (row) => row.group, cell: (row) => html`<span title=${row.group}>${row.group}</span>` },
  { key: 'health', title: 'Health', width: '120px', sort: (row) => row.health.state, cell: (row) => html`<${Status} state=${row.health.state} title=${row.health.reason} />` },
  { key: 'holder', title: 'Held by', width: 'minmax(140px, 1.2fr)', sort: (row) => row.holder?.job ?? '', cell: holder },
  { key: 'measured', title: 'Measures', width: 'minmax(130px, 1fr)', cell: (row) => (row.stats?.summary ? html`<span title=${row.stale ?? ''}>${row.stats.summary.description} <b>${measured(row.stats.summary)}</b>${row.stale && html` <${Status} state="stale" title=${row.stale} />`}</span>` : html`<span class="quiet">nothing</span>`) },
  { key: 'place', title: 'Place', width: '130px', cell: (row) => html`<span class="quiet">${row.locality?.pci_bus_id ?? ''}${row.locality?.numa_node !== null && row.locality?.numa_node !== undefined ? ` node ${row.locality.numa_node}` : ''}</span>` },
  { key: 'plugin', title: 'Plugin', width: '90px', sort: (row) => row.plugin ?? '', cell: (row) => (row.plugin ? html`<${Link} to=${['plugins', row.plugin]}>${row.plugin}</${Link}>` : html`<span class="quiet" title="no plugin reports it any longer">none</span>`) },
];

export function DevicesView() {
  store.useTables(store.devices, store.node);
  const [text, setText] = useState('');
  const [chosen, setChosen] = useState(null);
  const refused = store.node.value?.refused;
  if (refused) return html`<${Heading} title="Devices" /><${Refused} why=${refused} />`;
  const every = rowsOf(store.devices.all());
  const rows = matching(every, text, (row) => [row.id, row.group, row.plugin, row.health.state, row.holder?.job, row.holder?.task]);
  const one = every.find((row) => row.key === chosen);
  const empty = every.length === 0
    ? html`<${Empty} title="No devices"><p>Device plugins report them. <button onClick=${() => go('plugins')}>Plugins</button> says which are in use, and why others are not.</p></${Empty}>`
    : html`<${Empty} title="None of them matches"><p><button onClick=${() => setText('')}>Show all</button></p></${Empty}>`;
  return html`
    <${Heading} title="Devices" />
    <div class="tools"><${Filter} label="Filter devices" value=${text} change=${setText} count=${rows.length} all=${every.length} /></div>
    <div class=${one ? 'beside' : ''}>
      <${List} label="Devices" columns=${COLUMNS} rows=${rows} rowKey=${(row) => row.key} order="group" open=${(row) => setChosen(row.key)} empty=${empty} />
      ${one && html`<${Details} row=${one} close=${() => setChosen(null)} />`}
    </div>`;
}

function Details({ row, close }) {
  const stats = all(row.stats?.stats);
  return html`<aside class="panel detail" aria-label=${`Device ${row.id}`}>
    <header><h2 class="mono">${row.id}</h2><button class="quiet-button" onClick=${close} aria-label="Close">✕</button></header>
    <p><${Status} state=${row.health.state} /> ${row.health.reason}</p>
    <p>Held by: ${holder(row)}</p>
    <h3>Measures</h3>
    ${stats.length ? html`<dl class="facts narrow">${stats.map(([name, value]) => html`<div key=${name}><dt title=${value.description}>${name}</dt><dd>${measured(value)}</dd></div>`)}</dl>` : html`<p class="quiet">Nothing.</p>`}
    <h3>Attributes</h3>
    <dl class="facts narrow">${row.attributes.map(({ name, attribute }) => html`<div key=${name}><dt>${name}</dt><dd>${String(attribute.value)} ${attribute.unit ?? ''}</dd></div>`)}</dl>
  </aside>`;
}
