package web

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/api"
	devtools "github.com/detour-collective/dcol/lab/browser"
)

// chromium is a browser. Its errors end the test.
type chromium struct {
	*devtools.Browser
	t *testing.T
}

func startChromium(t *testing.T) *chromium {
	t.Helper()
	b, err := devtools.Start(t.Context())
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(b.Close)
	return &chromium{b, t}
}

func (c *chromium) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *chromium) call(method string, params map[string]any) {
	c.t.Helper()
	c.must(c.Call(method, params, nil))
}

func (c *chromium) eval(script string, into any) {
	c.t.Helper()
	c.must(c.Eval(script, into))
}

func (c *chromium) waitFor(what, condition string) {
	c.t.Helper()
	waitFor(c.t, what, func() bool {
		var is bool
		// Until the page has been loaded, its elements are null.
		err := c.Eval("(() => { try { return Boolean("+condition+"); } catch (e) { if (e instanceof TypeError) return false; throw e; } })()", &is)
		if err != nil && strings.Contains(err.Error(), "navigated or closed") { // the page that was asked is gone; the next one is asked
			return false
		}
		c.must(err)
		return is
	})
}

// click presses the mouse's button on an element.
func (c *chromium) click(selector string) {
	c.t.Helper()
	var at [2]float64
	c.eval(fmt.Sprintf(`(() => {
		const e = document.querySelector(%q);
		e.scrollIntoView({block: 'end', behavior: 'instant'});
		const {x, y, width, height} = e.getBoundingClientRect();
		return [x + width / 2, y + height / 2];
	})()`, selector), &at)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		c.call("Input.dispatchMouseEvent", map[string]any{"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1})
	}
}

// screenshot writes a picture to the folder DCOL_SCREENSHOTS, if that is set.
func (c *chromium) screenshot(name string) {
	folder := os.Getenv("DCOL_SCREENSHOTS")
	if folder == "" {
		return
	}
	data, err := c.Screenshot(true)
	c.must(err)
	c.must(os.WriteFile(filepath.Join(folder, name+".png"), data, 0o644))
}

// findings returns what is wrong with the page as it is shown now: text and lines without contrast (WCAG 2, 4.5:1 and 3:1),
// controls without a name, missing landmarks, a page wider than the screen, and resources from other hosts.
const findings = `(() => {
	const found = [];
	const parse = (c) => (c.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
	const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
	const contrast = (one, other) => [light(one), light(other)].sort((a, b) => b - a).reduce((more, less) => (more + 0.05) / (less + 0.05));
	const behind = (e) => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; n = walker.nextNode();) {
		const e = n.parentElement;
		if (!n.data.trim() || !e.checkVisibility() || /^(NOSCRIPT|title)$/.test(e.tagName)) continue;
		const style = getComputedStyle(e), ratio = e instanceof SVGElement ? contrast(parse(style.fill), behind(e.closest('div'))) : contrast(parse(style.color), behind(e));
		if (ratio < 4.5) found.push('contrast ' + ratio.toFixed(1) + ': ' + n.data.trim().slice(0, 30));
	}
	for (const e of document.querySelectorAll('main svg :is(path, line, polyline, rect)')) {
		const style = getComputedStyle(e), over = behind(e.closest('div')), ink = parse(style.stroke === 'none' ? style.fill : style.stroke);
		const ratio = contrast(ink.map((v, i) => v * style.opacity + over[i] * (1 - style.opacity)), over);
		if (ratio < 3) found.push('contrast ' + ratio.toFixed(1) + ' of a ' + e.tagName);
	}
	for (const e of document.querySelectorAll('button, a, input, select')) {
		if (!(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)) found.push('no name: ' + e.outerHTML.slice(0, 60));
	}
	for (const name of ['header', 'nav', 'main', 'footer', 'h1']) if (document.querySelectorAll(name).length !== 1) found.push('landmark ' + name);
	for (const e of document.querySelectorAll('section')) if (!document.getElementById(e.getAttribute('aria-labelledby'))) found.push('section without a title: ' + e.id);
	for (const e of document.querySelectorAll('main svg')) if (!e.getAttribute('aria-label')) found.push('picture without words');
	if (document.documentElement.scrollWidth > innerWidth) found.push('the page is ' + document.documentElement.scrollWidth + ' wide, the screen ' + innerWidth);
	for (const r of performance.getEntriesByType('resource')) if (!r.name.startsWith(location.origin + '/')) found.push('loaded from elsewhere: ' + r.name);
	if (document.documentElement.lang !== 'en') found.push('no language');
	return [...new Set(found)];
})()`

// noLineOverText reports whether the graph has lines, and none comes within two pixels of a text.
const noLineOverText = `(() => {
	const texts = [...document.querySelectorAll('#graph text')].map((t) => t.getBBox());
	const lines = [...document.querySelectorAll('#graph path')];
	return lines.length > 10 && lines.every((l) => {
		const length = l.getTotalLength(), half = parseFloat(l.getAttribute('stroke-width')) / 2 + 2;
		for (let at = 0; at <= length; at += 2) {
			const p = l.getPointAtLength(at);
			if (texts.some((t) => p.x > t.x - half && p.x < t.x + t.width + half && p.y > t.y - half && p.y < t.y + t.height + half)) return false;
		}
		return true;
	});
})()`

// cutListener can cut all connections.
type cutListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func listenForCuts(t *testing.T) *cutListener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return &cutListener{Listener: l}
}

