// Begins the page: which view an address shows, and the feed.

import { html, render, useEffect, useErrorBoundary, useRef } from './html.js';
import { onDenied } from './api.js';
import { Dialogs } from './dialog.js';
import { run } from './feed.js';
import { usePlace } from './place.js';
import { Shell, askToken } from './shell.js';
import { Trouble } from './parts.js';
import { NodeView } from './views/node.js';
import { JobsView } from './views/jobs.js';
import { JobView } from './views/job.js';
import { RunView } from './views/run.js';
import { AllocsView } from './views/allocs.js';
import { AllocView } from './views/alloc.js';
import { DeploymentsView } from './views/deployments.js';
import { DevicesView } from './views/devices.js';
import { PluginsView } from './views/plugins.js';

/** By the first part of the address; Nomad's pages have the same names. */
function view([first, second, ...rest]) {
  switch (first) {
    case undefined:
    case 'clients':
      return html`<${NodeView} />`;
    case 'jobs':
      if (second === 'run') return html`<${RunView} />`;
      return second ? html`<${JobView} key=${second} part=${second} />` : html`<${JobsView} />`;
    case 'allocations':
      return second ? html`<${AllocView} key=${second} id=${second} rest=${rest} />` : html`<${AllocsView} />`;
    case 'deployments':
      return html`<${DeploymentsView} />`;
    case 'devices':
      return html`<${DevicesView} />`;
    case 'plugins':
      return html`<${PluginsView} chosen=${second} />`;
    default:
      return html`<${Trouble} error=${{ message: `the page has no view “${first}”`, next: 'Choose one at the left.' }} />`;
  }
}

function App() {
  const place = usePlace();
  const [error, reset] = useErrorBoundary((caught) => console.error(caught));
  const first = useRef(true);
  const name = place.slice(0, 2).join('/');
  useEffect(() => {
    // Where the focus goes when a link changed the view: to its heading, which is read out.
    if (!first.current) document.querySelector('main h1')?.focus();
    first.current = false;
    if (error) reset();
  }, [name]);
  return html`<${Shell}>${error ? html`<${Trouble} error=${error} again=${reset} />` : view(place)}</${Shell}><${Dialogs} />`;
}

onDenied((problem) => {
  if (!document.querySelector('dialog[open]')) askToken(`The agent refused: ${problem.message}`);
});
const root = document.getElementById('app');
render(html`<${App} />`, root);
root.removeAttribute('aria-busy');
performance.mark('interactive');
run();
