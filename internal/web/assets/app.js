// The page: it reads the stream of states, and shows them.
import {draw, keysOf} from './graph.js';
import {Losses} from './loss.js';
import {Rates, Served, bars, pathRates} from './chart.js';
import {reasons} from './why.js';
import {ask, begin, request} from './session.js';
import {$, age, bytes, colour, el, nameOf, number, pathOf, percent, rate, seconds, serverOf, trip, update, withCode} from './words.js';

const rates = new Rates(), forwarded = new Rates(), curves = new Served(), losses = new Losses();
const tryAgain = 5000;
let ahead = 0; // the agent's clock before the browser's, in milliseconds
let message, past, paused = false, asked = false, forwarding, listed, reader = {log: false};

function show() {
	if (!message?.status) return;
	const s = message.status, now = new Date(message.at);
	$('member').textContent = s.member;
	document.title = `dcol ${s.member}`;
	$('version').textContent = `Version ${s.version}.`;
	$('problems').hidden = !s.problems.length;
	update($('problem-list'), s.problems.map((p) => el('li', {'data-key': p}, p)));
	$('log').hidden = $('log-link').hidden = !(s.roles.includes('waypoint') && reader.log);
	arrange(s);
	if (s.client) {
		note('graph-note', draw($('graph'), s, message.loads ?? [], losses));
		rates.draw($('chart'));
		connections(s, now);
		waypoints(s);
	}
	served(s);
	events();
	if (!asked) {
		asked = true;
		history();
	}
	if (listed !== (s.collective?.members ?? 0)) {
		listed = s.collective?.members ?? 0;
		members();
	}
}

// note shows a text in an element that is hidden without one.
function note(id, text) {
	if ($(id).textContent !== text) $(id).textContent = text;
	$(id).hidden = !text;
}

// arrange puts what a waypoint does for others first if it is no client, and leaves out what only clients have. It also
// comes first if only others had connections when the page was opened. The order stays then, so that nothing moves away
// from its reader.
function arrange(s) {
	const only = !s.client && s.serving;
	if (s.client) forwarding ??= !message.connections && Boolean(s.serving?.members?.some((m) => m.flows));
	for (const e of document.querySelectorAll('[data-of=client]')) e.hidden = !s.client;
	const next = only || forwarding && s.serving ? 'paths' : 'events', link = document.querySelector(`nav a[href="#${next}"]`).parentElement;
	for (const [e, before] of [[$('served'), $(next)], [$('served-link'), link]]) if (e.nextElementSibling !== before) before.before(e);
}

// live says how the page is. Screen readers read it aloud when it changes, so the rates, which always do, stand beside it.
function live(text, style = '', rates = '') {
	if ($('live').textContent !== text) $('live').textContent = text;
	$('live').className = style;
	$('rates').textContent = rates;
}

function chip(s) {
	const c = el('span', {class: 'chip', title: s.why}, `${nameOf(s)} ${s.state === 'up' ? rate(s.receive_bps + s.send_bps) : s.state}, ${trip(s.rtt_ms)}`);
	c.style.borderLeftColor = colour(pathOf(s));
	return c;
}

const notesOf = (c) => [c.converter && `through the converter of ${c.converter}`, c.note].filter(Boolean);