func (l *cutListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	return c, nil
}

// cut cuts all connections.
func (l *cutListener) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.conns = nil
}

// survivesCut checks that the page continues after its connections were cut, and does not claim that the agent does not
// answer.
func (c *chromium) survivesCut(s *Server, l *cutListener) {
	c.t.Helper()
	c.eval(`(() => {
		const live = document.querySelector('#live'), original = fetch;
		window.said = '', window.opened = 0;
		new MutationObserver(() => { window.said += live.textContent + '\n'; }).observe(live, {childList: true, subtree: true, characterData: true});
		window.fetch = (at, ...more) => { if (at === 'api/stream') window.opened++; return original(at, ...more); };
		return true;
	})()`, new(bool))
	l.cut()
	c.waitFor("the page opens another stream", `window.opened > 0`)
	var said string
	c.eval(`window.said`, &said)
	if strings.Contains(said, "does not answer") {
		c.t.Errorf("after a cut the page says %q", said)
	}
	c.goesOn("after a cut")
}

// goesOn checks that the page shows further states.
func (c *chromium) goesOn(when string) {
	c.t.Helper()
	c.eval(`(window.past = document.querySelector('#rates').textContent, true)`, new(bool))
	c.waitFor(when+", the page goes on", `![window.past, ''].includes(document.querySelector('#rates').textContent)`)
}

// keepsRows checks that rows which show the same connection or waypoint stay the same elements, with the focus and the
// selected text in them.
func (c *chromium) keepsRows() {
	c.t.Helper()
	c.eval(`(() => {
		window.button = document.querySelector('#connection-rows button'), window.avoid = document.querySelector('[aria-label="Avoid: bob"]');
		window.button.focus();
		getSelection().selectAllChildren(document.querySelector('#connection-rows td'));
		window.before = [getSelection().toString(), document.querySelector('#connection-rows').textContent];
		return true;
	})()`, new(bool))
	c.waitFor("the rows change", `window.before[0] !== '' && document.querySelector('#connection-rows').textContent !== window.before[1]`)
	c.waitFor("focus, buttons and selection stay", `document.activeElement === window.button && window.avoid.isConnected && getSelection().toString() === window.before[0]`)
	c.eval(`getSelection().removeAllRanges() ?? document.activeElement.blur() ?? true`, new(bool))
}

// takeAllStreams opens mostStreams streams. A stream that the browser has left takes a place until the server notices
// that, which may be late. A request that is on its way when the page is left is served as well.
func takeAllStreams(t *testing.T, b *http.Client, s *Server) (stops []func()) {
	t.Helper()
	waitFor(t, "all streams are taken", func() bool {
		_, stop, code := tryStream(t, b, s)
		if code == http.StatusOK {
			stops = append(stops, stop)
		} else {
			stop()
		}
		return len(stops) == mostStreams
	})
	return stops
}

