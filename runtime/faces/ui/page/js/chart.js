// Use over time, drawn by uPlot, which is loaded when the first chart is shown. Seconds that nobody looked at are a gap.

import { html, useEffect, useRef } from './html.js';
import { clock } from './format.js';
import { themeChanged } from './shell.js';
import { history, use } from './store.js';

/** Seconds without a value after which a line has a gap: a machine at rest says one each ten. */
const GAP = 15;
const HEIGHT = 230;

function data() {
  const columns = [[], [], []];
  let last = 0;
  for (const [seconds, ...values] of history) {
    if (last && seconds - last > GAP) [last + 1, null, null].forEach((value, index) => columns[index].push(value));
    [seconds, ...values].forEach((value, index) => columns[index].push(value));
    last = seconds;
  }
  return columns;
}

/** At least two minutes are shown, so that a line does not begin across the whole width. */
const range = (_, low, high) => {
  const end = Number.isFinite(high) && high ? high : Date.now() / 1000;
  return [Math.min(Number.isFinite(low) && low ? low : end, end - 120), end];
};

function options(width) {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const axis = { stroke: colour('--quiet-now'), grid: { stroke: colour('--line-now'), width: 1 }, ticks: { show: false }, font: '12px system-ui, sans-serif' };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { x: { time: true, range }, y: { range: [0, 100] } },
    axes: [
      { ...axis, values: (_, all) => all.map((at) => clock(at * 1000)), space: 90, size: 34 },
      { ...axis, values: (_, all) => all.map((value) => `${value} %`), size: 52, space: 40 },
    ],
    series: [
      {},
      { label: 'processors', stroke: colour('--cpu-now'), width: 2, points: { show: false } },
      { label: 'memory', stroke: colour('--memory-now'), width: 2, points: { show: false } },
    ],
  };
}

export function Chart() {
  const box = useRef(null);
  useEffect(() => {
    const element = box.current;
    let plot = null;
    let Plot = null;
    // The clean-up of an effect comes after the next paint, and so does what is called meanwhile: what
    // was taken out of the page is not drawn.
    const make = () => {
      plot?.destroy();
      plot = element.isConnected ? new Plot(options(element.clientWidth), data(), element) : null;
    };
    const grow = () => plot?.setData(data());
    const size = new ResizeObserver(() => { if (plot && element.clientWidth) plot.setSize({ width: element.clientWidth, height: HEIGHT }); });
    import('../vendor/uplot.js').then((module) => {
      if (!element.isConnected) return;
      Plot = module.default;
      make();
      size.observe(element);
      use.listeners.add(grow);
      themeChanged.addEventListener('change', make);
    });
    return () => {
      size.disconnect();
      use.listeners.delete(grow);
      themeChanged.removeEventListener('change', make);
      plot?.destroy();
    };
  }, []);
  return html`<div class="chart" ref=${box} role="img" aria-label="Use of processors and memory since the page was opened; the numbers are in “Use now”"></div>`;
}
