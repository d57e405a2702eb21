"use strict";
// Draws the steps and the timeline of each rank. Texts from outside are in the HTML already; what is shown from the data
// goes through textContent or fillText.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const ms = (value) => {
    const size = Math.abs(value);
    if (size === 0 || size >= 99.95) return value.toFixed(0);
    return value.toFixed(size >= 0.995 ? 1 : size >= 0.00995 ? 2 : 3);
  };
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const blame = (step) => Object.entries(step.blame_ms).filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  const taken = (step) => step.begun_ms + step.wait_ms; // when the loop had the batch
  const ended = (step) => taken(step) + (step.loop_ms || 0);

  /** A canvas that is drawn again when its size or the colours change. */
  const surface = (canvas, draw) => {
    const redraw = () => {
      const width = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
      if (!width || !height) return;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
      const brush = canvas.getContext("2d");
      brush.scale(scale, scale);
      brush.font = "12px system-ui, sans-serif";
      brush.textBaseline = "middle";
      const colors = {}, paint = (name) => (colors[name] ??= color(name));
      const rectangle = (x, y, wide, tall, name) => {
        brush.fillStyle = paint(name);
        brush.fillRect(x, y, wide, tall);
      };
      const words = (text, x, y, align) => {
        brush.fillStyle = paint("dim");
        brush.textAlign = align;
        brush.fillText(text, x, y);
      };
      draw({ brush, paint, rectangle, words, width, height });
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

  const describe = (rank, number) => {
    const step = rank.steps[number];
    const parts = blame(step).slice(0, 4).map(([state, value]) => `${data.states[state][0]} ${ms(value)}`).join(", ");
    const loop = step.loop_ms === null ? "" : `, the loop took ${ms(step.loop_ms)} ms`;
    const facts = [step.batch === null ? "" : `batch ${step.batch}`, number < rank.num_warmup ? "warm-up" : ""].filter(Boolean);
    const which = facts.length ? ` (${facts.join(", ")})` : "";
    const stall = `stall ${ms(step.stall_ms)} ms${parts ? `: ${parts}` : ""}`;
    return `Step ${number}${which}: waited ${ms(step.wait_ms)} ms${loop}; ${stall}`;
  };

  const strip = (place, rank, show) => {
    const canvas = byId(`strip-${place}`);
    if (!canvas) return;
    const steps = rank.steps, left = 44, foot = 20, head = 12;
    const whole = steps.map((step) => Math.max(step.wait_ms + (step.loop_ms || 0), step.stall_ms));
    const sorted = [...whole].sort((a, b) => a - b);
    // One step of a minute must not make all the others invisible: what is cut off gets a mark.
    const top = Math.min(sorted[sorted.length - 1], 3 * sorted[Math.floor(sorted.length * 0.9)]) * 1.04 || 1;
    let chosen = -1;
    const redraw = surface(canvas, ({ brush, paint, rectangle, words, width, height }) => {
      const room = width - left, tall = height - foot - head, each = Math.ceil(steps.length / room) || 1;
      const columns = Math.ceil(steps.length / each), wide = room / columns;
      const y = (value) => head + tall - (Math.min(value, top) / top) * tall;
      for (const at of ticks(0, top, 4)) {
        rectangle(left, Math.round(y(at)), room, 1, "line");
        words(ms(at), left - 6, y(at), "right");
      }
      for (let column = 0; column < columns; column++) {
        let number = column * each; // of those that share a column the slowest is shown
        for (let one = number; one < Math.min(number + each, steps.length); one++)
          if (whole[one] > whole[number]) number = one;
        const x = left + column * wide, gap = wide > 5 ? 1 : 0;
        const bar = (low, high, name) => rectangle(x, y(high), wide - gap, Math.max(y(low) - y(high), 0.5), name);
        let from = Math.max(whole[number] - steps[number].stall_ms, 0);
        bar(0, from, "compute");
        for (const [state, value] of blame(steps[number])) {
          bar(from, from + value, data.states[state][1]);
          from += value;
        }
        if (whole[number] > top) {
          brush.fillStyle = paint("ink");
          brush.beginPath();
          brush.moveTo(x, head - 2);
          brush.lineTo(x + Math.max(wide, 6) / 2, head - 9);
          brush.lineTo(x + Math.max(wide, 6), head - 2);
          brush.fill();
        }
        if (Math.floor(chosen / each) === column) {
          brush.strokeStyle = paint("ink");
          brush.lineWidth = 2;
          brush.strokeRect(x - 1, head, Math.max(wide, 3) + 1, tall);
        }
      }
      if (rank.num_warmup > 0 && rank.num_warmup < steps.length) { // steps that do not count are faint
        const until = (rank.num_warmup / steps.length) * room;
        brush.globalAlpha = 0.6;
        rectangle(left, head, until, tall, "card");
        brush.globalAlpha = 1;
        rectangle(left + until - 1, head - 10, 1, tall + 10, "dim");
        words("← warm-up", left + until + 4 - (until > 70 ? 70 : 0), 6, "left");
      }
      for (const at of ticks(0, steps.length - 1, width / 110))
        if (Number.isInteger(at))
          words(at, clamp(left + ((at + 0.5) / steps.length) * room, left + 4, width - 14), height - 8, "center");
      words("ms", 2, 6, "left");
    });
    const choose = (number) => {
      chosen = clamp(number, 0, steps.length - 1);
      byId(`strip-says-${place}`).textContent = describe(rank, chosen);
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

  /** Draw the timeline; returns a function that shows a step in it. */
  const timeline = (place, rank) => {
    const canvas = byId(`timeline-${place}`);
    if (!canvas) return () => {};
    const { steps, tasks, pins } = rank, left = 62, foot = 22;
    const workers = [...new Set(tasks.map((task) => task.worker))].sort((a, b) => a - b);
    const high = workers.length > 24 ? 8 : workers.length > 10 ? 13 : 20, mainHigh = 26, pinHigh = pins.length ? 14 : 0;
    const top = mainHigh + 4 + (pinHigh ? pinHigh + 3 : 0);
    const row = new Map(workers.map((worker, number) => [worker, top + number * (high + 2)]));
    canvas.style.height = `${top + workers.length * (high + 2) + foot}px`;
    const lengths = tasks.map((task) => task.ended_ms - task.begun_ms).sort((a, b) => a - b);
    const long = 1.5 * lengths[Math.floor(lengths.length / 2)];
    const key = (one) => `${one.pass_number}/${one.batch}`;
    const stepOf = new Map(steps.map((step, number) => [key(step), number]).filter(([, number]) => steps[number].batch !== null));
    const begin = tasks.reduce((least, task) => Math.min(least, task.begun_ms), 0);
    const end = Math.max(ended(steps[steps.length - 1]), begin + 1);
    // At first as many steps as can be told apart, after the warm-up.
    const first = rank.num_warmup < steps.length ? rank.num_warmup : 0;
    let from = first ? steps[first].begun_ms : begin, marked = [];
    let to = clamp(taken(steps[Math.min(steps.length - 1, first + 24)]), from + 1, end);
    const redraw = surface(canvas, ({ brush, paint, rectangle, words, width, height }) => {
      const room = width - left, x = (at) => left + ((at - from) / (to - from)) * room;
      const box = (low, up, y, tall, name) => {
        if (up < from || low > to) return;
        const at = Math.max(x(low), left), size = Math.min(x(up), width) - at;
        rectangle(at, y, Math.max(size - (size > 4 ? 1 : 0), 0.6), tall, name);
      };
      for (const at of ticks(from, to, room / 90)) {
        rectangle(Math.round(x(at)), 0, 1, height - foot, "line");
        const label = at === 0 ? "0" : to - from >= 4000 ? `${+(at / 1000).toFixed(2)} s` : `${+at.toFixed(3)} ms`;
        words(label, clamp(x(at), left + 10, width - 26), height - 9, "center");
      }
      for (const step of steps) {
        if (step.loop_ms !== null) box(taken(step), ended(step), 0, mainHigh, "compute");
        box(taken(step) - step.stall_ms, taken(step), 0, mainHigh, "cores");
      }
      for (const pin of pins) box(pin.begun_ms, pin.ended_ms, mainHigh + 4, pinHigh, "moving");
      for (const task of tasks) {
        const name = task.ended_ms - task.begun_ms > long ? "cpu" : "storage";
        box(task.begun_ms, task.ended_ms, row.get(task.worker), high, name);
      }
      brush.strokeStyle = paint("ink");
      brush.lineWidth = 2;
      for (const [low, up, y, tall] of marked) {
        const at = Math.max(x(low), left);
        if (up >= from && low <= to) brush.strokeRect(at, y + 1, Math.max(Math.min(x(up), width) - at, 2), tall - 2);
      }
      words("main", 0, mainHigh / 2, "left");
      if (pinHigh) words("pin", 0, mainHigh + 4 + pinHigh / 2, "left");
      workers.forEach((worker, number) => {
        if (worker >= 0 && number % (high >= 13 ? 1 : 4) === 0) words(`worker ${worker}`, 0, row.get(worker) + high / 2, "left");
      });
    });
    /** Mark a batch, given a task or a step of it. */
    const mark = (one, text) => {
      const number = stepOf.get(key(one)), step = steps[number];
      marked = tasks.filter((task) => key(task) === key(one)).map((task) => [task.begun_ms, task.ended_ms, row.get(task.worker), high]);
      if (step) marked.push([step.begun_ms, taken(step), 0, mainHigh]);
      byId(`timeline-says-${place}`).textContent = [text, step && describe(rank, number)].filter(Boolean).join(". ");
      redraw();
    };
    const view = (low, size) => {
      const width = clamp(size, 0.05, end - begin);
      from = clamp(low, begin, end - width);
      to = from + width;
      redraw();
    };
    const zoom = (factor) => view((from + to) / 2 - ((to - from) * factor) / 2, (to - from) * factor);
    const acts = {
      earlier: () => view(from - (to - from) * 0.4, to - from),
      later: () => view(from + (to - from) * 0.4, to - from),
      "zoom in": () => zoom(0.5),
      "zoom out": () => zoom(2),
      "show all": () => view(begin, end - begin),
    };
    document.querySelectorAll(`button[data-of="${place}"]`).forEach((button) => button.addEventListener("click", acts[button.title]));
    let held = null;
    canvas.addEventListener("pointerdown", (event) => { held = event.clientX; canvas.setPointerCapture(event.pointerId); });
    for (const type of ["pointerup", "pointercancel"]) canvas.addEventListener(type, () => { held = null; });
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect(), each = (to - from) / (box.width - left);
      if (held !== null) {
        view(from - (event.clientX - held) * each, to - from);
        held = event.clientX;
        return;
      }
      const at = from + (event.clientX - box.left - left) * each, y = event.clientY - box.top;
      if (y <= mainHigh) {
        const step = steps.find((one) => one.begun_ms <= at && at <= ended(one));
        if (step) mark(step);
        return;
      }
      const task = tasks.find((one) => one.begun_ms <= at && at <= one.ended_ms && y >= row.get(one.worker) && y <= row.get(one.worker) + high);
      if (!task) return;
      const time = task.ended_ms - task.begun_ms, who = task.worker < 0 ? "Main thread" : `Worker ${task.worker}`;
      mark(task, `${who}, batch ${task.batch}: ${time >= 10000 ? `${(time / 1000).toFixed(1)} s` : `${ms(time)} ms`}`);
    });
    return (number) => {
      view(taken(steps[number]) - (to - from) * 0.6, to - from);
      mark(steps[number]);
      byId(`timeline-says-${place}`).textContent = describe(rank, number);
    };
  };

  data.ranks.forEach((rank, place) => strip(place, rank, timeline(place, rank)));

  byId("rank")?.addEventListener("change", (event) => {
    document.querySelectorAll("[data-rank]").forEach((part) => { part.hidden = part.dataset.rank !== event.target.value; });
  });
})();