// The page works in a browser: live, at desktop and phone width, in light and dark colours, by keyboard, and for screen
// readers.
func TestInBrowser(t *testing.T) {
	c := startChromium(t)
	agent := &fake{connections: 14}
	l := listenForCuts(t)
	s := run(t, newServerOf(l, newHub(agent), slog.New(slog.DiscardHandler)))
	c.must(c.Open(s.Link(Reader{Log: true})))
	c.waitFor("the page shows connections", `document.querySelectorAll('#connection-rows tr').length === 14`)
	c.waitFor("a converted connection stands under its server", `document.querySelector('#connection-rows').textContent.includes('203.0.113.5:443through the converter of bobthe server accepts') && !document.querySelector('main').textContent.includes('192.0.2.7:5124')`)
	var paint float64
	c.eval(`performance.getEntriesByType('paint').find((p) => p.name === 'first-contentful-paint')?.startTime ?? 0`, &paint)
	t.Logf("first contentful paint after %.0f ms", paint)
	c.waitFor("the history is shown", `document.querySelectorAll('#bars rect').length > 20 && document.querySelector('#gained').textContent.includes('81.0 GB')`)
	c.waitFor("periods without an agent have a dotted line in the place of bars", `(() => {
		const bars = [...document.querySelectorAll('#bars rect')].map((e) => e.x.baseVal.value), lines = document.querySelectorAll('#bars line');
		return bars.length === 62 && Math.abs(bars[20] - bars[18] - 6 * (bars[2] - bars[0])) < 1 && lines.length === 1 && lines[0].x1.baseVal.value > bars[18] && lines[0].x2.baseVal.value < bars[20] &&
			lines[0].textContent === 'nothing was recorded in 5 hours' && document.querySelector('#bars-caption').textContent.includes('no agent ran');
	})()`)
	c.waitFor("members are shown", `document.querySelector('#member-rows').textContent.includes('bob')`)
	c.waitFor("a waypoint with two addresses has one row, and what differs has its family",
		`document.querySelectorAll('#waypoint-rows tr').length === 3 && [...document.querySelectorAll('#waypoint-rows tr:first-child td')].map((e) => e.textContent).join('|').replace(/[\d.]+ .bit.s/, 'RATE') ===
			'bob192.0.2.7:45672[2001:db8::b]:45672|up|IPv4 18 msIPv6 23 ms|IPv4 0.1 % lossIPv6 –|RATE|IPv4 in-band, mappedIPv6 mapped|Use firstAvoid'`)
	c.waitFor("members served are shown", `document.querySelector('#served').textContent.includes('frank-at-home') && [...document.querySelectorAll('#terms li')].map((e) => e.textContent.replace(/, renews.*/, '')).join('|') ===
		'Members may open connections through this waypoint.|quota: 1.83 GB of 5.00 GB used this month (37 %)|member erin: may open connections; only: 203.0.113.0/24, 2001:db8:5::/48; ports: 443'`)
	c.waitFor("choices and budgets are shown", `[...document.querySelectorAll('#choices li')].map((e) => e.textContent.replace(/, renews.*/, '')).join('|') === 'Never taken: dave|Detours: 9.00 GB of 10.00 GB used this month (90 %)'`)
	chart := []int{3}
	if os.Getenv("DCOL_SCREENSHOTS") != "" {
		chart = []int{10, 20, 30, 40} // a picture with something in it, which takes more than a minute on a busy machine
	}
	for _, points := range chart {
		c.waitFor("the chart grows", fmt.Sprintf(`document.querySelector('#chart polyline')?.points.length >= %d`, points))
	}

	c.survivesCut(s, l)
	c.keepsRows()

	for _, size := range []struct {
		name  string
		width int
	}{{"desktop", 1280}, {"tablet", 800}, {"phone", 360}} {
		for _, scheme := range []string{"light", "dark"} {
			c.must(c.Look(size.width, 800, scheme))
			c.waitFor("the graph has the new size", fmt.Sprintf(`innerWidth === %d && Math.abs(document.querySelector('#graph svg').viewBox.baseVal.width - document.querySelector('#graph').clientWidth) < 2`, size.width))
			var wrong []string
			c.eval(findings, &wrong)
			if len(wrong) > 0 {
				t.Errorf("%s, %s:\n%s", size.name, scheme, strings.Join(wrong, "\n"))
			}
			c.waitFor("no line of the graph crosses a text", noLineOverText)
			c.screenshot(size.name + "-" + scheme)
		}
	}

	c.waitFor("edges have loss", `innerWidth === 360 || [...document.querySelectorAll('#graph text')].some((t) => /loss/.test(t.textContent))`)
	agent.mu.Lock()
	agent.joined++
	agent.mu.Unlock()
	c.waitFor("a new member is shown", `document.querySelector('#member-rows').textContent.includes('new-0')`)
	var found []string
	key := func(key string) {
		c.call("Input.dispatchKeyEvent", map[string]any{"type": "keyDown", "key": key, "text": key})
		c.call("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key})
	}
	key("/")
	c.waitFor("the filter has the keyboard", `document.activeElement.id === 'filter'`)
	c.call("Input.insertText", map[string]any{"text": "carol bulk"})
	c.waitFor("connections are filtered", `[...document.querySelectorAll('#connection-rows tr')].length < 14 && [...document.querySelectorAll('#connection-rows tr')].every((r) => r.textContent.includes('via carol'))`)
	c.must(c.Look(360, 500, "dark")) // the explanation is longer than this screen
	c.click("#connection-rows button")
	c.waitFor("the explanation is shown", `['it loses least', 'its round trip is longer', 'ip mptcp limits', 'MP_CAPABLE is removed', 'a message takes about 26 ms', 'a message takes at least 12 ms', 'bob and the direct path: each has a bottleneck of its own', 'other members on bob: loss below 0.5 %', 'bulk rate 17.5 Mbit/s of all connections together', 'via bob (in-band at 192.0.2.77, mapped): others come first', 'carried 2.0 Mbit/s while it was tried', 'ended, because its rate fell from 18.2 Mbit/s to 0.9 Mbit/s', 'direct, taken: a message takes 57 ms', 'it is taken when carol fails; a message takes about 33 ms; a download would gain nothing from it', 'not tried with this server lately', 'none through dave, which is closed', 'hop 4 quoted'].every((w) => document.querySelector('#why').textContent.includes(w)) && document.activeElement.id === 'why'`)
	c.waitFor("its heading is in sight", `(({top, bottom}) => top >= document.querySelector('nav').getBoundingClientRect().bottom && bottom < innerHeight)(document.querySelector('#why h3').getBoundingClientRect())`)
	var notes int
	c.eval(`document.querySelector('#why').textContent.split('the server takes 2').length - 1`, &notes)
	if notes != 1 {
		t.Errorf("the explanation of one connection is that of %d", notes)
	}
	c.screenshot("why")
	c.eval(findings, &found)
	if len(found) > 0 {
		t.Errorf("with an explanation:\n%s", strings.Join(found, "\n"))
	}
	c.eval(`(() => { document.querySelector('#why-form input').value = '2001:db8::5'; return document.querySelector('#why-form').requestSubmit() ?? true; })()`, new(bool))
	c.waitFor("all connections to a destination are explained", `['Why these paths to [2001:db8::5]', 'and 4 other connections', 'to [2001:db8::5]:0, ended ', ' ago, after 30 s', 'via bob: it lost least'].every((w) => document.querySelector('#why').textContent.includes(w))`)
	key("p")
	c.waitFor("the page is paused", `document.querySelector('#pause').textContent === 'Resume' && document.querySelector('#live').textContent === 'paused'`)
	c.eval(`document.querySelector('[aria-label="Avoid: bob"]').click() ?? true`, new(bool))
	waitFor(t, "bob is avoided", func() bool {
		agent.mu.Lock()
		defer agent.mu.Unlock()
		return len(agent.steered) == 1 && agent.steered[0].Word == "avoid" && agent.steered[0].Waypoints[0] == "bob"
	})
	c.eval(`document.querySelector('[aria-label="Avoid: dave"]').click() ?? true`, new(bool))
	c.waitFor("a refused choice says why", `document.querySelector('#steer-note').checkVisibility() && document.querySelector('#steer-note').textContent === 'the configuration cannot be read'`)
	c.eval(`(() => { const step = document.querySelector('#step'); step.value = 'month'; return step.dispatchEvent(new Event('change')); })()`, new(bool))
	c.waitFor("the history has bounds without an estimate", `document.querySelector('#gained').textContent.includes('not knownbetween 0 s (if all paths share a bottleneck) and 66 s')`)
	c.waitFor("months have their names in the agent's time zone, and their places", `(() => {
		const name = (month) => new Date(2026, month, 1).toLocaleString([], {year: 'numeric', month: 'long'}), bars = [...document.querySelectorAll('#bars rect')].filter((e, i) => i % 2 === 0);
		const [march, april, july] = bars.map((e) => e.x.baseVal.value);
		return bars.length === 3 && [2, 3, 6].every((month, i) => bars[i].textContent.startsWith(name(month) + ':')) && Math.abs(july - april - 3 * (april - march)) < 1;
	})()`)
	c.eval(`(() => { const step = document.querySelector('#step'); step.value = 'minute'; return step.dispatchEvent(new Event('change')); })()`, new(bool))
	c.waitFor("an empty history says so", `document.querySelector('#bars').textContent === 'No MPTCP connection carried data in this time.'`)
	c.eval(`(() => { const own = Date.now; Date.now = () => own() + 7200_000; return true; })()`, new(bool))
	waitFor(t, "the page goes by the agent's clock, not by the browser's", func() bool {
		c.eval(`document.querySelector('#step').dispatchEvent(new Event('change'))`, new(bool)) // by minute: the last hour
		agent.mu.Lock()
		defer agent.mu.Unlock()
		return time.Until(agent.since.Add(time.Hour)).Abs() < time.Minute
	})
	var anew bool
	c.eval(`import('/chart.js').then(({Rates}) => {
		const rates = new Rates();
		for (const at of [5e12, 5e12 + 1000, 1e12, 1e12 + 1000]) rates.take(new Map([['direct', 1]]), at);
		return rates.times.join() === '1000000000000,1000000001000' && rates.paths.get('direct').length === 2;
	})`, &anew)
	if !anew {
		t.Error("charts do not begin anew when the agent's clock is set back")
	}
	c.eval(`document.querySelector('#log-form').requestSubmit() ?? true`, new(bool))
	c.waitFor("the log is searched, and its text is no HTML", `document.querySelector('#log-rows').textContent.includes('erin<script>') && document.querySelector('#log-note').textContent.includes('; 7 older ones fit, too')`)

	b := loggedIn(t, s, Reader{})
	c.must(c.Open("about:blank"))
	stops := takeAllStreams(t, b, s)
	c.must(c.Open(s.Link(Reader{})))
	c.waitFor("the page says that there are too many", `document.querySelector('#live')?.textContent.includes('close one')`)
	for _, stop := range stops {
		stop()
	}
	c.waitFor("the page has tried again", `document.querySelector('#live')?.textContent.includes('14 connections') && document.querySelector('#log').hidden`)
	c.must(s.http.Close())
	c.waitFor("the page says what to do if the agent was started anew", `document.querySelector('#live')?.textContent.includes('run dcol web again')`)
}

// The page of a client without connections that forwards for others begins with what it forwards, and keeps this order.
func TestForwardingClientInBrowser(t *testing.T) {
	c := startChromium(t)
	agent := &fake{}
	s := run(t, newServerOf(listenForCuts(t), newHub(agent), slog.New(slog.DiscardHandler)))
	c.must(c.Look(1000, 800, "light"))
	c.must(c.Open(s.Link(Reader{Log: true})))
	const first = `document.querySelector('#served').nextElementSibling.id === 'paths' && document.querySelector('#served-link').nextElementSibling.textContent === 'Paths' &&
		document.querySelector('#served').checkVisibility() && document.querySelector('#paths').checkVisibility()`
	c.waitFor("the served members come first", first)
	c.waitFor("the version stands at the foot", `document.querySelector('footer').textContent.includes('Version v1.4.') && document.querySelector('h1').textContent === 'dcol alice'`)
	c.waitFor("the history is shown", `document.querySelectorAll('#gained > div').length === 3`)
	c.waitFor("the three numbers of the history stand side by side", `new Set([...document.querySelectorAll('#gained > div')].map((e) => e.offsetTop)).size === 1`)
	for _, width := range []int{1000, 1280, 375} {
		for _, scheme := range []string{"light", "dark"} {
			c.must(c.Look(width, 800, scheme))
			c.waitFor("the page has the new size", fmt.Sprintf(`innerWidth === %d`, width))
			var wrong []string
			c.eval(findings, &wrong)
			if len(wrong) > 0 {
				t.Errorf("%d, %s:\n%s", width, scheme, strings.Join(wrong, "\n"))
			}
			c.screenshot(fmt.Sprintf("forwarding-%d-%s", width, scheme))
		}
	}
	agent.mu.Lock()
	agent.connections = 3
	agent.mu.Unlock()
	c.waitFor("a connection is shown, and nothing has moved", `document.querySelectorAll('#connection-rows tr').length === 3 && `+first)
}

// The page warns of a choice that leaves no waypoint that works, and of names that are no waypoint's. Each choice of a waypoint
// has a row, in which it can be undone.
func TestChoiceInBrowser(t *testing.T) {
	c := startChromium(t)
	agent := &fake{connections: 2, steering: &api.Steering{
		Use: []api.Steered{{Name: "dave"}, {Name: "carlo", Unknown: true}}, Only: true,
		Avoid:   []api.Steered{{Name: "bob", Until: time.Now().Add(time.Hour)}, {Name: "eve"}},
		Warning: "dave is down, carlo is not connected: connections have only their direct path until one of them is back; `dcol use --reset` undoes this",
	}}
	s := serve(t, agent)
	c.must(c.Open(s.Link(Reader{})))
	c.waitFor("the warning stands out", `document.querySelector('#choices .warn').textContent.startsWith('dave is down, carlo is not connected') && document.querySelector('#choices .warn code').textContent === 'dcol use --reset'`)
	row := func(name string) string {
		return fmt.Sprintf(`[...[...document.querySelectorAll('#waypoint-rows tr')].find((r) => r.dataset.key === %q).children].map((e) => e.textContent).join('|')`, name)
	}
	c.waitFor("an unknown waypoint has a row that says so", row("carlo")+` === 'carlo|unknownthis host knows no such waypoint|–|–|0 bit/s|–|Use only ✓Avoid' && document.querySelector('[aria-label="Avoid: carlo"]').disabled && !document.querySelector('[aria-label="Use only: carlo"]').disabled`)
	c.waitFor("an avoided waypoint without a session keeps its row", row("eve")+` === 'eve|avoided|–|–|0 bit/s|–|Use firstAvoid ✓'`)
	for _, size := range []struct {
		name  string
		width int
	}{{"desktop", 1280}, {"phone", 360}} {
		for _, scheme := range []string{"light", "dark"} {
			c.must(c.Look(size.width, 800, scheme))
			var wrong []string
			c.eval(findings, &wrong)
			if len(wrong) > 0 {
				t.Errorf("%s, %s:\n%s", size.name, scheme, strings.Join(wrong, "\n"))
			}
			c.screenshot("choice-" + size.name + "-" + scheme)
		}
	}
	c.eval(`document.querySelector('[aria-label="Avoid: eve"]').click() ?? true`, new(bool))
	c.waitFor("the choice is to be undone, which this agent refuses", `document.querySelector('#steer-note').textContent === 'the configuration cannot be read'`)
}

// The page of a host without a collective says what to do next. It has no sections of clients on a host that is no client.
func TestNewHostInBrowser(t *testing.T) {
	c := startChromium(t)
	agent := &fake{fresh: true}
	s := serve(t, agent)
	c.must(c.Open(s.Link(Reader{})))
	for id, text := range map[string]string{
		"connection-rows": "dcol run -- PROGRAM makes", "plain-note": "1 connection is plain TCP", "waypoint-rows": "No waypoints are known: connections have only their direct path. This host has joined no collective: run dcol join with an invitation, or dcol init.", "member-rows": "run dcol join with an invitation", "event-list": "Nothing has happened",
	} {
		c.waitFor(id+" says "+text, fmt.Sprintf(`document.querySelector('#%s').checkVisibility() && document.querySelector('#%s').textContent.includes('%s')`, id, id, text))
	}
	for _, scheme := range []string{"light", "dark"} {
		c.must(c.Look(360, 800, scheme))
		var wrong []string
		c.eval(findings, &wrong)
		if len(wrong) > 0 {
			t.Errorf("%s:\n%s", scheme, strings.Join(wrong, "\n"))
		}
		c.screenshot("new-" + scheme)
	}
	agent.mu.Lock()
	agent.noClient = true
	agent.mu.Unlock()
	c.waitFor("only events and members stay", `document.querySelector('#live').textContent === 'this member is no client and no waypoint' &&
		[...document.querySelectorAll('main section:not(#problems)')].filter((e) => e.checkVisibility()).map((e) => e.id).join() === 'events,members'`)
}

// The page works through a forwarded port, as of ssh -L, with another number and by the name localhost, and steers.
func TestForwardedInBrowser(t *testing.T) {
	c := startChromium(t)
	agent := &fake{connections: 3}
	s := serve(t, agent)
	l := listenForCuts(t)
	forward(t, l, s.listener.Addr().String())
	_, port, err := net.SplitHostPort(l.Addr().String())
	c.must(err)
	c.must(c.Open(strings.Replace(s.Link(Reader{Log: true}), s.listener.Addr().String(), "localhost:"+port, 1)))
	c.waitFor("the page shows connections", `document.querySelectorAll('#connection-rows tr').length === 3 && location.port === '`+port+`'`)
	c.eval(`document.querySelector('[aria-label="Avoid: bob"]').click() ?? true`, new(bool))
	waitFor(t, "bob is avoided", func() bool {
		agent.mu.Lock()
		defer agent.mu.Unlock()
		return len(agent.steered) == 1
	})
}

// forward copies what comes over a listener's connections to an address, and back, until the test ends.
func forward(t *testing.T, l *cutListener, to string) {
	var running sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		l.cut()
		running.Wait()
	})
	running.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer near.Close()
				far, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer far.Close()
				running.Go(func() {
					_, _ = io.Copy(far, near)
					_ = far.Close()
				})
				_, _ = io.Copy(near, far)
			})
		}
	})
}

