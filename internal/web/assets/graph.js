// The graph of this host, the ways and the servers.
import {colour, number, pathOf, percent, rate, serverOf, svg, trip} from './words.js';

// Rates and losses stand in the boxes, because beside the lines there is no place that no line crosses.
const most = 8, mostLabels = 3, row = 66, boxHeight = 58;

const lossWords = (share) => share === undefined ? '' : `, ${percent(share)} loss`;

// keysOf returns the paths whose loss a subflow is part of: the whole way, and that to its server.
export const keysOf = (c, s) => [pathOf(s), `${pathOf(s)} ${serverOf(c)}`];

// draw draws the graph, and returns a sentence about what it does not show, or ''. loads has the rates of all connections,
// of which status has the busiest.
export function draw(place, status, loads, losses) {
	const width = Math.max(place.clientWidth, 300), wide = width > 700;
	const nameWidth = wide ? 190 : Math.floor(0.44 * width), labelsWidth = width > 1000 ? 230 : 0; // of servers
	const widths = wide ? [150, 170, nameWidth + labelsWidth] : [Math.floor(0.17 * width), Math.floor(0.27 * width), nameWidth];
	const ways = new Map([['direct', {rate: 0, rtts: [], name: 'direct'}]]), servers = new Map(), edges = new Map();
	for (const w of status.client?.waypoints ?? []) {
		const known = ways.get(`via ${w.name}`); // a waypoint with several addresses: one that is up counts
		if (!known || known.state !== 'up' && w.state === 'up') ways.set(`via ${w.name}`, {rate: 0, rtts: [], name: w.name, loss: (w.loss_packets ?? 0) < 30 ? undefined : w.loss, rtt: w.rtt_ms, state: w.state});
	}
	for (const c of status.client?.connections ?? []) {
		const name = serverOf(c);
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
	const left = width - 2 - widths[2];
	const x = [widths[0] / 2 + 2, wide ? (2 + widths[0] + left) / 2 : 0.37 * width, left + widths[2] / 2];
	const top = Math.max(...middle.map((w) => w.rate), 1e5);
	const thick = (r) => 1 + 7 * Math.sqrt(r / top);
	const picture = svg('svg', {viewBox: `0 0 ${width} ${height}`, height, role: 'img', 'aria-label': words(middle, right)});
	const line = (x1, y1, x2, y2, path, r, faint) => svg('path', {
		d: `M${x1} ${y1} C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}`, fill: 'none', stroke: colour(path),
		'stroke-width': thick(r), 'stroke-dasharray': r > 0 ? '' : '2 4', opacity: faint ? 0.7 : 0.9,
	});
	middle.forEach((w, i) => picture.append(line(x[0] + widths[0] / 2, y(0, 1), x[1] - widths[1] / 2, y(i, middle.length), w.key, w.rate, w.rate === 0)));
	const ends = right.map(() => []);
	for (const e of edges.values()) {
		const i = middle.findIndex((w) => w.key === e.path), j = right.findIndex((s) => s.name === e.name);
		if (i >= 0 && j >= 0) ends[j].push({...e, i});
	}
	ends.forEach((list, j) => {
		list.sort((a, b) => b.rate - a.rate);
		const labelled = list.slice(0, mostLabels).sort((a, b) => a.i - b.i);
		list.forEach((e) => {
			const k = labelled.indexOf(e);
			e.at = y(j, right.length) + (k < 0 ? 0 : 16 * (k - (labelled.length - 1) / 2)); // a line ends at its label
			e.labelled = k >= 0;
			picture.append(line(x[1] + widths[1] / 2, y(e.i, middle.length), left, e.at, e.path, e.rate, e.backup));
		});
	});
	picture.append(...box(x[0], y(0, 1), widths[0], status.member, wide ? ['this host'] : []));
	middle.forEach((w, i) => {
		const rtt = w.rtts.length ? w.rtts.reduce((a, b) => a + b) / w.rtts.length : w.rtt;
		const up = !w.state || w.state === 'up', at = y(i, middle.length);
		const loss = losses.of(w.key) ?? w.loss;
		const lines = !up ? [w.state] : wide ? [rate(w.rate) + lossWords(loss), `round trip ${trip(rtt)}`] : [rate(w.rate), loss === undefined ? trip(rtt) : `${trip(rtt)}, ${percent(loss)}`];
		picture.append(...box(x[1], at, widths[1], w.name, lines, colour(w.key)));
	});
	right.forEach((s, j) => {
		picture.append(...box(x[2], y(j, right.length), widths[2], s.name, [rate(s.rate)], undefined, labelsWidth));
		if (labelsWidth) ends[j].filter((e) => e.labelled).forEach((e) => {
			const text = svg('text', {class: 'soft', x: left + 12, y: e.at + 4}, `${short(middle[e.i].name, 10)} ${rate(e.rate)}${lossWords(losses.of(`${e.path} ${e.name}`))}`, svg('title', {}, e.path));
			text.style.fill = colour(e.path);
			picture.append(text);
		});
	});
	place.replaceChildren(picture);
	const cuts = [ways.size > most && 'paths', servers.size > most && 'servers'].filter(Boolean);
	return cuts.length ? `Only the ${most} busiest ${cuts.join(' and ')} are shown.` : '';
}

const cut = (list, value) => list.map((v, i) => [v, i]).sort((a, b) => value(b[0]) - value(a[0])).slice(0, most).sort((a, b) => a[1] - b[1]).map(([v]) => v);

function words(ways, servers) {
	return `${number(servers.length, 'server', 'servers')}; ` + ways.map((w) => `${w.name === 'direct' ? 'direct' : 'via ' + w.name} ${rate(w.rate)}`).join(', ');
}

const short = (words, most) => words.length > most ? words.slice(0, most - 1) + '…' : words;

// box draws a box with a name and lines of text below it, to the right of a part that is kept free.
function box(x, y, width, name, lines, stroke, free = 0) {
	const fits = Math.floor((width - free) / 6.4), first = y + 4 - 8.5 * lines.length;
	const text = (words, i, style) => svg('text', {...style, x: x + free / 2, y: first + 17 * i, 'text-anchor': 'middle'}, short(words, fits), svg('title', {}, words));
	return [
		svg('rect', {class: 'node', x: x - width / 2, y: y - boxHeight / 2, width, height: boxHeight, rx: 6, stroke: stroke ?? 'var(--soft)'}),
		text(name, 0, {}), ...lines.map((l, i) => text(l, i + 1, {class: 'soft'})),
	];
}
