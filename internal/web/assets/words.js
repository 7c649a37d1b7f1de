// Words and elements that all parts of the page share.

export const $ = (id) => document.getElementById(id);

// el makes an element. Texts are never read as HTML.
export function el(name, attributes = {}, ...children) {
	const e = document.createElement(name);
	return fill(e, attributes, children);
}

export function svg(name, attributes = {}, ...children) {
	const e = document.createElementNS('http://www.w3.org/2000/svg', name);
	return fill(e, attributes, children);
}

function fill(e, attributes, children) {
	for (const [key, value] of Object.entries(attributes)) {
		if (key.startsWith('on')) e.addEventListener(key.slice(2), value);
		else if (value !== undefined && value !== false) e.setAttribute(key, value);
	}
	e.append(...children);
	return e;
}

// update gives an element these children. Children that stay the same are kept, and so are the cells of changed rows, and
// with them the focus, selected text and clicks in progress. Each child needs a key in data-key.
export function update(parent, children) {
	const old = new Map(), named = new Set();
	for (const e of parent.children) old.set(e.dataset.key, e);
	const next = children.map((e) => {
		for (let n = 2, key = e.dataset.key; named.has(e.dataset.key); n++) e.dataset.key = `${key} ${n}`;
		named.add(e.dataset.key);
		const was = old.get(e.dataset.key);
		return was ? merge(was, e) : e;
	});
	for (const e of [...parent.childNodes]) if (!next.includes(e)) e.remove();
	next.forEach((e, i) => { if (parent.childNodes[i] !== e) parent.insertBefore(e, parent.childNodes[i] ?? null); });
}

// merge makes an element look like another if only its children differ. It returns the one that has to be shown.
function merge(was, is) {
	if (was.children.length !== is.children.length || !was.cloneNode(false).isEqualNode(is.cloneNode(false))) return is;
	[...is.children].forEach((e, i) => { if (!was.children[i].isEqualNode(e)) was.children[i].replaceWith(e); });
	return was;
}

export const rate = (bps) => bps < 1000 ? `${Math.round(bps)} bit/s` : unit(bps, ['', 'kbit/s', 'Mbit/s', 'Gbit/s']);
export const bytes = (n) => n < 1000 ? `${n} B` : unit(n, ['', 'kB', 'MB', 'GB', 'TB', 'PB']);
export const trip = (ms) => ms > 0 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : '–';
export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

// number returns a number with the word for one or for several.
export const number = (n, one, several) => `${n} ${n === 1 ? one : several}`;

function unit(n, units) {
	let i = 0;
	for (; n >= 999.5 && i < units.length - 1; i++) n /= 1000;
	return `${n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)} ${units[i]}`;
}

export function age(from, to) {
	const s = Math.max((to - new Date(from)) / 1000, 0);
	if (s < 100) return `${Math.round(s)} s`;
	if (s < 6000) return `${Math.round(s / 60)} min`;
	if (s < 172800) return `${Math.round(s / 3600)} h`;
	return `${Math.round(s / 86400)} days`;
}

export const seconds = (s) => s < 100 ? `${Math.round(s)} s` : s < 6000 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;

// serverOf returns the server that the program means, although the connection may go to a converter.
export const serverOf = (c) => c.server ?? c.remote;

export const pathOf = (s) => s.waypoint ? `via ${s.waypoint}` : s.kind === 'others' ? 'others' : 'direct';

// nameOf names the path of a subflow. That of one that existed when the agent started is unknown at first.
export const nameOf = (s) => s.waypoint ? `via ${s.waypoint}` : s.kind;

// withCode returns the parts of a text, with what stands in backquotes as code.
export const withCode = (text) => text.split('`').map((part, i) => i % 2 ? el('code', {}, part) : part);

// Colours of paths stay the same while the page is open. The direct path has its own.
const known = new Map();
export function colour(path) {
	if (path === 'direct') return 'var(--direct)';
	if (!known.has(path)) known.set(path, known.size % 6);
	return `var(--p${known.get(path)})`;
}
export const dash = (path) => path === 'direct' ? '' : ['', '7 3', '2 3', '9 3 2 3', '4 2', '1 2'][known.get(path) ?? 0];
