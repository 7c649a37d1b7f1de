package pathserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/cflb"
	"github.com/detour-collective/dcol/internal/cflb/cflbtest"
	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/paths/known"
	"github.com/detour-collective/dcol/internal/paths/topology"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const graph = `{"nodes": [{"id": "c", "host": true}, {"id": "r1"}, {"id": "r2"}, {"id": "s", "host": true}, {"id": "w", "host": true}], "links": [
	{"source": "c", "target": "r1", "source_addresses": ["10.0.1.1"]},
	{"source": "s", "target": "r2", "source_addresses": ["10.0.2.1"]},
	{"source": "r1", "target": "r2", "source_addresses": ["10.1.1.1"], "target_addresses": ["10.1.1.2"]},
	{"source": "r1", "target": "r2", "source_addresses": ["10.1.2.1"], "target_addresses": ["10.1.2.2"]},
	{"source": "w", "target": "r2", "source_addresses": ["10.0.3.1"]}]}`

// bed is a path server at a port of this host. Tests set its clock.
type bed struct {
	*testing.T
	ca   *collective.CA
	addr string

	server  *Server
	network *known.Network

	now  atomic.Int64 // in seconds
	stop func()
}

// networkOf returns the network of a graph. If before is not nil, the network is its renewal.
func networkOf(t *testing.T, text string, before *known.Network) *known.Network {
	t.Helper()
	g, err := topology.ReadGraph(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	s := cflbtest.Scheme(t, cflb.Speck, 2)
	var n *known.Network
	if before != nil {
		n, err = before.Renewed(g, s)
	} else {
		n, err = known.New(g, s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func newBed(t *testing.T) *bed {
	t.Helper()
	ca, err := collective.InitCA(t.TempDir(), "test")
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{T: t, ca: ca}
	n := networkOf(t, graph, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.addr = l.Addr().String()
	server := New(b.identity("controller"), n, func() time.Time { return time.Unix(b.now.Load(), 0) }, slog.New(slog.DiscardHandler))
	b.server, b.network = server, n
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	b.stop = func() {
		if cancel(); ended != nil {
			if err := <-ended; err != nil {
				t.Error(err)
			}
			ended = nil
		}
	}
	t.Cleanup(b.stop)
	return b
}

func (b *bed) identity(name string) *collective.Identity {
	b.Helper()
	issued, err := b.ca.Issue(collective.Request{Name: name, Validity: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	id, err := collective.Load(collective.Files{
		Certificate: issued.CertFile, Key: issued.KeyFile, CA: b.ca.CertFile(), CRL: b.ca.CRLFile(),
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	return id
}

func (b *bed) client(name string) *Client {
	b.Helper()
	return &Client{Identity: b.identity(name), Name: "controller", Addr: b.addr}
}

var wanted = PlaceRequest{
	Source: netip.MustParseAddr("10.0.1.1"), Destination: netip.MustParseAddrPort("10.0.2.1:443"), Paths: 2, Each: 3,
}

// TestPlace: a member gets ports on distinct paths, and the server knows the path of each.
func TestPlace(t *testing.T) {
	b := newBed(t)
	c := b.client("alice")
	a, err := c.Place(t.Context(), wanted)
	if err != nil || len(a.Paths) != 2 || a.Seconds != 600 {
		t.Fatalf("%+v, %v", a, err)
	}
	var ports []uint16
	for _, p := range a.Paths {
		if len(p.Ports) != 3 || !slices.Equal(p.There, []string{"c", "r1", "r2", "s"}) || !slices.Equal(p.Back, []string{"s", "r2", "r1", "c"}) {
			t.Errorf("%+v", p)
		}
		ports = append(ports, p.Ports...)
	}
	slices.Sort(ports)
	if len(slices.Compact(ports)) != 6 {
		t.Errorf("ports %v", ports)
	}
	f, err := c.Flow(t.Context(), netip.AddrPortFrom(wanted.Source, ports[0]), wanted.Destination)
	if err != nil || !slices.Equal(f.There, a.Paths[0].There) {
		t.Errorf("%+v, %v", f, err)
	}
	again, err := c.Place(t.Context(), wanted)
	if err != nil || !slices.Equal(again.Paths[0].Ports, a.Paths[0].Ports) {
		t.Errorf("asked again: %+v, %v", again, err)
	}
}

// TestDetours: a detour's ports lead along both of its legs, and a tunnel's ports along the leg after the waypoint.
// Each of these counts as a separate flow.
func TestDetours(t *testing.T) {
	b := newBed(t)
	c := b.client("alice")
	q := wanted
	for _, tc := range []struct {
		waypoint string
		paths    int
		there    []string
	}{
		{"10.0.3.1:40000", 2, []string{"c", "r1", "r2", "w", "r2", "s"}},
		{"10.0.3.1:0", 1, []string{"w", "r2", "s"}},
	} {
		q.Waypoint = netip.MustParseAddrPort(tc.waypoint)
		a, err := c.Place(t.Context(), q)
		if err != nil || len(a.Paths) != tc.paths || !slices.Equal(a.Paths[0].There, tc.there) {
			t.Errorf("by %s: %+v, %v", tc.waypoint, a, err)
		}
	}
	if n := b.server.places.Leases(b.server.now()); n != 2 {
		t.Errorf("%d leases", n)
	}
}

// TestReplace: when a link goes down, a host keeps its remaining path, and another host gets only that path. When the
// link is up again, with other links before it in the list, the first host keeps its path and gets the second one
// again.
func TestReplace(t *testing.T) {
	b := newBed(t)
	c := b.client("alice")
	first, err := c.Place(t.Context(), wanted)
	if err != nil || len(first.Paths) != 2 {
		t.Fatalf("%+v, %v", first, err)
	}
	const second = `{"source": "r1", "target": "r2", "source_addresses": ["10.1.2.1"]`
	b.network = networkOf(t, strings.Replace(graph, second, second+`, "down": true`, 1), b.network)
	b.server.Replace(b.network)
	for _, member := range []*Client{c, b.client("bob")} {
		a, err := member.Place(t.Context(), wanted)
		if err != nil || len(a.Paths) != 1 {
			t.Errorf("without a link: %+v, %v", a, err)
		}
	}
	third := `{"source": "r1", "target": "r2", "source_addresses": ["10.1.3.1"], "target_addresses": ["10.1.3.2"], "weight": 2}, `
	b.network = networkOf(t, strings.Replace(graph, second, third+second, 1), b.network)
	b.server.Replace(b.network)
	again, err := c.Place(t.Context(), wanted)
	if err != nil || len(again.Paths) != 2 {
		t.Errorf("with the link again: %+v, %v", again, err)
	}
}

// TestBadRequests: wrong requests are refused with a reason, and the server continues.
func TestBadRequests(t *testing.T) {
	b := newBed(t)
	c := b.client("alice")
	for name, tc := range map[string]struct {
		change func(*PlaceRequest)
		want   string
	}{
		"unknown destination": {func(q *PlaceRequest) { q.Destination = netip.MustParseAddrPort("10.7.7.7:443") }, "no such address: 10.7.7.7"},
		"two families":        {func(q *PlaceRequest) { q.Destination = netip.MustParseAddrPort("[fd00::1]:443") }, "no such address"},
		"unknown waypoint":    {func(q *PlaceRequest) { q.Waypoint = netip.MustParseAddrPort("10.7.7.7:443") }, "no such address: 10.7.7.7"},
		"no destination":      {func(q *PlaceRequest) { q.Destination = netip.AddrPort{} }, "destination an address with a port"},
		"no paths":            {func(q *PlaceRequest) { q.Paths = 0 }, "paths must be from 1 to 16, not 0"},
		"too many paths":      {func(q *PlaceRequest) { q.Paths = 1 << 30 }, "paths must be from 1 to 16"},
		"too many ports":      {func(q *PlaceRequest) { q.Each = 65 }, "each must be from 1 to 64"},
	} {
		q := wanted
		tc.change(&q)
		if name == "two families" {
			tc.want = "not of one IP version"
		}
		if _, err := c.Place(t.Context(), q); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, tc := range map[string]struct{ q, want string }{
		"oversized":   {strings.Repeat(" ", maxRequest) + "{}", "too large"},
		"no JSON":     {"paths", "read the request"},
		"unknown key": {`{"source": "10.0.1.1", "ports": 1}`, `unknown field \"ports\"`},
	} {
		err := c.post(t.Context(), placePath, []byte(tc.q), &struct{}{})
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Place(t.Context(), wanted); err != nil {
		t.Error(err)
	}
}

// TestStrangers: somebody who is not a member, or not any more, gets no answer. A client sends nothing to a server with
// another name.
func TestStrangers(t *testing.T) {
	b := newBed(t)
	other := newBed(t)
	stranger := other.client("alice")
	stranger.Addr = b.addr
	if _, err := stranger.Place(t.Context(), wanted); err == nil {
		t.Error("a member of another collective is answered")
	}
	impostor := b.client("bob")
	impostor.Name = "hub"
	if _, err := impostor.Place(t.Context(), wanted); err == nil || !strings.Contains(err.Error(), "hub") {
		t.Errorf("a server of another name: %v", err)
	}
	plain := &http.Transport{DisableKeepAlives: true}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+b.addr+placePath, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if a, err := plain.RoundTrip(r); err == nil {
		if a.Body.Close(); a.StatusCode == http.StatusOK {
			t.Error("plain HTTP is answered")
		}
	}
}

// TestIdleStrangersKeepNobodyOut: any number of connections without a handshake leaves room for members.
func TestIdleStrangersKeepNobodyOut(t *testing.T) {
	b := newBed(t)
	for range limits.PerSource + 10 {
		c, err := net.Dial("tcp", b.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	ctx, cancel := context.WithTimeout(t.Context(), requestTime/2)
	defer cancel()
	if _, err := b.client("alice").Place(ctx, wanted); err != nil {
		t.Error(err)
	}
}

// TestExpelledIsNotAnswered: a former member gets no answer even on an older connection.
func TestExpelledIsNotAnswered(t *testing.T) {
	b := newBed(t)
	id := b.identity("alice")
	transport := &http.Transport{TLSClientConfig: id.ClientTLS(alpn, "controller")}
	defer transport.CloseIdleConnections()
	ask := func() error {
		body := `{"source": "10.0.1.1", "destination": "10.0.2.1:443", "paths": 2, "each": 3}`
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+b.addr+placePath, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		a, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		defer a.Body.Close()
		if text, _ := io.ReadAll(a.Body); a.StatusCode != http.StatusOK {
			return errors.New(string(text))
		}
		return nil
	}
	if err := ask(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.ca.Revoke("alice", collective.PrivilegeWithdrawn); err != nil {
		t.Fatal(err)
	}
	if err := ask(); err == nil || !strings.Contains(err.Error(), "revoked") {
		t.Errorf("expelled: %v", err)
	}
}

// TestBadAnswers: a client rejects answers with more than it requested, or with invalid ports.
func TestBadAnswers(t *testing.T) {
	few := []Placed{{Ports: []uint16{61000, 61001}}, {Ports: []uint16{61002}}}
	for name, tc := range map[string]struct {
		paths []Placed
		want  string
	}{
		"good":           {few, ""},
		"no path":        {nil, ""},
		"too many paths": {slices.Repeat(few, 9), "18 paths, but 2 were wanted"},
		"too many ports": {[]Placed{{Ports: []uint16{1, 2, 3, 4}}}, "4 ports on path 1"},
		"no ports":       {[]Placed{few[0], {}}, "0 ports on path 2"},
		"port 0":         {[]Placed{{Ports: []uint16{0}}}, "port 0"},
		"a port twice":   {[]Placed{few[1], few[1]}, "port 61002"},
	} {
		a := PlaceAnswer{Paths: tc.paths}
		if err := a.check(wanted); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// unserved returns a server without a network. It can place only the ways that are passed to join and reserve.
func unserved() *Server { return New(nil, nil, time.Now, slog.New(slog.DiscardHandler)) }

// TestOneMemberCannotTakeAll: the number of one member's flows is limited until their leases end.
func TestOneMemberCannotTakeAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unserved()
		ways := [][]int{{1}, {2}}
		place := func(member string, port uint16) error {
			key := keyOf(member, &PlaceRequest{Destination: netip.AddrPortFrom(wanted.Source, port)})
			_, err := s.reserve(known.Asked{Host: member, Key: key, Ways: ways, Wanted: 1}, wanted.Destination)
			return err
		}
		for port := range uint16(leasesOfMember) {
			if err := place("alice", port); err != nil {
				t.Fatal(err)
			}
		}
		if err := place("alice", 5000); err == nil || !strings.Contains(err.Error(), "too many flows") {
			t.Errorf("one more: %v", err)
		}
		if err := place("alice", 1); err != nil {
			t.Errorf("a renewal: %v", err)
		}
		if err := place("bob", 1); err != nil {
			t.Errorf("another member: %v", err)
		}
		time.Sleep(leaseTime)
		if err := place("alice", 5000); err != nil {
			t.Errorf("after their time: %v", err)
		}
	})
}

// TestPlacedTogether: requests that arrive within gatherTime are placed together, but not later ones. Placed alone, the
// first would take the link that the second needs.
func TestPlacedTogether(t *testing.T) {
	for after, want := range map[time.Duration][]int{gatherTime - 1: {1, 0}, gatherTime + 1: {0, 0}} {
		synctest.Test(t, func(t *testing.T) {
			s := unserved()
			join := func(member string, ways [][]int) (*batch, int) {
				b, i, err := s.join(known.Asked{Host: member, Key: member, Ways: ways, Wanted: 1}, wanted.Destination)
				if err != nil {
					t.Fatal(err)
				}
				return b, i
			}
			first, i := join("alice", [][]int{{1}, {2}})
			time.Sleep(after)
			second, k := join("bob", [][]int{{1}})
			<-first.placed
			<-second.placed
			if got := []int{first.chosen[i][0], second.chosen[k][0]}; !slices.Equal(got, want) {
				t.Errorf("requests %v apart: placed %v, not %v", after, got, want)
			}
		})
	}
}

// TestToldOfMoves: a member is told when its flow is moved because of another's, and gets the new path when it asks
// again. A member without an open request keeps its path.
func TestToldOfMoves(t *testing.T) {
	for _, hears := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := unserved()
			place := func(member string, ways [][]int) int {
				chosen, err := s.reserve(known.Asked{Host: member, Key: member, Ways: ways, Wanted: 1, Moves: true}, wanted.Destination)
				if err != nil {
					t.Fatal(err)
				}
				return chosen[0]
			}
			old := [][]int{{0, 1}, {0, 2}}
			if way := place("alice", old); way != 0 {
				t.Fatal(way)
			}
			told := make(chan []netip.AddrPort, 1)
			if hears {
				go func() {
					a, err := s.moved(t.Context(), "alice", nil)
					if err != nil {
						t.Error(err)
					}
					told <- a.Destinations
				}()
			}
			synctest.Wait()
			began := time.Now()
			place("bob", [][]int{{1}})
			synctest.Wait()
			if hears {
				if got := <-told; !slices.Equal(got, []netip.AddrPort{wanted.Destination}) || time.Since(began) != gatherTime {
					t.Errorf("told of %v after %v", got, time.Since(began))
				}
			}
			if way := place("alice", old); hears != (way == 1) {
				t.Errorf("hears %t: on way %d", hears, way)
			}
			if len(s.hearing) != 0 {
				t.Error("a request that was answered is kept")
			}
		})
	}
}

// TestRequestsForMovesEnd: a MovedRequest ends after movedTime, when the member disconnects, and when the member sends
// another one.
func TestRequestsForMovesEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := unserved()
		ended := make(chan time.Duration, 1)
		began := time.Now()
		wait := func(ctx context.Context) {
			go func() {
				a, err := s.moved(ctx, "alice", nil)
				if len(a.Destinations) > 0 || err != nil && ctx.Err() == nil {
					t.Errorf("%+v, %v", a, err)
				}
				ended <- time.Since(began)
			}()
			synctest.Wait()
		}
		wait(t.Context())
		time.Sleep(time.Second)
		wait(t.Context())
		if after := <-ended; after != time.Second {
			t.Errorf("the first ended after %v", after)
		}
		if after := <-ended; after != time.Second+movedTime {
			t.Errorf("the second ended after %v", after)
		}
		gone, leave := context.WithCancel(t.Context())
		wait(gone)
		leave()
		<-ended
		if len(s.hearing) != 0 {
			t.Error("requests are kept after their end")
		}
	})
}

// oneConn is a listener for one connection.
type oneConn struct {
	conns chan net.Conn
}

func (l oneConn) Accept() (net.Conn, error) {
	if conn, ok := <-l.conns; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}
func (l oneConn) Close() error   { return nil }
func (l oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// TestRequestsStayOpen: a MovedRequest may last longer than other requests.
func TestRequestsStayOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := unserved().web(open(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadAll(r.Body)
			select {
			case <-time.After(movedTime):
				_, _ = io.WriteString(w, "late")
			case <-r.Context().Done():
				_, _ = io.WriteString(w, "ended")
			}
		})))
		client, server := net.Pipe()
		l := oneConn{make(chan net.Conn, 1)}
		l.conns <- server
		close(l.conns)
		_ = h.Serve(l) // returns after the only connection
		if _, err := io.WriteString(client, "POST / HTTP/1.1\r\nHost: controller\r\nContent-Length: 2\r\n\r\n{}"); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(client)
		if err != nil || !strings.HasSuffix(string(answer), "late") {
			t.Errorf("%q, %v", answer, err)
		}
	})
}

// TestToldOfLostLinks: a member with a flow on a link that goes down is told, and gets another path.
func TestToldOfLostLinks(t *testing.T) {
	b := newBed(t)
	c := b.client("alice")
	one := wanted
	one.Paths = 1
	if _, err := c.Place(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() {
		destinations, err := c.Moved(t.Context())
		if err == nil && !slices.Equal(destinations, []netip.AddrPort{wanted.Destination}) {
			err = fmt.Errorf("told of %v", destinations)
		}
		told <- err
	}()
	for hears := false; !hears; time.Sleep(time.Millisecond) {
		b.server.mu.Lock()
		hears = b.server.hearing["alice"] != nil
		b.server.mu.Unlock()
	}
	for _, address := range []string{"10.1.1.1", "10.1.2.1"} { // the paths there and back may use different links
		link := `{"source": "r1", "target": "r2", "source_addresses": ["` + address + `"]`
		b.network = networkOf(t, strings.Replace(graph, link, link+`, "down": true`, 1), b.network)
		b.server.Replace(b.network)
	}
	if err := <-told; err != nil {
		t.Error(err)
	}
	if a, err := c.Place(t.Context(), one); err != nil || len(a.Paths) != 1 {
		t.Errorf("%+v, %v", a, err)
	}
}

// TestServerGone: a request without a server fails soon, with the server's name in the error.
func TestServerGone(t *testing.T) {
	b := newBed(t)
	c := b.client("alice")
	b.stop()
	if _, err := c.Place(t.Context(), wanted); err == nil || !strings.Contains(err.Error(), "ask the path server controller: ") {
		t.Error(err)
	}
}
