// The explanation of the paths to a server.
import {age, el, nameOf, number, percent, rate, serverOf, trip} from './words.js';

// These bound the live and the ended connections that are explained.
const mostLive = 10, mostEnded = 5;

// reasons returns the elements of an answer of the agent.
export function reasons(w, now) {
	const live = (w.connections ?? []).slice(0, mostLive), ended = (w.closed ?? []).slice(0, mostEnded), more = (w.connections ?? []).length - live.length;
	return [
		...(live.length + ended.length ? [] : [el('p', {}, `No connection to ${w.server} was seen lately.`)]),
		...part('Paths now', [
			...live.map((c) => connection(`open for ${age(c.since, now)}${c.policy ? `, ${c.policy}` : ''}`, c.note, c.subflows.map((s) => [`${nameOf(s)}${s.waypoint ? ` (${s.kind})` : ''}, ${s.state}`, s.why]))),
			...(more ? [el('li', {class: 'soft'}, `and ${number(more, 'other connection', 'other connections')}`)] : []),
		]),
		...part('Waypoints that it tried', live.flatMap((c) => c.tried ?? []).map((r) => item(`${r.waypoint}, ${age(r.at, now)} ago`, r.why))),
		...part('Paths that it left', live.flatMap((c) => c.left ?? []).map((d) => item(`${nameOf(d)}, ${age(d.at, now)} ago`, left(d)))),
		...part('Ended lately', ended.map((c) => connection(`to ${serverOf(c)}, ended ${age(c.ended, now)} ago, after ${age(c.since, new Date(c.ended))}`, '', [...c.subflows.map((s) => [nameOf(s), s.why]), ...(c.left ?? []).map((d) => [`left ${nameOf(d)}`, left(d)])]))),
		...part('Paths that a new connection would have', [
			item('direct', [...outlook(w.direct), measured(w.direct)].filter(Boolean).join('; ') || 'not measured yet', true),
			...detours(w.candidates).map((d) => item(d.name, d.text, d.taken)),
			...(w.unavailable ?? []).map((u) => item(`none through ${u.waypoint}, which is ${u.state}`, u.why)),
			...(w.note ? [item('no detour', w.note)] : []),
			...(w.converter ? [item('converters', w.converter)] : []),
		]),
		...part('Bottlenecks, and what other members measured', [...(w.bottlenecks ?? []), ...(w.claims ?? [])].map((line) => el('li', {}, line))),
		...part('What you can do', (w.mends ?? []).map((m) => el('li', {}, m))),
		...part('Probed paths', (w.probed ?? []).map((p) => el('li', {}, el('strong', {}, `to ${p.waypoint ? p.waypoint + ', ' : ''}${p.to}`), ` (${p.recipe}, ${age(p.at, now)} ago, ${p.confidence}): ${p.text}`,
			...(p.evidence?.length ? [el('ul', {class: 'soft'}, ...p.evidence.map((e) => el('li', {}, e)))] : [])))),
	];
}

// connection returns an item about a connection and its paths.
const connection = (name, note, paths) => el('li', {}, el('strong', {}, name), note ? `: ${note}` : '', el('ul', {}, ...paths.map(([path, why]) => el('li', {}, why ? `${path}: ${why}` : path))));

// detours returns the detours that a new connection may take, with their reasons as text. Detours through a waypoint that are
// not taken for the same reason are one entry. Guesses of how long a message takes may differ: the first is shown.
function detours(candidates) {
	const list = [];
	for (const c of candidates) {
		const words = (c) => [c.why + until(c.until), c.change, c.taken && c.untried && 'not tried with this server lately', ...outlook(c), measured(c.measured)].filter(Boolean).join('; ');
		const text = words(c), alike = c.guessed ? words({...c, wait_ms: 0}) + ' guessed' : text;
		const same = list.find((d) => !d.taken && !c.taken && d.waypoint === c.waypoint && d.alike === alike);
		if (same) same.kinds.push(kind(c, candidates));
		else list.push({waypoint: c.waypoint, kinds: [kind(c, candidates)], taken: c.taken, text, alike});
	}
	return list.map((d) => ({...d, name: `${d.waypoint ? `via ${d.waypoint}` : 'direct'} (${d.kinds.join(', ')})`}));
}

// kind names a detour's kind, with the waypoint's address if another detour of the kind leads to another address.
function kind(c, all) {
	const several = c.waypoint && all.some((o) => o.waypoint === c.waypoint && o.kind === c.kind && o.address !== c.address);
	return several ? `${c.kind} at ${c.address}` : c.kind;
}

const part = (title, items) => items.length ? [el('h4', {}, title), el('ul', {}, ...items)] : [];

const item = (name, text, taken) => el('li', {}, el('strong', {class: taken ? 'good' : ''}, name + (taken ? ', taken' : '')), `: ${text}`);

const until = (t) => t ? `, until ${new Date(t).toLocaleString()}` : '';

// left tells what became of a path that a connection left, and why.
const left = (d) => `${d.ended ? 'ended' : 'became a backup'}, because ${d.why}`;

// outlook returns what a new connection may expect of a path, as texts.
const outlook = (x) => [
	x.wait_ms && `a message takes ${x.at_least ? 'at least ' : x.guessed ? 'about ' : ''}${trip(x.wait_ms)}`,
	x.expected_bps === 0 ? 'a download would gain nothing from it' : x.expected_bps && `one more download may expect ${rate(x.expected_bps)}`,
];

// measured returns what connections measured on a path, as text; nothing if they did not.
function measured(m) {
	if (!m?.at) return '';
	return [m.min_rtt_ms && `shortest round trip ${trip(m.min_rtt_ms)}`, `${percent(m.loss)} loss`, m.goodput_bps && `bulk rate ${rate(m.goodput_bps)} of all connections together`, m.failures && number(m.failures, 'recent failure', 'recent failures')].filter(Boolean).join(', ');
}
