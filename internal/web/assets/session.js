// The session: which requests the agent answers. The page's address has a code, which the page exchanges for a token, and
// sends that with each request. The token is no cookie, because browsers send cookies to all ports of a host. They keep
// what a page stores by its port, too.

const key = 'dcol-session';
let code = fromAddress(), own; // own is the token if the browser stores nothing

// fromAddress takes the code out of the page's address.
function fromAddress() {
	const found = location.hash.match(/^#code=(.+)/)?.[1];
	if (found) history.replaceState(null, '', location.pathname);
	return found;
}

// An address that differs only behind # does not load the page again.
addEventListener('hashchange', () => { if (location.hash.startsWith('#code=')) location.reload(); });

function keep(token) {
	own = token;
	try { localStorage.setItem(key, token); } catch { /* the token is lost when the page is closed */ }
}

function token() {
	try { return localStorage.getItem(key) ?? own; } catch { return own; }
}

// begin exchanges the code for a token, if there is a code. It returns why the agent refused the code, or ''. The page can
// then go on only if it has a token of an earlier session.
export async function begin() {
	if (!code) return '';
	const r = await request('session', {code}), answer = await r.json();
	code = '';
	if (r.ok) keep(answer.token);
	return r.ok ? '' : answer.error;
}

// request sends a request to the agent.
export const request = (what, body) => fetch(`api/${what}`, {
	headers: {Authorization: `Bearer ${token() ?? ''}`},
	...(body === undefined ? {} : {method: 'POST', body: JSON.stringify(body)}),
});

// ask sends a question to the agent, and returns the answer.
export async function ask(what, body) {
	const r = await request(what, body);
	if (r.status === 401) throw new Error(await r.text());
	const answer = await r.json();
	if (!r.ok) throw new Error(answer.error);
	return answer;
}
