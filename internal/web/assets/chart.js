// Charts of rates over time, and of bytes by period.
import {bytes, colour, dash, el, number, pathOf, rate, svg} from './words.js';

// mostBars is enough for the minutes of an hour and the hours of two days.
const mostBars = 60;

// What is shown grows from a minute to five, in milliseconds.
const least = 60_000, span = 300_000;

// pathRates returns the rates of paths, of which the direct one is always there.
export function pathRates(loads) {
	const sums = new Map([['direct', 0]]);
	for (const l of loads) sums.set(pathOf(l), (sums.get(pathOf(l)) ?? 0) + l.send_bps + l.receive_bps);
	return sums;
}

// mostServed bounds the members that have a curve of their own. The others share one.
const mostServed = 5;

// Served remembers which members have curves of their own: those that were busy first.
export class Served {
	named = new Set();

	rates(list) {
		const sums = new Map();
		for (const {member, bps} of [...list].sort((a, b) => b.bps - a.bps)) {
			if (bps > 0 && this.named.size < mostServed) this.named.add(member);
			const name = this.named.has(member) ? `for ${member}` : 'others';
			if (bps > 0 || name !== 'others') sums.set(name, (sums.get(name) ?? 0) + bps);
		}
		return sums;
	}
}

// Rates remembers what each path, or each member, carried in the last minutes.
export class Rates {
	times = [];
	paths = new Map();

	take(sums, at) {
		this.times.push(at);
		for (const path of sums.keys()) if (!this.paths.has(path)) this.paths.set(path, Array(this.times.length - 1).fill(0));
		for (const [path, list] of this.paths) list.push(sums.get(path) ?? 0);
		while (this.times[0] < at - span || this.times[0] > at) { // later ones are from before the agent's clock was set back
			this.times.shift();
			for (const list of this.paths.values()) list.shift();
		}
		for (const [path, list] of this.paths) if (path !== 'direct' && !list.some((v) => v > 0)) this.paths.delete(path);
	}

	draw(place) {
		const width = Math.max(place.clientWidth, 260), height = 190, left = 4, bottom = 18;
		const end = this.times.at(-1) ?? 0, top = nice(Math.max(1e5, ...[...this.paths.values()].flat()));
		const shown = Math.min(Math.max(end - (this.times[0] ?? end), least), span);
		const x = (t) => width - (end - t) / shown * (width - left), y = (v) => 14 + (1 - v / top) * (height - bottom - 14);
		const names = [...this.paths.keys()];
		const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': `Rates now: ${names.map((p) => `${p} ${rate(this.paths.get(p).at(-1) ?? 0)}`).join(', ') || 'none'}`});
		for (const share of [0, 0.5, 1]) {
			picture.append(svg('line', {class: 'grid', x1: left, x2: width, y1: y(share * top), y2: y(share * top)}));
			picture.append(svg('text', {class: 'soft', x: left, y: y(share * top) - 3}, share ? rate(share * top) : ''));
		}
		const step = shown > 120_000 ? 60 : shown > 60_000 ? 30 : 15;
		for (let s = step; s * 1000 < 0.95 * shown; s += step) {
			picture.append(svg('text', {class: 'soft', x: x(end - s * 1000), y: height - 4, 'text-anchor': 'middle'}, s % 60 ? `−${s} s` : `−${s / 60} min`));
		}
		for (const [path, list] of this.paths) {
			const points = list.map((v, i) => `${x(this.times[i]).toFixed(1)},${y(v).toFixed(1)}`).join(' ');
			picture.append(svg('polyline', {points, fill: 'none', stroke: colour(path), 'stroke-width': 2, 'stroke-dasharray': dash(path)}));
		}
		const legend = el('p', {class: 'legend'}, ...names.map((p) => el('span', {}, stroke(p), `${p} ${rate(this.paths.get(p).at(-1) ?? 0)}`)));
		place.replaceChildren(picture, legend);
	}
}

function stroke(path) {
	const i = el('i', {'aria-hidden': 'true'});
	i.style.borderTopColor = colour(path);
	i.style.borderTopStyle = dash(path) ? 'dashed' : 'solid';
	return i;
}

function nice(v) {
	const power = 10 ** Math.floor(Math.log10(v));
	return [1, 2, 5, 10].map((m) => m * power).find((n) => n >= v);
}