function connections(s, now) {
	const words = $('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
	const all = s.client?.connections ?? [];
	const sum = (c) => c.subflows.reduce((n, f) => n + f.receive_bps + f.send_bps, 0);
	const list = all.filter((c) => {
		const text = [serverOf(c), c.converter, c.traffic, c.note, ...c.subflows.map((f) => `${nameOf(f)} ${f.kind} ${f.state}`)].join(' ').toLowerCase();
		return words.every((w) => text.includes(w));
	});
	$('shown').textContent = `${list.length} of ${message.connections}${all.length < message.connections ? `; only the ${all.length} busiest are listed and filtered` : ''}`;
	update($('connection-rows'), list.map((c) => el('tr', {'data-key': `${c.token} ${c.since}`},
		el('td', {}, serverOf(c), ...notesOf(c).map((note) => el('div', {class: 'soft'}, note))),
		el('td', {class: 'n'}, age(c.since, now)),
		el('td', {}, c.traffic ?? ''),
		el('td', {class: 'n'}, rate(sum(c))),
		el('td', {}, ...c.subflows.map(chip)),
		el('td', {}, el('button', {type: 'button', 'aria-label': `Why these paths to ${serverOf(c)}?`, onclick: () => why(serverOf(c), c.token)}, 'Why')),
	)));
	if (!list.length) $('connection-rows').append(empty(6, ...(all.length ? ['No connection fits the filter.'] : ['No MPTCP connections. ', el('code', {}, 'dcol run -- PROGRAM'), ' makes a program\'s connections MPTCP.'])));
	const plain = s.client.plain?.length ?? 0;
	note('plain-note', plain ? `${number(plain, 'connection is', 'connections are')} plain TCP although the program requests MPTCP: the server does not speak MPTCP, or something on the path removes it. dcol status says what to do.` : '');
}

// empty returns a row that says why a table has no others.
const empty = (columns, ...text) => el('tr', {}, el('td', {colspan: columns, class: 'soft'}, el('div', {class: 'empty'}, ...text)));

// why shows an explanation of a connection, or of all to a destination.
async function why(destination, token = '') {
	const place = $('why');
	place.hidden = false;
	try {
		const answers = await ask('why', {destination, token});
		place.replaceChildren(...answers.flatMap((w) => [el('h3', {}, `Why these paths to ${w.server}?`), ...reasons(w, agentTime())]));
	} catch (e) {
		place.replaceChildren(el('p', {class: 'bad'}, e.message));
	}
	// The explanation may be longer than the screen, and browsers would show its middle.
	place.focus({preventScroll: true});
	place.scrollIntoView({block: 'start', behavior: 'instant'});
}

async function steer(word, name) {
	try {
		await ask('steer', {word, waypoints: [name]});
		note('steer-note', '');
	} catch (e) {
		note('steer-note', e.message);
	}
}

const styles = {up: 'good', down: 'bad', avoided: 'soft'};

// family names an address of a waypoint among its others: by its family, or entirely if another one has the same family.
function family(w, all) {
	const is6 = (x) => x.address.startsWith('[');
	return all.filter((x) => is6(x) === is6(w)).length > 1 ? w.address : is6(w) ? 'IPv6' : 'IPv4';
}

// each returns what to show of a waypoint's addresses: what they have in common, or a line for each.
function each(all, show) {
	const shown = all.map((w) => show(w)), same = shown.every((list) => list.length === shown[0].length && list.every((e, i) => e.isEqualNode(shown[0][i])));
	return same ? shown[0] : all.map((w, i) => el('div', {}, el('span', {class: 'soft'}, `${family(w, all)} `), ...shown[i]));
}

// known returns a cell with a text of each address. Phones do not show it if nothing is known.
function known(all, text) {
	const none = all.every((w) => text(w) === '–');
	return el('td', {class: none ? 'n unknown' : 'n'}, ...each(all, (w) => [el('span', {}, text(w))]));
}

// absent stands for a waypoint without a session in the rows of waypoints, so that the user's choice of it can be undone.
const absent = (x, state) => ({state: x.unknown ? 'unknown' : state, why: x.unknown && 'this host knows no such waypoint', unknown: x.unknown, kinds: []});

// waypoints shows a row for each waypoint. Its addresses have sessions of their own, and so round trips and losses.
function waypoints(s) {
	const byName = new Map(), used = (list, name) => list.some((x) => x.name === name), through = new Map();
	for (const w of s.client?.waypoints ?? []) byName.set(w.name, [...(byName.get(w.name) ?? []), w]);
	for (const [list, state] of [[s.client.steering.use, 'not connected'], [s.client.steering.avoid, 'avoided']]) {
		for (const x of list) if (!byName.has(x.name)) byName.set(x.name, [absent(x, state)]);
	}
	for (const l of message.loads ?? []) through.set(l.waypoint, (through.get(l.waypoint) ?? 0) + l.receive_bps + l.send_bps);
	const focused = document.activeElement?.dataset?.choice;
	update($('waypoint-rows'), [...byName].map(([name, all]) => {
		const first = used(s.client.steering.use, name), never = used(s.client.steering.avoid, name);
		const button = (word, text, pressed) => el('button', {
			type: 'button', disabled: all[0].unknown && !pressed, 'aria-pressed': String(pressed), 'data-choice': `${word} ${name}`, 'aria-label': `${text}: ${name}`, onclick: () => steer(pressed ? 'reset' : word, name),
		}, pressed ? `${text} ✓` : text);
		return el('tr', {'data-key': name}, el('td', {}, name, ...all.filter((w) => w.address).map((w) => el('div', {class: 'soft'}, w.address))),
			el('td', {}, ...each(all, (w) => [el('span', {class: styles[w.state] ?? 'warn'}, w.state), ...(w.why ? [el('div', {class: 'soft'}, w.why)] : [])])),
			known(all, (w) => trip(w.rtt_ms)), known(all, (w) => w.state === 'down' || (w.loss_packets ?? 0) < 30 ? '–' : `${percent(w.loss)} loss`), el('td', {class: 'n'}, rate(through.get(name) ?? 0)),
			known(all, (w) => w.kinds.filter((k) => k.state === 'ready').map((k) => k.kind).join(', ') || '–'), el('td', {class: 'n'}, button('use', s.client.steering.only && first ? 'Use only' : 'Use first', first), button('avoid', 'Avoid', never)));
	}));
	if (message.no_waypoints) $('waypoint-rows').append(empty(7, ...withCode(message.no_waypoints)));
	texts('choices', message.choices, s.client.steering.warning);
	if (focused) [...document.querySelectorAll('button[data-choice]')].find((b) => b.dataset.choice === focused)?.focus({preventScroll: true});
}

// texts shows a list of texts, or nothing without any. One of them may be a warning.
function texts(id, list, warning) {
	$(id).hidden = !list?.length;
	update($(id), (list ?? []).map((text) => el('li', {'data-key': text, class: text === warning && 'warn'}, ...withCode(text))));
}

// served shows what this host does for other members, if it is a waypoint.
function served(s) {
	const w = s.serving;
	$('served').hidden = $('served-link').hidden = !w;
	if (!w) return;
	const list = (w.members ?? []).filter((m) => !m.expelled), refused = Object.values(w.refused ?? {}).reduce((a, b) => a + b, 0);
	texts('terms', message.terms);
	$('terms').className = w.given.open ? '' : 'warn';
	$('served-note').textContent = `Since the agent was started, it has granted ${number(w.granted, 'request', 'requests')} of members, and refused ${refused}.`;
	const now = new Map((message.served ?? []).map((m) => [m.member, m.bps]));
	forwarded.draw($('served-chart'));
	update($('served-rows'), list.map((m) => el('tr', {'data-key': m.member}, el('td', {}, m.member), ...[rate(now.get(m.member) ?? 0), m.flows, bytes(m.bytes), m.sessions, m.mappings, m.tunnels].map((n) => el('td', {class: 'n'}, String(n))))));
	if (!list.length) $('served-rows').append(empty(7, 'No member uses this waypoint now.'));
}

function events() {
	update($('event-list'), (message.events ?? []).map((e) => el('li', {'data-key': `${e.at} ${e.text}`}, el('time', {datetime: e.at}, new Date(e.at).toLocaleTimeString()), el('span', {class: e.style}, e.text))));
	if (!message.events?.length) $('event-list').append(el('li', {class: 'soft'}, 'Nothing has happened since this page was opened.'));
}

async function members() {
	const rows = $('member-rows');
	try {
		const {self, members: list} = await ask('members');
		update(rows, list.map((m) => el('tr', {'data-key': m.name}, el('td', {}, m.name, m.name === self ? ' (this host)' : ''), el('td', {}, m.expelled ? 'expelled' : (m.roles ?? []).join(', ')), el('td', {}, m.region ?? ''), el('td', {}, (m.kinds ?? []).join(', ')),
			el('td', {}, m.reachable === undefined ? '–' : m.reachable ? 'yes' : 'no'), el('td', {}, m.used ? 'yes' : ''))));
	} catch (e) {
		rows.replaceChildren(empty(6, ...withCode(e.message)));
	}
}

// between returns the bounds of the time saved.
function between(g) {
	if (!g.saved_high_s) return '';
	const [low, high] = [seconds(g.saved_low_s), seconds(g.saved_high_s)];
	if (!g.saved_unknown_s) return `between ${low} and ${high}`;
	return g.saved_s ? `as far as known; between ${low} and ${high} in all` : `between ${low} (if all paths share a bottleneck) and ${high}`;
}

async function history() {
	const step = $('step').value, back = {minute: 3600, hour: 48 * 3600, day: 31 * 86400, month: 400 * 86400}[step];
	try {
		const h = await ask('history', {step, since: new Date(agentTime() - back * 1000).toISOString()});
		const g = h.total.gained, item = (name, value, more) => el('div', {}, el('dt', {}, name), el('dd', {}, value, ...(more ? [el('small', {}, more)] : [])));
		$('gained').replaceChildren(item('Carried over detours', bytes(g.detour_bytes)), item('Stalls bridged', String(g.stalls), g.stalls ? `${seconds(g.stall_s)} in all` : ''),
			item('Time saved', g.saved_s || !g.saved_unknown_s && g.saved_high_s ? seconds(g.saved_s) : g.saved_high_s ? 'not known' : '–', between(g)));
		past = h;
		const words = bars($('bars'), h);
		$('bars-caption').textContent = h.problem ?? words;
	} catch (e) {
		$('bars-caption').textContent = e.message;
	}
}

async function search(event) {
	event?.preventDefault();
	const form = new FormData($('log-form')), hours = form.get('last');
	const body = {member: form.get('member').trim(), server: form.get('server').trim()};
	if (hours) body.since = new Date(agentTime() - hours * 3600_000).toISOString();
	try {
		const found = await ask('log', body), list = found.flows;
		const older = found.older ? `; ${number(found.older, 'older one fits', 'older ones fit')}, too: search a shorter time, or one member or server` : '';
		$('log-note').textContent = list.length ? `${number(list.length, 'connection', 'connections')}, the newest first${older}` : 'The log has no such connection.';
		$('log-rows').replaceChildren(...list.reverse().map((f) => el('tr', {}, el('td', {class: 'n'}, new Date(f.opened).toLocaleString()), el('td', {}, f.member), el('td', {}, f.server), el('td', {}, f.egress), el('td', {}, f.kind),
			el('td', {class: 'n'}, f.closed ? age(f.opened, new Date(f.closed)) : '–'), el('td', {class: 'n'}, f.bytes_from_client === undefined ? '–' : bytes(f.bytes_from_client)), el('td', {class: 'n'}, f.bytes_to_client === undefined ? '–' : bytes(f.bytes_to_client)))));
	} catch (e) {
		$('log-note').textContent = e.message;
		$('log-rows').replaceChildren();
	}
}

function pause() {
	paused = !paused;
	$('pause').textContent = paused ? 'Resume' : 'Pause';
	if (paused) return live('paused', 'warn');
	if (message) totals();
	show();
}

// follow shows the states of the stream. When the stream ends, it opens another one.
async function follow() {
	for (;;) {
		let told = false; // the stream has delivered a state
		let said = 'the agent does not answer; the page tries again. If the agent was restarted, run dcol web again';
		try {
			const refused = await begin(), r = await request('stream');
			if (r.status === 401) return live(refused || await r.text(), 'bad');
			if (r.ok) {
				ask('reader').then((answer) => { reader = answer; show(); }, () => {});
				for await (const line of lines(r.body)) {
					told = true;
					queueMicrotask(() => take(JSON.parse(line))); // its errors do not end the stream
				}
			} else {
				said = `${await r.text()}; the page tries again`;
			}
		} catch { /* there was no answer, or the connection was cut */ }
		if (told) continue; // browsers cut connections when the host's network changes
		live(said, 'bad');
		await new Promise((resolve) => setTimeout(resolve, tryAgain));
	}
}

// lines yields the lines of an answer as they arrive.
async function* lines(body) {
	const reader = body.pipeThrough(new TextDecoderStream()).getReader();
	for (let rest = '';;) {
		const {value, done} = await reader.read();
		if (done) return;
		const list = (rest + value).split('\n');
		rest = list.pop();
		yield* list;
	}
}

// agentTime returns the time by the agent's clock, which may differ from the browser's.
function agentTime() { return new Date(Date.now() + ahead); }

function take(next) {
	ahead = Date.parse(next.at) - Date.now();
	if (next.status) {
		rates.take(pathRates(next.loads ?? []), Date.parse(next.at));
		if (next.status.serving && next.served) forwarded.take(curves.rates(next.served), Date.parse(next.at));
		losses.take(next.status, keysOf);
	}
	if (paused) return;
	if (next.status) {
		message = next;
		totals();
		show();
	} else {
		live(`the agent does not answer: ${next.error}`, 'bad');
	}
}

// totals shows the number of connections and their rates.
function totals() {
	const s = message.status, forwards = (message.served ?? []).reduce((sum, m) => sum + m.bps, 0), words = s.serving ? `${rate(forwards)} forwarded` : '';
	if (s.client) {
		let up = 0, down = 0;
		for (const l of message.loads ?? []) up += l.send_bps, down += l.receive_bps;
		live(number(message.connections, 'connection', 'connections'), '', `, ${rate(down)} in, ${rate(up)} out${words && `, ${words}`}`);
	} else if (s.serving) {
		const open = s.serving.members?.reduce((sum, m) => sum + m.flows, 0) ?? 0;
		live(`${number(open, 'connection', 'connections')} of members`, '', `, ${words}`);
	} else {
		live('this member is no client and no waypoint');
	}
}

follow();

$('pause').addEventListener('click', pause);
$('filter').addEventListener('input', show);
$('why-form').addEventListener('submit', (e) => { e.preventDefault(); why(new FormData(e.target).get('destination').trim()); });
$('step').addEventListener('change', history);
$('log-form').addEventListener('submit', search);
addEventListener('resize', () => { show(); if (past) bars($('bars'), past); });
setInterval(() => {
	if (document.hidden || paused) return;
	if (message?.status) members();
}, 60_000);
setInterval(() => { if (!document.hidden && !paused) history(); }, 15_000);
addEventListener('keydown', (e) => {
	if (e.ctrlKey || e.metaKey || e.altKey || /INPUT|SELECT/.test(e.target.tagName)) {
		if (e.key === 'Escape') e.target.blur();
		return;
	}
	const links = [...document.querySelectorAll('nav li:not([hidden]) a')];
	if (e.key === '/') { e.preventDefault(); $('filter').focus(); }
	if (e.key === 'p') pause();
	if (/^[1-9]$/.test(e.key)) links[e.key - 1]?.click();
});
