"use strict";
// Draws the steps and the timeline of each rank, and answers the sliders. All words of others are in the HTML already;
// what is shown from the data goes through textContent or fillText.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const ms = (value) => {
    const size = Math.abs(value);
    if (size === 0 || size >= 99.95) return value.toFixed(0);
    return value.toFixed(size >= 0.995 ? 1 : size >= 0.00995 ? 2 : 3);
  };
  const time = (value) => (Math.abs(value) >= 10000 ? `${(value / 1000).toFixed(1)} s` : `${ms(value)} ms`);
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  /** A canvas that is drawn anew when its size or the colours change. */
  const surface = (canvas, draw) => {
    const redraw = () => {
      const width = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
      if (!width || !height) return;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      const brush = canvas.getContext("2d");
      brush.scale(scale, scale);
      brush.font = "12px system-ui, sans-serif";
      draw(brush, width, height);
    };
    new ResizeObserver(redraw).observe(canvas);
    for (const media of ["(prefers-color-scheme: dark)", "print"]) matchMedia(media).addEventListener("change", redraw);
    return redraw;
  };

  /** Round numbers between two values, about so many. */
  const ticks = (low, high, number) => {
    const rough = (high - low) / Math.max(number, 1);
    if (!(rough > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(rough));
    const size = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
    const found = [];
    for (let at = Math.ceil(low / size); at * size <= high; at++) found.push(at * size);
    return found;
  };

  const say = (rank, number) => {
    const [, wait, loop, stall, batch, , blame] = rank.steps[number];
    const parts = blame.slice(0, 4).map(([state, value]) => `${data.states[state][0]} ${ms(value)}`).join(", ");
    const rest = loop === null ? "" : `, the loop took ${ms(loop)} ms`;
    const facts = [batch === null ? "" : `batch ${batch}`, number < rank.warmup ? "warm-up" : ""].filter(Boolean).join(", ");
    const which = facts ? ` (${facts})` : "";
    return `Step ${number}${which}: waited ${ms(wait)} ms${rest}; stall ${ms(stall)} ms${parts ? `: ${parts}` : ""}`;
  };

  const strip = (place, rank, show) => {
    const canvas = byId(`strip-${place}`);
    if (!canvas) return;
    const steps = rank.steps, left = 44, foot = 20, head = 12;
    const whole = steps.map(([, wait, loop, stall]) => Math.max(wait + (loop === null ? 0 : loop), stall));
    const sorted = [...whole].sort((a, b) => a - b);
    // One step of a minute must not make all the others invisible: what is cut off gets a mark.
    const top = Math.min(sorted[sorted.length - 1], 3 * sorted[Math.floor(sorted.length * 0.9)]) * 1.04 || 1;
    let chosen = -1;
    const redraw = surface(canvas, (brush, width, height) => {
      const room = width - left, tall = height - foot - head, each = Math.ceil(steps.length / room) || 1;
      const columns = Math.ceil(steps.length / each), wide = room / columns;
      const y = (value) => head + tall - (Math.min(value, top) / top) * tall;
      brush.textBaseline = "middle";
      for (const at of ticks(0, top, 4)) {
        brush.fillStyle = color("line");
        brush.fillRect(left, Math.round(y(at)), room, 1);
        brush.fillStyle = color("dim");
        brush.textAlign = "right";
        brush.fillText(ms(at), left - 6, y(at));
      }
      for (let column = 0; column < columns; column++) {
        let number = column * each; // of those that share a column the slowest is shown
        for (let one = number; one < Math.min(number + each, steps.length); one++)
          if (whole[one] > whole[number]) number = one;
        const x = left + column * wide, gap = wide > 5 ? 1 : 0;
        let from = Math.max(whole[number] - steps[number][3], 0);
        const bar = (low, high, paint) => {
          brush.fillStyle = paint;
          brush.fillRect(x, y(high), wide - gap, Math.max(y(low) - y(high), 0.5));
        };
        bar(0, from, color("compute"));
        for (const [state, value] of steps[number][6]) {
          bar(from, from + value, color(data.states[state][1]));
          from += value;
        }
        if (whole[number] > top) {
          brush.fillStyle = color("ink");
          brush.beginPath();
          brush.moveTo(x, head - 2);
          brush.lineTo(x + Math.max(wide, 6) / 2, head - 9);
          brush.lineTo(x + Math.max(wide, 6), head - 2);
          brush.fill();
        }
        if (chosen >= number && chosen < number + each && chosen >= column * each) {
          brush.strokeStyle = color("ink");
          brush.lineWidth = 2;
          brush.strokeRect(x - 1, head, Math.max(wide, 3) + 1, tall);
        }
      }
      if (rank.warmup > 0 && rank.warmup < steps.length) { // steps on which nothing rests are faint
        const until = (rank.warmup / steps.length) * room;
        brush.globalAlpha = 0.6;
        brush.fillStyle = color("card");
        brush.fillRect(left, head, until, tall);
        brush.globalAlpha = 1;
        brush.fillStyle = color("dim");
        brush.fillRect(left + until - 1, head - 10, 1, tall + 10);
        brush.textAlign = "left";
        brush.fillText("← warm-up", left + until + 4 - (until > 70 ? 70 : 0), 6);
      }
      brush.fillStyle = color("dim");
      brush.textAlign = "center";
      for (const at of ticks(0, steps.length - 1, width / 110))
        if (Number.isInteger(at)) brush.fillText(at, clamp(left + ((at + 0.5) / steps.length) * room, left + 4, width - 14), height - 8);
      brush.textAlign = "left";
      brush.fillText("ms", 2, 6);
    });
    const choose = (number) => {
      chosen = clamp(number, 0, steps.length - 1);
      byId(`strip-says-${place}`).textContent = say(rank, chosen);
      redraw();
    };
    const under = (event) => {
      const box = canvas.getBoundingClientRect();
      return Math.floor(((event.clientX - box.left - left) / (box.width - left)) * steps.length);
    };
    canvas.addEventListener("pointermove", (event) => choose(under(event)));
    canvas.addEventListener("click", (event) => { choose(under(event)); show(chosen); });
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: chosen - 1, ArrowRight: chosen + 1, Home: 0, End: steps.length - 1 };
      if (event.key === "Enter" && chosen >= 0) show(chosen);
      else if (event.key in moves) choose(moves[event.key]);
      else return;
      event.preventDefault();
    });
  };

  const timeline = (place, rank) => {
    const canvas = byId(`timeline-${place}`);
    if (!canvas) return () => {};
    const { steps, tasks, pins } = rank, left = 62, foot = 22;
    const workers = [...new Set(tasks.map((task) => task[0]))].sort((a, b) => a - b);
    const high = workers.length > 24 ? 8 : workers.length > 10 ? 13 : 20, mainHigh = 26, pinHigh = pins.length ? 14 : 0;
    const row = new Map(workers.map((worker, number) => [worker, mainHigh + 4 + (pinHigh ? pinHigh + 3 : 0) + number * (high + 2)]));
    canvas.style.height = `${mainHigh + 4 + (pinHigh ? pinHigh + 3 : 0) + workers.length * (high + 2) + foot}px`;
    const last = steps[steps.length - 1];
    const begin = tasks.reduce((least, task) => Math.min(least, task[1]), 0), end = last[0] + last[1] + (last[2] || 0);
    const lengths = tasks.map((task) => task[2] - task[1]).sort((a, b) => a - b);
    const long = 1.5 * lengths[Math.floor(lengths.length / 2)];
    const stepOf = new Map(steps.map((step, number) => [`${step[5]}/${step[4]}`, number]));
    const whole = [begin, Math.max(end, begin + 1)];
    // At first as many steps as can be told apart, after the warm-up.
    const first = rank.warmup < steps.length ? rank.warmup : 0, until = steps[Math.min(steps.length - 1, first + 24)];
    let from = first ? steps[first][0] : begin, to = clamp(until[0] + until[1], from + 1, whole[1]), marked = null;
    const redraw = surface(canvas, (brush, width, height) => {
      const room = width - left, x = (at) => left + ((at - from) / (to - from)) * room;
      const box = (low, up, y, tall, paint) => {
        if (up < from || low > to) return;
        const at = Math.max(x(low), left), size = Math.min(x(up), width) - at;
        brush.fillStyle = paint;
        brush.fillRect(at, y, Math.max(size - (size > 4 ? 1 : 0), 0.6), tall);
      };
      const paints = Object.fromEntries(["compute", "cores", "storage", "cpu", "line", "dim", "ink", "moving"].map((one) => [one, color(one)]));
      brush.textBaseline = "middle";
      brush.textAlign = "center";
      for (const at of ticks(from, to, room / 90)) {
        brush.fillStyle = paints.line;
        brush.fillRect(Math.round(x(at)), 0, 1, height - foot);
        brush.fillStyle = paints.dim;
        brush.fillText(at === 0 ? "0" : to - from >= 4000 ? `${+(at / 1000).toFixed(2)} s` : `${+at.toFixed(3)} ms`, clamp(x(at), left + 10, width - 26), height - 9);
      }
      steps.forEach(([begun, wait, loop, stall]) => {
        if (loop !== null) box(begun + wait, begun + wait + loop, 0, mainHigh, paints.compute);
        box(begun + wait - stall, begun + wait, 0, mainHigh, paints.cores);
      });
      for (const [begun, ended] of pins) box(begun, ended, mainHigh + 4, pinHigh, paints.moving);
      for (const [worker, begun, ended] of tasks) box(begun, ended, row.get(worker), high, ended - begun > long ? paints.cpu : paints.storage);
      if (marked) {
        brush.strokeStyle = paints.ink;
        brush.lineWidth = 2;
        for (const [low, up, y, tall] of marked)
          if (up >= from && low <= to) brush.strokeRect(Math.max(x(low), left), y + 1, Math.max(Math.min(x(up), width) - Math.max(x(low), left), 2), tall - 2);
      }
      brush.fillStyle = paints.dim;
      brush.textAlign = "left";
      brush.fillText("main", 0, mainHigh / 2);
      if (pinHigh) brush.fillText("pin", 0, mainHigh + 4 + pinHigh / 2);
      const every = high >= 13 ? 1 : 4;
      workers.forEach((worker, number) => {
        if (worker >= 0 && number % every === 0) brush.fillText(`worker ${worker}`, 0, row.get(worker) + high / 2);
      });
    });
    const mark = (batch, pass, words) => {
      marked = tasks.filter((task) => task[3] === batch && task[4] === pass).map((task) => [task[1], task[2], row.get(task[0]), high]);
      const number = stepOf.get(`${pass}/${batch}`);
      if (number !== undefined && batch !== null) marked.push([steps[number][0], steps[number][0] + steps[number][1], 0, mainHigh]);
      const step = number === undefined || batch === null ? "" : say(rank, number);
      byId(`timeline-says-${place}`).textContent = [words, step].filter(Boolean).join(". ");
      redraw();
    };
    const choose = (number) => {
      mark(steps[number][4], steps[number][5], "");
      byId(`timeline-says-${place}`).textContent = say(rank, number);
    };
    const view = (low, size) => {
      const width = clamp(size, 0.05, whole[1] - whole[0]);
      from = clamp(low, whole[0], whole[1] - width);
      to = from + width;
      redraw();
    };
    const zoom = (factor) => view((from + to) / 2 - ((to - from) * factor) / 2, (to - from) * factor);
    const acts = {
      back: () => view(from - (to - from) * 0.4, to - from), on: () => view(from + (to - from) * 0.4, to - from),
      in: () => zoom(0.5), out: () => zoom(2), all: () => view(whole[0], whole[1] - whole[0]),
    };
    document.querySelectorAll(`button[data-of="${place}"]`).forEach((button) => button.addEventListener("click", acts[button.dataset.do]));
    canvas.addEventListener("keydown", (event) => {
      const name = { ArrowLeft: "back", ArrowRight: "on", "+": "in", "=": "in", "-": "out", 0: "all" }[event.key];
      if (!name) return;
      acts[name]();
      event.preventDefault();
    });
    let held = null;
    canvas.addEventListener("pointerdown", (event) => { held = event.clientX; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { held = null; });
    canvas.addEventListener("pointercancel", () => { held = null; });
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect(), room = box.width - left;
      if (held !== null) {
        const moved = event.clientX - held;
        held = event.clientX;
        view(from - (moved / room) * (to - from), to - from);
        return;
      }
      const at = from + ((event.clientX - box.left - left) / room) * (to - from), y = event.clientY - box.top;
      if (y <= mainHigh) {
        const number = steps.findIndex(([begun, wait, loop]) => begun <= at && at <= begun + wait + (loop || 0));
        if (number >= 0) choose(number);
        return;
      }
      const task = tasks.find((one) => one[1] <= at && at <= one[2] && row.get(one[0]) <= y && y <= row.get(one[0]) + high);
      if (task) mark(task[3], task[4], `${task[0] < 0 ? "Main thread" : `Worker ${task[0]}`}, batch ${task[3]}: ${time(task[2] - task[1])}`);
    });
    return (number) => {
      const [begun, wait] = steps[number], size = to - from;
      view(begun + wait - size * 0.6, size);
      choose(number);
    };
  };

  data.ranks.forEach((rank, place) => strip(place, rank, timeline(place, rank)));

  const choice = byId("rank");
  if (choice) {
    choice.addEventListener("change", () => {
      document.querySelectorAll("[data-rank]").forEach((part) => { part.hidden = part.dataset.rank !== choice.value; });
    });
  }

  if (byId("whatif")) {
    const answer = () => {
      const row = +byId("workers").value, column = +byId("prefetch").value;
      const value = data.grid[row] ? data.grid[row][column] : null;
      for (const [name, values, at] of [["workers", data.workers, row], ["prefetch", data.prefetch, column]]) {
        byId(`${name}-value`).textContent = values[at];
        byId(name).setAttribute("aria-valuetext", values[at]);
      }
      let cell = null; // the table beside is where predictions are written
      document.querySelectorAll("[data-cell]").forEach((one) => {
        const here = one.dataset.cell === `${row}-${column}`;
        one.classList.toggle("here", here);
        if (here) cell = one;
      });
      const known = value !== null && value !== undefined;
      const scale = known ? Math.max(value, data.observed) : data.observed;
      const size = (name, time) => { if (byId(`bar-${name}`)) byId(`bar-${name}`).style.width = `${(time / scale) * 100}%`; };
      byId("predicted").textContent = known ? `${cell.textContent} ms` : "not simulated";
      byId("versus").textContent = known ? `a step, predicted: ${(data.observed / value).toFixed(2)}x the observed speed` : "";
      byId("value-prediction").textContent = known ? `${cell.textContent} ms` : "-";
      size("prediction", known ? value : 0);
      size("observed", data.observed);
      size("ceiling", data.ceiling);
    };
    byId("workers").addEventListener("input", answer);
    byId("prefetch").addEventListener("input", answer);
    answer();
  }
})();
