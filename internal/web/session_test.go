package web

import (
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// shown is the condition that the page shows the state of a fake agent with 14 connections.
const shown = `document.querySelectorAll('#connection-rows tr').length === 14`

// shows waits until the page says something about itself.
func (c *chromium) shows(when, words string) {
	c.t.Helper()
	c.waitFor(when+" the page says: "+words, `document.querySelector('#live')?.textContent.includes('`+words+`')`)
}

// leave opens an empty page, so that the next address is not only another part of the page that is open.
func (c *chromium) leave() {
	c.t.Helper()
	c.must(c.Open("about:blank"))
}

// addresses returns the addresses of the page and of its requests, and those to which the browser's button leads back.
func (c *chromium) addresses() string {
	c.t.Helper()
	var history json.RawMessage
	c.must(c.Call("Page.getNavigationHistory", nil, &history))
	var here string
	c.eval(`[location.href, ...performance.getEntriesByType('resource').map((r) => r.name)].join(' ')`, &here)
	return here + string(history)
}

// The code in the page's address begins a session. The browser goes on with it when the page is loaded again, opened at
// the same address, or opened in another tab. Without a session the page says what to do.
func TestSessionInBrowser(t *testing.T) {
	c := startChromium(t)
	s := serve(t, &fake{connections: 14})
	c.must(c.Open(s.url("/")))
	c.shows("without a session", "run dcol web")

	link := s.Link(Reader{})
	_, code, _ := strings.Cut(link, "/#code=")
	c.must(c.Open(link)) // in the same tab: the browser does not load the page for it
	c.waitFor("the page has a session", shown)
	if at := c.addresses(); strings.Contains(at, code) {
		t.Errorf("the code is still in an address: %s", at)
	}
	for what, open := range map[string]func() error{
		"loaded again":                       func() error { return c.Call("Page.reload", nil, nil) },
		"opened at the same address":         func() error { c.leave(); return c.Open(link) },
		"led to the address a second time":   func() error { return c.Open(link) },
		"opened without a code":              func() error { c.leave(); return c.Open(s.url("/")) },
		"opened at the name of a section":    func() error { c.leave(); return c.Open(s.url("/#members")) },
		"opened with a code that is no code": func() error { c.leave(); return c.Open(s.url("/#code=guess")) },
	} {
		c.eval(`(window.old = true)`, new(bool))
		c.must(open())
		c.waitFor(what+", the page goes on", `!window.old && `+shown+` && !location.hash.includes('code')`)
	}

	s.guard.mu.Lock()
	s.guard.sessions.list = nil
	s.guard.mu.Unlock()
	c.must(c.Call("Page.reload", nil, nil))
	c.shows("when the session is over", "its session has ended")
	c.leave()
	c.must(c.Open(link))
	c.shows("when the code was used, and the session is over", "was used already")
	c.must(c.Open(s.Link(Reader{})))
	c.waitFor("the page has a new session", shown)

	c.leave()
	c.call("Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": `Object.defineProperty(window, 'localStorage', {get() { throw new Error('stores nothing'); }})`})
	c.must(c.Open(s.Link(Reader{})))
	c.waitFor("the page has a session in a browser that stores nothing", shown)
}

// Another user's server at another port of the loopback address gets nothing of the session from a browser that has one,
// and neither do its pages.
func TestOtherPortsGetNothing(t *testing.T) {
	c := startChromium(t)
	s := serve(t, &fake{connections: 14})
	requests := make(chan *http.Request, 100)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, "<!doctype html><title>other</title>")
	}))
	defer other.Close()
	c.must(c.Open(s.Link(Reader{Log: true})))
	c.waitFor("the page has a session", shown)
	var token string
	c.eval(`localStorage.getItem('dcol-session')`, &token)
	if _, _, valid := s.guard.reader(token, time.Now()); !valid {
		t.Fatalf("the browser has stored no token: %q", token)
	}

	_ = c.Eval(`location.assign('`+other.URL+`') ?? true`, new(bool)) // as a link does; the page may be gone before it answers
	c.waitFor("the other page is open", `document.title === 'other'`)
	select {
	case r := <-requests:
		if !strings.HasPrefix(r.UserAgent(), "Mozilla") || r.Header.Get("Cookie")+r.Header.Get("Authorization")+r.Header.Get("Referer") != "" {
			t.Errorf("the other server gets %v", r.Header)
		}
	case <-time.After(time.Minute):
		t.Fatal("the browser requests nothing from the other server")
	}
	var found string
	c.eval(`(async () => {
		const found = [document.cookie, document.referrer, JSON.stringify(localStorage), JSON.stringify(sessionStorage)];
		for (const what of ['api/members', 'api/stream', '']) {
			await fetch('`+s.url("/")+`' + what, {credentials: 'include'}).then((r) => r.text()).then((text) => found.push(text), () => {});
		}
		return found.join('');
	})()`, &found)
	if found != "{}{}" {
		t.Errorf("the other page finds %q", found)
	}
}

// A stranger who holds very many connections keeps no browser from the page: it opens other connections.
func TestPageBesideStrangers(t *testing.T) {
	c := startChromium(t)
	l := listenForCuts(t)
	s := run(t, newServerOf(l, newHub(&fake{connections: 14}), slog.New(slog.DiscardHandler)))
	strangers := func() {
		t.Helper()
		for range 2 * mostStrangers {
			held, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = held.Close() })
		}
	}
	strangers()
	c.must(c.Open(s.Link(Reader{})))
	c.waitFor("the page has a session beside strangers", shown)
	strangers() // they take the places of the browser's connections that only loaded files
	c.goesOn("beside strangers")
	c.eval(`document.querySelector('#connection-rows button').click() ?? true`, new(bool))
	c.waitFor("the page's requests are answered beside strangers", `document.querySelector('#why').textContent.includes('it loses least')`)
	l.cut() // also the strangers'
	strangers()
	c.goesOn("after a cut, beside strangers")
	c.must(c.Call("Page.reload", nil, nil))
	c.waitFor("the page is loaded again beside strangers", shown)
}
