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

/** The box has 14 pixels of padding on both sides. */
function widthOf(element) {
  return Math.max(element.clientWidth - 28, 200);
}

const STEPS_S = [5, 10, 15, 30, 60, 120, 300];

function clock(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });
}

function shown(plot, value, place, format) {
  const last = value ?? plot?.data[place]?.at(-1);
  return last == null ? "–" : format(last);
}

/**
 * `times` in seconds, `lines`: [{name, tone, values, fill}]; shows at least `spanS` seconds up to the last
 * time. The legend shows the last values, or those under the pointer.
 */
export function Chart({ times, lines, spanS, height = 260, format = count }) {
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
        value: (own, value, place) => shown(own, value, place, format),
      };
    });
    const made = new uPlot(
      {
        width: widthOf(element),
        height,
        padding: [12, 26, 0, 0],
        cursor: { drag: { x: false, y: false }, points: { size: 7 } },
        legend: { live: true },
        scales: { x: { time: true, range: (_, low, high) => [Math.min(low ?? 0, (high ?? 0) - spanS), high ?? 0] }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 5)] } },
        axes: [
          { ...axis, size: 34, space: 90, incrs: STEPS_S, values: (_, splits) => splits.map(clock) },
          { ...axis, size: 62, values: (_, splits) => splits.map((value) => (value == null ? "" : format(value))) },
        ],
        series: [{ label: "Time", value: (own, value, place) => shown(own, value, place, clock) }, ...series],
      },
      [times, ...lines.map((line) => line.values)],
      element,
    );
    plot.current = made;
    const watch = new ResizeObserver(() => {
      made.setSize({ width: widthOf(element), height });
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
