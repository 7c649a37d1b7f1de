// The graph of this host, the ways and the servers.
import {colour, pathOf, percent, rate, svg, trip} from './words.js';

const most = 8, mostLabels = 3;

// beside has where so many labels are, from the middle of their server.
const beside = [[], [-7], [-8, 15], [-21, -8, 15]];

const lossWords = (share) => share === undefined ? '' : `, ${percent(share)} loss`;

// keysOf returns the paths whose loss a subflow is part of: the whole way, and that to its server.
export const keysOf = (c, s) => [pathOf(s), `${pathOf(s)} ${c.remote}`];

// loads has the rates of all connections, of which status has the busiest.
export function draw(place, status, loads, losses) {
	const width = Math.max(place.clientWidth, 300), wide = width > 700;
	const row = wide ? 58 : 72, boxHeight = wide ? 46 : 60; // on phones, boxes have what edges have elsewhere
	const widths = wide ? [150, 150, 190] : [0.17, 0.27, 0.44].map((share) => Math.floor(share * width));
	const ways = new Map([['direct', {rate: 0, rtts: [], name: 'direct'}]]), servers = new Map(), edges = new Map();
	for (const w of status.client?.waypoints ?? []) {
		const known = ways.get(`via ${w.name}`); // a waypoint with several addresses: one that is up counts
		if (!known || known.state !== 'up' && w.state === 'up') ways.set(`via ${w.name}`, {rate: 0, rtts: [], name: w.name, loss: (w.loss_packets ?? 0) < 30 ? undefined : w.loss, rtt: w.rtt_ms, state: w.state});
	}
	for (const c of status.client?.connections ?? []) {
		const name = c.remote;
		const server = servers.get(name) ?? {name, rate: 0};
		servers.set(name, server);
		for (const s of c.subflows) {
			const path = pathOf(s), r = s.send_bps + s.receive_bps;
			if (!ways.has(path)) ways.set(path, {rate: 0, rtts: [], name: s.waypoint || path});
			const way = ways.get(path), key = `${path} ${name}`, edge = edges.get(key) ?? {path, name, rate: 0, rtt: 0, backup: true};
			if (s.rtt_ms > 0) way.rtts.push(s.rtt_ms);
			server.rate += r;
			edge.rate += r;
			edge.rtt = s.rtt_ms;
			edge.backup &&= s.state !== 'up';
			edges.set(key, edge);
		}
	}
	for (const l of loads) {
		const path = pathOf({waypoint: l.waypoint, kind: 'direct'}), way = ways.get(path);
		if (way) way.rate += l.receive_bps + l.send_bps;
	}
	const middle = cut([...ways.entries()].map(([key, w]) => ({key, ...w})), (w) => w.key === 'direct' ? Infinity : w.rate);
	const right = cut([...servers.values()], (s) => s.rate);
	const rows = Math.max(middle.length, right.length, 1), height = rows * row + 8;
	const y = (i, n) => height / 2 + (i - (n - 1) / 2) * row;
	const x = [widths[0] / 2 + 2, wide ? width / 2 : 0.37 * width, width - widths[2] / 2 - 2];
	const top = Math.max(...middle.map((w) => w.rate), 1e5);
	const thick = (r) => 1 + 7 * Math.sqrt(r / top);
	const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': words(middle, right)});
	const line = (x1, y1, x2, y2, path, r, faint) => svg('path', {
		d: `M${x1} ${y1} C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`, fill: 'none', stroke: colour(path),
		'stroke-width': thick(r), 'stroke-dasharray': r > 0 ? '' : '2 4', opacity: faint ? 0.45 : 0.9,
	});
	middle.forEach((w, i) => picture.append(line(x[0], y(0, 1), x[1], y(i, middle.length), w.key, w.rate, w.rate === 0)));
	const labels = right.map(() => []);
	for (const e of edges.values()) {
		const i = middle.findIndex((w) => w.key === e.path), j = right.findIndex((s) => s.name === e.name);
		if (i < 0 || j < 0) continue;
		const y1 = y(i, middle.length), y2 = y(j, right.length);
		picture.append(line(x[1], y1, x[2], y2, e.path, e.rate, e.backup));
		labels[j].push({i, path: e.path, rate: e.rate, text: rate(e.rate) + lossWords(losses.of(`${e.path} ${e.name}`))});
	}
	if (width > 900) labels.forEach((list, j) => {
		const shown = list.sort((a, b) => b.rate - a.rate).slice(0, mostLabels).sort((a, b) => a.i - b.i);
		shown.forEach((l, k) => {
			const text = svg('text', {class: 'soft halo', x: x[2] - widths[2] / 2 - 8, y: y(j, right.length) + beside[shown.length][k], 'text-anchor': 'end'}, l.text, svg('title', {}, l.path));
			text.style.fill = colour(l.path);
			picture.append(text);
		});
	});
	const node = (x, y, width, name, lines, stroke) => box(x, y, width, boxHeight, name, lines, stroke);
	picture.append(...node(x[0], y(0, 1), widths[0], status.member, wide ? ['this host'] : []));
	middle.forEach((w, i) => {
		const rtt = w.rtts.length ? w.rtts.reduce((a, b) => a + b) / w.rtts.length : w.rtt;
		const up = !w.state || w.state === 'up', at = y(i, middle.length);
		const loss = losses.of(w.key) ?? w.loss;
		const lines = !up ? [w.state] : wide ? [`round trip ${trip(rtt)}`] : [rate(w.rate), loss === undefined ? trip(rtt) : `${trip(rtt)}, ${percent(loss)}`];
		picture.append(...node(x[1], at, widths[1], w.name, lines, colour(w.key)));
		if (wide && up) picture.append(svg('text', {class: 'soft halo', x: x[1] - widths[1] / 2 - 10, y: at + (at > y(0, 1) ? 16 : -9), 'text-anchor': 'end'}, rate(w.rate) + lossWords(loss)));
	});
	right.forEach((s, i) => picture.append(...node(x[2], y(i, right.length), widths[2], s.name, [rate(s.rate)])));
	place.replaceChildren(picture);
}

const cut = (list, value) => list.map((v, i) => [v, i]).sort((a, b) => value(b[0]) - value(a[0])).slice(0, most).sort((a, b) => a[1] - b[1]).map(([v]) => v);

function words(ways, servers) {
	return `${servers.length} servers; ` + ways.map((w) => `${w.name === 'direct' ? 'direct' : 'via ' + w.name} ${rate(w.rate)}`).join(', ');
}

// box draws a box with a name and lines of text below it.
function box(x, y, width, height, name, lines, stroke) {
	const fits = Math.floor(width / 6.4), first = y + 4 - 8.5 * lines.length;
	const text = (words, i, style) => svg('text', {...style, x, y: first + 17 * i, 'text-anchor': 'middle'}, words.length > fits ? words.slice(0, fits - 1) + '…' : words, svg('title', {}, words));
	return [
		svg('rect', {class: 'node', x: x - width / 2, y: y - height / 2, width, height, rx: 6, stroke: stroke ?? 'var(--line)'}),
		text(name, 0, {}), ...lines.map((l, i) => text(l, i + 1, {class: 'soft'})),
	];
}
