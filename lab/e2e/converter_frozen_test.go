package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// convertersLimit is for how long a converter that does not answer delays a connection.
const convertersLimit = 2 * time.Second

// counter is a web server without MPTCP that counts the requests for each path.
type counter struct {
	w    *world
	port int

	mu  sync.Mutex
	got map[string]int
}

func (w *world) counter() *counter {
	w.Helper()
	c := &counter{w: w, got: make(map[string]int)}
	var l net.Listener
	err := w.host(server).Do(func() (err error) {
		var config net.ListenConfig
		config.SetMultipathTCP(false)
		l, err = config.Listen(context.Background(), "tcp", ":0")
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	c.port = l.Addr().(*net.TCPAddr).Port
	s := &http.Server{Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got[r.URL.Path]++
		_, _ = out.Write([]byte("answered"))
	})}
	go func() { _ = s.Serve(l) }()
	w.Cleanup(func() { _ = s.Close() })
	return c
}

// request is a request by a program of alice's whose connect() does not wait.
type request struct {
	path string
	done chan result
}

func (c *counter) request(n int) *request {
	c.w.Helper()
	r := &request{path: fmt.Sprintf("/%d", n), done: make(chan result, 1)}
	url := fmt.Sprintf("http://%v:%d%s", c.w.addr4(server), c.port, r.path)
	cmd := c.w.host(alice).Command(c.w.life(), program, "run", "--", "curl", "--silent", "--show-error", "--fail", url)
	go func() { r.done <- c.w.finish(cmd) }()
	return r
}

// blocking makes a request by a program whose connect() waits, and returns how long it took.
func (c *counter) blocking(path string) time.Duration {
	c.w.Helper()
	url := fmt.Sprintf("http://%v:%d%s", c.w.addr4(server), c.port, path)
	out := c.w.run(alice, program, "run", "--", "python3", "-c", `
import sys, time, urllib.request
start = time.monotonic()
assert urllib.request.urlopen(sys.argv[1]).read() == b"answered"
print("%fs" % (time.monotonic() - start), end="")`, url)
	took, err := time.ParseDuration(out)
	if err != nil {
		c.w.Fatal(err)
	}
	return took
}

// ended returns how the request ended.
func (r *request) ended(w *world) result {
	w.Helper()
	select {
	case got := <-r.done:
		return got
	case <-time.After(2 * patience):
		w.Fatalf("request %s does not end", r.path)
		return result{}
	}
}

// hasEnded reports whether the request has ended, and ended would return at once.
func (r *request) hasEnded() bool { return len(r.done) > 0 }

// answered waits until a request has been answered.
func (c *counter) answered(r *request) {
	c.w.Helper()
	if got := r.ended(c.w); got.code != 0 || got.stdout != "answered" {
		c.w.Fatalf("request %s: %v", r.path, got)
	}
}

// counts returns how often each request has arrived.
func (c *counter) counts() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.got)
}

// A converter freezes. The request whose bytes went along with the connection to it gets its answer when the converter
// continues, or ends; nobody repeats it. Those that begin later wait for one timeout, and then go directly or through
// another converter. No request arrives twice, also not when the converter continues.
//
// It does not run beside other tests: converters are given two seconds to answer, and relays six.
func TestConverterFreezes(t *testing.T) {
	for name, others := range map[string]bool{"alone": false, "with another": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if others {
				w.convertWith(w.addr4(bob), "always", "", waypointConfig("offers = [\"mapped\", \"converter\"]\n"+labAllowed))
			} else {
				w.convert("always", "")
			}
			c := w.counter()
			hosts := []string{bob}
			if others {
				hosts = append(hosts, mallory)
			}
			accepted := func(host string) int64 { return w.part(host, "converter").Accepted }
			var n int
			next := func() *request { n++; return c.request(n) }
			// used makes requests until one goes through a converter, and returns its host.
			used := func() (host string) {
				w.Helper()
				before := make(map[string]int64)
				for _, host := range hosts {
					before[host] = accepted(host)
				}
				w.eventually("a converter is used", func() error {
					c.answered(next())
					i := slices.IndexFunc(hosts, func(host string) bool { return accepted(host) > before[host] })
					if i >= 0 {
						host = hosts[i]
					}
					return holds(i >= 0, "none is")
				})
				return host
			}
			usual := c.blocking("/usual")
			used()
			frozen := used() // which will be used again, as a rule, and is trusted for ten seconds
			relay := fmt.Sprint(w.relayOf(frozen))
			send := func(signal string) result { w.Helper(); return w.try(frozen, "kill", "-"+signal, relay) }
			if r := send("STOP"); r.code != 0 {
				t.Fatal(r)
			}
			defer send("CONT")
			connections := func() int {
				return strings.Count(w.run(frozen, "ss", "-Htn", "state", "established", "sport", "=", ":5124"), "\n")
			}
			before := connections()
			first := next()
			// Whether its bytes go along depends on how long all this took. If they do, those of requests in the next half second go
			// along as well.
			w.eventually("the first request has called the frozen converter, or has gone another way", func() error {
				return holds(first.hasEnded() || connections() > before, "it has not")
			})
			time.Sleep(time.Second)
			if took := c.blocking("/frozen"); took > 2*convertersLimit+usual {
				t.Errorf("a program that waits in connect() waited for %v, and for %v before", took, usual)
			}
			for range 3 {
				c.answered(next())
			}
			if others {
				other := bob
				if frozen == bob {
					other = mallory
				}
				before := accepted(other)
				w.eventually("the other converter is used", func() error {
					c.answered(next())
					return holds(accepted(other) > before, "it is not")
				})
			}
			// After some seconds, the agent replaces a relay that does not answer. A busy machine may take as long.
			if r := send("CONT"); r.code != 0 {
				t.Logf("the converter has ended: %v", r)
			}
			if got := first.ended(w); (got.code == 0) != (got.stdout == "answered") {
				t.Errorf("the first request: %v", got)
			}
			// A converter that has not served a connection to a server is not asked for that server for half a minute.
			w.within(30*time.Second+patience, "the converter, or another, is used again", func() error {
				before := accepted(frozen)
				c.answered(next())
				return holds(others || accepted(frozen) > before, "it is not")
			})
			for path, times := range c.counts() {
				if times > 1 {
					t.Errorf("%s has arrived %d times", path, times)
				}
			}
			t.Logf("of %d requests %d arrived", n, len(c.counts()))
		})
	}
}
