// A live chart over time on uPlot; colours come from the style sheet, so they follow the theme.
import { html, useEffect, useRef } from "./lib.js";
import uPlot from "../vendor/uplot.js";
import { count } from "./format.js";
import { theme } from "./theme.js";

function colour(element, name) {
  element.style.color = `var(${name})`;
  const value = getComputedStyle(element).color;
  element.style.color = "";
  return value;
}

/**
 * `times` in seconds, `lines`: [{name, tone, values, fill, unit}]. `stacked` draws each line on top of the
 * one before.
 */
export function Chart({ times, lines, height = 260, format = count }) {
  const box = useRef(null);
  const plot = useRef(null);
  const shape = lines.map((line) => `${line.name}:${line.tone}`).join("|");
  const mode = theme.value;

  useEffect(() => {
    const element = box.current;
    const ink = colour(element, "--muted");
    const grid = colour(element, "--line");
    const axis = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const series = lines.map((line) => {
      const stroke = colour(element, `--tone-${line.tone}`);
      return {
        label: line.name,
        stroke,
        width: 2,
        fill: line.fill ? colour(element, `--tone-${line.tone}-soft`) : undefined,
        points: { show: false },
        value: (_, value) => (value == null ? "–" : format(value)),
      };
    });
    const made = new uPlot(
      {
        width: Math.max(element.clientWidth, 200),
        height,
        padding: [12, 12, 0, 0],
        cursor: { drag: { x: false, y: false }, points: { size: 7 } },
        legend: { live: true },
        scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
        axes: [
          { ...axis, space: 80 },
          { ...axis, size: 62, values: (_, splits) => splits.map((value) => (value == null ? "" : format(value))) },
        ],
        series: [{ label: "Time", value: (_, value) => (value == null ? "–" : new Date(value * 1000).toLocaleTimeString()) }, ...series],
      },
      [times, ...lines.map((line) => line.values)],
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => {
      if (element.clientWidth > 0) made.setSize({ width: element.clientWidth, height });
    });
    watch.observe(element);
    return () => {
      watch.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape, height, mode]);

  useEffect(() => {
    plot.current?.setData([times, ...lines.map((line) => line.values)]);
  });

  return html`<div class="chart" ref=${box}></div>`;
}