// Usual lengths of periods, in milliseconds. Days and months differ from them by much less than a half.
const hour = 3_600_000, lengths = {minute: hour / 60, hour, day: 24 * hour, month: 30.44 * 24 * hour};

// carried returns what the direct path and the detours carried in each period, and the place of its bar. Periods without a
// record have no bar, and leave their places free.
function carried(history) {
	const first = new Date(history.periods[0]?.start);
	const list = history.periods.map((p) => {
		let direct = 0, detours = 0;
		for (const u of p.paths) pathOf(u) === 'direct' ? direct += u.received + u.sent : detours += u.received + u.sent;
		return {name: label(p.start, history.step), direct, detours, at: Math.round((new Date(p.start) - first) / lengths[history.step])};
	});
	const last = list.at(-1)?.at;
	return list.filter((p) => p.at > last - mostBars);
}

// bars draws what the direct path and the detours carried in each period. It returns a sentence about the picture, or '' if
// they carried nothing.
export function bars(place, history) {
	const width = Math.max(place.clientWidth, 260), height = 130, bottom = 16, base = height - bottom;
	const list = carried(history);
	if (!list.some((p) => p.direct + p.detours)) {
		place.replaceChildren(el('p', {class: 'soft'}, history.problem ? '' : 'No MPTCP connection carried data in this time.'));
		return '';
	}
	const periods = (n) => number(n, history.step, `${history.step}s`);
	const free = list.map((p, i) => i + 1 < list.length ? Math.max(list[i + 1].at - p.at - 1, 0) : 0); // places behind each bar
	const count = list.at(-1).at - list[0].at + 1, unknown = free.reduce((a, b) => a + b), missing = unknown ? `nothing was recorded in ${periods(unknown)}` : '';
	const top = Math.max(...list.map((p) => p.direct + p.detours)), step = Math.min(width / count, 40);
	const gap = 2; // between the direct path and the detours, whose colours are about as light
	const h = (v) => v / top * (base - 14 - gap), x = (at) => (at - list[0].at) * step + 1;
	const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': `Carried in each ${history.step}: at most ${bytes(top)}${missing && `; ${missing}`}`});
	picture.append(svg('text', {class: 'soft', x: 0, y: 11}, bytes(top)));
	list.forEach((p, i) => {
		const title = () => svg('title', {}, `${p.name}: direct ${bytes(p.direct)}, detours ${bytes(p.detours)}`);
		picture.append(svg('rect', {x: x(p.at), y: base - h(p.direct), width: step - 2, height: h(p.direct), fill: 'var(--direct)'}, title()));
		picture.append(svg('rect', {x: x(p.at), y: base - h(p.direct) - h(p.detours) - gap, width: step - 2, height: h(p.detours), fill: 'var(--p0)'}, title()));
		if (free[i]) {
			picture.append(svg('line', {x1: x(p.at + 1), x2: x(list[i + 1].at) - 2, y1: base - 1, y2: base - 1, stroke: 'var(--soft)', 'stroke-width': 2, 'stroke-dasharray': '2 4'},
				svg('title', {}, `nothing was recorded in ${periods(free[i])}`)));
		}
	});
	picture.append(svg('text', {class: 'soft', x: 0, y: height - 2}, list[0].name));
	if (count * step > 220) picture.append(svg('text', {class: 'soft', x: count * step, y: height - 2, 'text-anchor': 'end'}, list.at(-1).name));
	place.replaceChildren(picture);
	return `A bar for each ${history.step}: what the direct path carried below, and detours above.${missing && ' A dotted line: nothing was recorded, because no agent ran, or the history was switched off.'}`;
}

// label names the period that begins at start. Days and months begin in the agent's time zone, so there they have the names
// that they have in that zone, which start is written in.
function label(start, step) {
	const options = {minute: {timeStyle: 'short'}, hour: {dateStyle: 'short', timeStyle: 'short'}, day: {dateStyle: 'short'}, month: {year: 'numeric', month: 'long'}}[step];
	const at = step === 'day' || step === 'month' ? new Date(start.slice(0, 'yyyy-mm-ddThh:mm:ss'.length)) : new Date(start);
	return at.toLocaleString([], options);
}