// The page of a waypoint that is no client begins with what it forwards, and shows no empty sections.
func TestWaypointInBrowser(t *testing.T) {
	c := startChromium(t)
	agent := &fake{noClient: true}
	s := run(t, newServerOf(listenForCuts(t), newHub(agent), slog.New(slog.DiscardHandler)))
	c.must(c.Open(s.Link(Reader{Log: true})))
	c.waitFor("the members' rates are shown", `/erin\s*[\d.]+ Mbit\/s/.test(document.querySelector('#served-rows').textContent) && document.querySelector('#rates').textContent.includes('Mbit/s forwarded')`)
	c.waitFor("the chart has a curve for each busy member", `document.querySelectorAll('#served-chart polyline').length === 2 && document.querySelector('#served-chart polyline').points.length >= 8`)
	c.waitFor("the served members come first, in sections and links, and no section of clients is there", `(() => {
		const seen = (list) => [...document.querySelectorAll(list)].filter((e) => e.checkVisibility());
		return seen('main section:not(#problems)')[0].id === 'served' && seen('nav a')[0].hash === '#served' && seen('[data-of=client]').length === 0;
	})()`)
	var text string
	c.eval(`document.querySelector('#served').textContent`, &text)
	if strings.Contains(text, "mallory") || !strings.Contains(text, "frank-at-home") {
		t.Errorf("members served: %s", text)
	}
	for _, width := range []int{1280, 375} {
		for _, scheme := range []string{"light", "dark"} {
			c.must(c.Look(width, 800, scheme))
			c.waitFor("the chart has the new size", fmt.Sprintf(`innerWidth === %d && Math.abs(document.querySelector('#served-chart svg').viewBox.baseVal.width - document.querySelector('#served-chart').clientWidth) < 2`, width))
			var wrong []string
			c.eval(findings, &wrong)
			if len(wrong) > 0 {
				t.Errorf("%d, %s:\n%s", width, scheme, strings.Join(wrong, "\n"))
			}
			c.screenshot(fmt.Sprintf("waypoint-%d-%s", width, scheme))
		}
	}
	agent.mu.Lock()
	agent.noClient, agent.connections = false, 3
	agent.mu.Unlock()
	c.waitFor("the sections of a client come back, and the served members go behind them", `document.querySelector('#paths').checkVisibility() && document.querySelector('#served').nextElementSibling.id === 'events' && document.querySelectorAll('#connection-rows tr').length === 3`)
}
