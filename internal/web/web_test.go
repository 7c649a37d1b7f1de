package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is an agent with some connections whose rates change.
type fake struct {
	mu          sync.Mutex
	asked       int
	connections int
	joined      int // number of members besides alice and bob
	noClient    bool
	fresh       bool // without a collective, waypoints and members served
	steering    *api.Steering
	steered     []api.SteerRequest
	since       time.Time // of the last request for the history
}

var began = time.Now().Add(-time.Hour)

func (f *fake) Status(context.Context) (api.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	wave := func(n int) float64 { return 1 + 0.4*math.Sin(float64(f.asked)/5+float64(n)) }
	at := netip.MustParseAddrPort
	using := &api.Using{
		Waypoints: []api.Waypoint{
			{Name: "bob", Addr: at("192.0.2.7:45672"), State: api.WaypointUp, RTT: 18, Loss: 0.001, LossPackets: 60, Kinds: []api.WaypointKind{{Kind: "in-band", State: api.KindReady}, {Kind: "mapped", State: api.KindReady}}},
			{Name: "bob", Addr: at("[2001:db8::b]:45672"), State: api.WaypointUp, RTT: 23, LossPackets: 3, Kinds: []api.WaypointKind{{Kind: "in-band", State: api.KindUnusable}, {Kind: "mapped", State: api.KindReady}}},
			{Name: "carol", Addr: at("[2001:db8::7]:45672"), State: api.WaypointUp, RTT: 41, Loss: 0.02, LossPackets: 60, Kinds: []api.WaypointKind{{Kind: "wireguard", State: api.KindReady}}},
			{Name: "dave", Addr: at("198.51.100.9:45672"), State: api.WaypointDown, Why: "no answer for 2 min", Kinds: []api.WaypointKind{}},
		},
		Steering: api.Steering{Use: []api.Steered{}, Avoid: []api.Steered{{Name: "dave"}}},
		Budgets:  []api.Budget{{Scope: "total", Used: 9e9, Limit: 10e9, Level: "nearly"}},
	}
	if f.steering != nil {
		using.Steering = *f.steering
	}
	for i := range f.connections {
		server := netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i % 250)}), 443)
		c := api.Connection{
			Token: fmt.Sprint(i), Remote: server, Since: began.Add(time.Duration(i) * time.Second), Traffic: []string{"bulk", "messages", "short"}[i%3],
			Subflows: []api.Subflow{{Kind: "direct", State: api.SubflowUp, Local: at("192.0.2.1:1000"), Remote: server, RTT: 24, ReceiveRate: 9e6 / float64(i+1) * wave(i), Segments: uint64(90 * f.asked), Retransmitted: uint64(f.asked)}},
		}
		if i%3 != 2 {
			c.Subflows = append(c.Subflows, api.Subflow{Kind: "in-band", Waypoint: []string{"bob", "carol"}[i%2], State: api.SubflowUp, Local: at("192.0.2.1:1001"), Remote: server, RTT: 31, ReceiveRate: 14e6 / float64(i+1) * wave(i+2), Why: "it loses least"})
		} else {
			c.Note = "the server accepts no more subflows"
		}
		if i == 5 {
			c.Remote, c.Server, c.Converter = at("192.0.2.7:5124"), server, "bob"
		}
		using.Connections = append(using.Connections, c)
	}
	if f.fresh {
		using.Waypoints, using.Steering.Avoid, using.Plain = nil, []api.Steered{{Name: "carlo", Unknown: true}}, []netip.AddrPort{at("203.0.113.5:443")}
	}
	roles := []string{"client", "waypoint"}
	if f.noClient {
		using, roles = nil, roles[1:]
	}
	s := api.Status{
		Schema: api.StatusSchema, Member: "alice", Version: "v1.4", Roles: roles, Since: began,
		Problems: []string{"the certificate expires in 2 h, and no coordinator answers: check that TCP port 45672 of coordinator.example is reachable"},
		Client:   using, Collective: &api.Collective{Name: "test", Members: 2 + f.joined}, Serving: &api.Serving{
			Granted: 60, Refused: map[string]int{"port-denied": 4}, Given: api.Given{Open: true, QuotaBytes: 5e9, UsedBytes: 1.83e9, Members: []api.GivenMember{
				{Member: "erin", Open: true, Only: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("2001:db8:5::/48")}, Ports: []uint16{443}},
			}},
			Members: []api.Served{{Member: "erin", Sessions: 1, Mappings: 12, Flows: 31, Bytes: 1.83e9 + uint64(f.asked)*1_500_000}, {Member: "frank-at-home", Sessions: 2, Tunnels: 1, Bytes: uint64(max(f.asked-5, 0)) * 700_000}, {Member: "mallory", Expelled: true, Bytes: 5}},
		},
	}
	if f.fresh {
		s.Collective, s.Serving = nil, nil
	}
	return s, nil
}

func (f *fake) Members(context.Context) (api.Members, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fresh {
		return api.Members{}, errors.New("this host has joined no collective: run `dcol join` with an invitation")
	}
	yes := true
	list := []api.Member{
		{Name: "alice", Roles: []string{"client"}}, {Name: "bob", Roles: []string{"client", "waypoint"}, Region: "eu", Kinds: []string{"in-band", "mapped"}, Reachable: &yes, Used: true},
	}
	for i := range f.joined {
		list = append(list, api.Member{Name: fmt.Sprintf("new-%d", i), Roles: []string{"client"}})
	}
	return api.Members{Members: list}, nil
}

func (f *fake) History(_ context.Context, r api.HistoryRequest) (api.History, error) {
	f.mu.Lock()
	f.since = r.Since
	f.mu.Unlock()
	out := api.History{Schema: api.HistorySchema, Step: r.Step, Total: api.Period{Gained: api.Gained{DetourBytes: 81e9, Stalls: 3, StallTime: 48, Saved: 2900, SavedLow: 2100, SavedHigh: 3600}}}
	switch r.Step {
	case api.StepMonth:
		out.Total.Gained = api.Gained{SavedHigh: 66, SavedUnknown: 66}
		for _, month := range []time.Month{time.March, time.April, time.July} {
			out.Periods = append(out.Periods, api.Period{Start: time.Date(2026, month, 1, 0, 0, 0, 0, time.FixedZone("", 9*3600)), Paths: []api.PathUsed{{Kind: "direct", Received: 5e9}}})
		}
		return out, nil
	case api.StepMinute: // nothing yet
		return api.History{Schema: api.HistorySchema, Step: r.Step, Periods: []api.Period{}}, nil
	}
	for i := range 36 {
		if i >= 10 && i < 15 { // no agent ran
			continue
		}
		out.Periods = append(out.Periods, api.Period{Start: began.Add(time.Duration(i-36) * time.Hour), Paths: []api.PathUsed{
			{Kind: "direct", Received: uint64(2e9 + 1e9*math.Sin(float64(i)/4))}, {Kind: "in-band", Waypoint: "bob", Received: uint64(2e9 + 2e9*math.Cos(float64(i)/5))},
		}})
	}
	return out, nil
}

func (f *fake) Why(_ context.Context, r api.WhyRequest) (api.Why, error) {
	now := time.Now()
	out := api.Why{
		Server: r.Server, Direct: api.Outlook{Measured: api.Measured{At: now, MinRTT: 29, Loss: 0.012}, Wait: 57}, Note: "",
		Unavailable: []api.Unavailable{{Waypoint: "dave", State: api.WaypointClosed, Why: "switched off"}},
		Candidates: []api.Candidate{
			{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7"), Kind: "in-band", Taken: true, Untried: true, Why: "it loses least", Measured: api.Measured{At: now, MinRTT: 24, Goodput: 17.5e6}, Wait: 26, Guessed: true,
				Claimed: &api.Claimed{Members: 3, Loss: "below 0.5 %"}, Bottlenecks: []api.Bottleneck{{Relation: "apart", Pairs: 5, Lost: 0.02, Least: -0.1, Most: 0.14}}},
			{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.77"), Kind: "in-band", Why: "others come first", Change: "it is taken when carol fails", Expected: new(float64), Wait: 33, Guessed: true},
			{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.77"), Kind: "mapped", Why: "others come first", Change: "it is taken when carol fails", Expected: new(float64), Wait: 34, Guessed: true},
			{Waypoint: "carol", Kind: "wireguard", Wait: 12, Guessed: true, AtLeast: true, Why: "the server accepts no more subflows", Until: now.Add(time.Minute)},
		},
		Closed: []api.ClosedConnection{{Connection: api.Connection{Remote: r.Server, Since: now.Add(-time.Minute), Subflows: []api.Subflow{{Kind: "direct"}, {Kind: "in-band", Waypoint: "bob", Why: "it lost least"}}}, Ended: now.Add(-30 * time.Second)}},
		Fixes:  []string{"on a server of your own: ip mptcp limits set subflows 8"},
		Probed: []api.ProbedPath{{At: now.Add(-3 * time.Hour), To: r.Server, Recipe: "mptcp", Confidence: "certain", Text: "MP_CAPABLE is removed between hop 3 and hop 4.", Evidence: []string{"hop 4 quoted a SYN without it"}}},
	}
	for i := range f.connections {
		out.Connections = append(out.Connections, api.Connection{Token: fmt.Sprint(i), Since: began, Note: "the server takes 2 beside the first subflow", Subflows: []api.Subflow{{Kind: "direct", State: api.SubflowUp}, {Kind: "in-band", Waypoint: "bob", State: api.SubflowBackup, Why: "its round trip is longer"}},
			Tried: []api.Tried{{Waypoint: "carol", At: now.Add(-9 * time.Second), Verdict: "measured", Why: "carried 2.0 Mbit/s while it was tried"}},
			Left:  []api.Left{{Kind: "in-band", Waypoint: "erin", At: now.Add(-6 * time.Second), Ended: true, Why: "its rate fell from 18.2 Mbit/s to 0.9 Mbit/s"}}})
	}
	return out, nil
}

func (f *fake) Steer(_ context.Context, r api.SteerRequest) (api.Steering, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Word == api.SteerReset {
		return api.Steering{}, errors.New("the configuration cannot be read")
	}
	f.steered = append(f.steered, r)
	return api.Steering{}, nil
}

func (f *fake) Log(_ context.Context, r api.LogRequest) (api.Log, error) {
	if r.Server == "nonsense" {
		return api.Log{}, errors.New(`"nonsense" is not an address`)
	}
	n := uint64(123456)
	return api.Log{Older: 7, Flows: []api.LogFlow{{
		Opened: began, Closed: began.Add(90 * time.Second), Member: "erin<script>", Kind: "mapped", Server: netip.MustParseAddrPort("203.0.113.5:443"), Egress: netip.MustParseAddrPort("198.51.100.9:40112"), BytesFromClient: &n, BytesToClient: &n,
	}}}, nil
}

func (f *fake) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// serve runs a server until the test ends.
func serve(t *testing.T, agent Agent) *Server {
	t.Helper()
	s, err := New(agent, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return run(t, s)
}

func run(t *testing.T, s *Server) *Server {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *Server) url(path string) string { return "http://" + s.listener.Addr().String() + path }

// withToken sends a session's token with each request.
type withToken struct {
	http.Transport
	token string
}

func (w *withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.token != "" {
		r = r.Clone(r.Context())
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	return w.Transport.RoundTrip(r)
}

// browser is a client with the token of a session; "": without.
func browser(t *testing.T, token string) *http.Client {
	transport := &withToken{token: token}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// begin exchanges the code of a link for a token.
func begin(t *testing.T, link string) (token string, status int, text string) {
	t.Helper()
	origin, code, _ := strings.Cut(link, "/#code=")
	status, text = do(t, browser(t, ""), http.MethodPost, origin+"/api/session", fmt.Sprintf(`{"code": %q}`, code), map[string]string{"Origin": origin})
	var answer session
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return answer.Token, status, text
}

// loggedIn returns a client with a session of the reader.
func loggedIn(t *testing.T, s *Server, r Reader) *http.Client {
	t.Helper()
	token, status, text := begin(t, s.Link(r))
	if status != http.StatusOK || token == "" {
		t.Fatalf("the link's code gives %d %s", status, text)
	}
	return browser(t, token)
}

func get(t *testing.T, b *http.Client, url string) (int, string) {
	t.Helper()
	return do(t, b, http.MethodGet, url, "", nil)
}

func do(t *testing.T, b *http.Client, method, url, body string, headers map[string]string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range headers {
		if name == "Host" {
			req.Host = value
		}
		req.Header.Set(name, value)
	}
	resp, err := b.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func TestOnlyLoopback(t *testing.T) {
	s := serve(t, &fake{})
	if at := s.listener.Addr().(*net.TCPAddr); !at.IP.IsLoopback() {
		t.Errorf("the page is at %v", at)
	}
}

// Without a session, everybody gets the page's files, and nothing else is answered.
func TestNoToken(t *testing.T) {
	s := serve(t, &fake{})
	link := s.Link(Reader{})
	_, code, _ := strings.Cut(link, "/#code=")
	for _, token := range []string{"", "guess", code} { // a code is no token
		b := browser(t, token)
		for _, path := range []string{"/api/stream", "/api/members", "/api/reader", "/api/session", "/api/nothing", "/api/"} {
			if status, text := get(t, b, s.url(path)); status != http.StatusUnauthorized || !strings.Contains(text, "run dcol web") {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
		for _, path := range []string{"/api/steer", "/api/log"} {
			if status, text := do(t, b, http.MethodPost, s.url(path), "{}", map[string]string{"Origin": s.url("")}); status != http.StatusUnauthorized {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
	}
	for path, has := range map[string]string{"": "<title>dcol</title>", "/": "<title>dcol</title>", "/app.js": "import", "/nothing": "not found"} {
		if _, text := get(t, browser(t, ""), s.url(path)); !strings.Contains(text, has) {
			t.Errorf("%s: %s", path, text)
		}
	}
}

// A code begins one session. The server sets no cookie, and its log has neither codes nor tokens.
func TestCodeWorksOnce(t *testing.T) {
	var log bytes.Buffer
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(l, &fake{}, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	link := s.Link(Reader{})
	_, code, _ := strings.Cut(link, "/#code=")
	var token string
	t.Run("served", func(t *testing.T) { // the log is read after the server's end
		run(t, s)
		for _, wrong := range []string{s.url("/#code="), s.url("/#code=guess")} {
			if none, status, text := begin(t, wrong); status == http.StatusOK || none != "" || !strings.Contains(text, "run dcol web") {
				t.Errorf("%s: %d %s", wrong, status, text)
			}
		}
		var status int
		if token, status, _ = begin(t, link); status != http.StatusOK || len(token) < 20 {
			t.Fatalf("the code gives %d and the token %q", status, token)
		}
		if none, status, text := begin(t, link); status == http.StatusOK || none != "" || !strings.Contains(text, "used already") {
			t.Errorf("used again, the code gives %d %s", status, text)
		}
		for _, path := range []string{"/", "/api/members"} {
			resp, err := browser(t, token).Get(s.url(path))
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if set := resp.Header.Get("Set-Cookie"); resp.StatusCode != http.StatusOK || set != "" {
				t.Errorf("%s: %d, cookie %q", path, resp.StatusCode, set)
			}
		}
	})
	if text := log.String(); strings.Contains(text, code) || token != "" && strings.Contains(text, token) {
		t.Errorf("the log has secrets: %s", text)
	}
}

func TestOldToken(t *testing.T) {
	g, now := newGuard(), time.Now()
	code := g.code(Reader{Log: true}, now)
	if _, ok := g.open(code, now.Add(codeLife)); ok {
		t.Error("an old code begins a session")
	}
	session, ok := g.open(code, now.Add(codeLife-time.Second))
	if r, _, valid := g.reader(session, now); !ok || !valid || !r.Log {
		t.Fatal("a code begins no session")
	}
	if _, _, valid := g.reader(session, now.Add(codeLife+sessionLife)); valid {
		t.Error("a session does not end")
	}
	for range mostSecrets {
		next, _ := g.open(g.code(Reader{}, now), now)
		if r, _, valid := g.reader(next, now); !valid || r.Log {
			t.Error("a new session is not valid")
		}
	}
	if _, _, valid := g.reader(session, now); valid || len(g.sessions.list) > mostSecrets || len(g.codes.list) > mostSecrets {
		t.Errorf("there are %d sessions and %d codes", len(g.sessions.list), len(g.codes.list))
	}
}

// Only root may read the attribution log. An operator's session gets the page, but the log by none of its paths.
func TestOperatorsGetNoLog(t *testing.T) {
	s := serve(t, &fake{})
	for _, reader := range []Reader{{Log: true}, {}} {
		b := loggedIn(t, s, reader)
		if _, text := get(t, b, s.url("/api/reader")); strings.Contains(text, "true") != reader.Log {
			t.Errorf("%+v is %s", reader, text)
		}
		for _, path := range []string{"/api/log", "/api//log", "/api/x/../log"} {
			code, text := do(t, b, http.MethodPost, s.url(path), "{}", map[string]string{"Origin": s.url("")})
			if got := strings.Contains(text, "198.51.100.9"); got && !reader.Log || path == "/api/log" && got != reader.Log {
				t.Errorf("%+v at %s: %d %s", reader, path, code, text)
			}
		}
		if code, _ := get(t, b, s.url("/api/members")); code != http.StatusOK {
			t.Errorf("%+v sees the members: %d", reader, code)
		}
	}
}

// A page of another site whose name leads to this host (DNS rebinding) gets nothing, even if it has a session.
func TestForeignHost(t *testing.T) {
	s := serve(t, &fake{})
	b := loggedIn(t, s, Reader{Log: true})
	_, port, _ := net.SplitHostPort(s.listener.Addr().String())
	for _, host := range []string{"evil.example", "evil.example:" + port, "127.0.0.1.evil.example:" + port, "192.0.2.1:" + port, "localhost.evil.example", "[2001:db8::1]", "0.0.0.0:" + port} {
		for _, path := range []string{"/", "/api/members"} {
			if code, text := do(t, b, http.MethodGet, s.url(path), "", map[string]string{"Host": host}); code != http.StatusForbidden {
				t.Errorf("%s at %s: %d %.60s", path, host, code, text)
			}
		}
	}
	for _, host := range []string{"localhost:8080", "127.0.0.1:8080", "[::1]:8080", "localhost"} { // forwarded by ssh
		if code, _ := do(t, b, http.MethodGet, s.url("/api/members"), "", map[string]string{"Host": host}); code != http.StatusOK {
			t.Errorf("%s: %d", host, code)
		}
	}
}

// Requests of another site's page are not carried out, even if it has a session (CSRF).
func TestForeignOrigin(t *testing.T) {
	agent := &fake{}
	s := serve(t, agent)
	b := loggedIn(t, s, Reader{Log: true})
	const request = `{"word": "avoid", "waypoints": ["bob"]}`
	for _, headers := range []map[string]string{
		{}, {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "https://" + s.listener.Addr().String()}, {"Origin": "http://127.0.0.1:1"},
		{"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "navigate"},
	} {
		for _, path := range []string{"/api/steer", "/api/session"} {
			if code, text := do(t, b, http.MethodPost, s.url(path), request, headers); code != http.StatusForbidden {
				t.Errorf("%s, %v: %d %s", path, headers, code, text)
			}
		}
	}
	for _, path := range []string{"/api/stream", "/api/members", "/app.js"} {
		if code, _ := do(t, b, http.MethodGet, s.url(path), "", map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}); code != http.StatusForbidden {
			t.Errorf("%s is read by another site: %d", path, code)
		}
	}
	if code, _ := do(t, b, http.MethodGet, s.url("/api/steer"), "", nil); code == http.StatusOK {
		t.Error("a GET steers")
	}
	if len(agent.steered) > 0 {
		t.Errorf("steered: %+v", agent.steered)
	}
	if code, text := do(t, b, http.MethodPost, s.url("/api/steer"), request, map[string]string{"Origin": s.url("")}); code != http.StatusOK || len(agent.steered) != 1 {
		t.Errorf("the page's own request: %d %s", code, text)
	}
}

func TestBadRequests(t *testing.T) {
	s := serve(t, &fake{})
	b := loggedIn(t, s, Reader{Log: true})
	for _, body := range []string{"", "{", "[]", `{"server": "` + strings.Repeat("x", 1<<20) + `"}`, `{"server": "nonsense"}`} {
		code, text := do(t, b, http.MethodPost, s.url("/api/log"), body, map[string]string{"Origin": s.url("")})
		var f api.Failure
		if err := json.Unmarshal([]byte(text), &f); code != http.StatusUnprocessableEntity || err != nil || f.Message == "" {
			t.Errorf("%.30s: %d %s", body, code, text)
		}
	}
}

// stream opens the stream of states.
func stream(t *testing.T, b *http.Client, s *Server) (*bufio.Reader, func()) {
	t.Helper()
	r, stop, code := tryStream(t, b, s)
	if code != http.StatusOK {
		t.Fatalf("the stream gives %d", code)
	}
	return r, stop
}

// tryStream requests the stream of states, and returns the status of the answer.
func tryStream(t *testing.T, b *http.Client, s *Server) (*bufio.Reader, func(), int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url("/api/stream"), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := b.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	stop := func() { cancel(); resp.Body.Close() }
	t.Cleanup(stop)
	return bufio.NewReader(resp.Body), stop, resp.StatusCode
}

func next(t *testing.T, r *bufio.Reader) (m message, size int) {
	t.Helper()
	line, err := r.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m, len(line)
}

// If there are very many connections, the busiest are shown. The agent is asked only while there are readers.
func TestStream(t *testing.T) {
	agent := &fake{connections: mostShown + 50}
	s := serve(t, agent)
	b := loggedIn(t, s, Reader{})
	if n := agent.count(); n != 0 {
		t.Errorf("nobody looks, and the agent was asked %d times", n)
	}
	r, stop := stream(t, b, s)
	m, _ := next(t, r)
	if m.Connections != mostShown+50 || len(m.Status.Client.Connections) != mostShown || m.Status.Client.Connections[0].Token != "0" {
		t.Errorf("%d connections, %d shown", m.Connections, len(m.Status.Client.Connections))
	}
	var all, shown float64
	for _, l := range m.Loads {
		all += l.Receive
	}
	for _, c := range m.Status.Client.Connections {
		for _, f := range c.Subflows {
			shown += f.ReceiveRate
		}
	}
	if all <= shown || len(m.Loads) != 3 || m.Loads[0].Waypoint != "" {
		t.Errorf("all connections carry %.0f bit/s, those that are shown %.0f: %+v", all, shown, m.Loads)
	}
	next(t, r)
	stop()
	waitFor(t, "the stream is closed", func() bool { return !s.hub.watched() })
}

// A browser that does not read delays no other one. Nothing is queued for it, and after a while it is disconnected.
func TestSlowReader(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := newHub(&fake{connections: mostShown})
	h.every, h.share, h.patience = time.Millisecond, 1, 200*time.Millisecond
	s := run(t, newServerOf(l, h, slog.New(slog.DiscardHandler)))
	b := loggedIn(t, s, Reader{})
	slow, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	fmt.Fprintf(slow, "GET /api/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", b.Transport.(*withToken).token)
	waitFor(t, "the slow reader is served", h.watched)
	fast, stop := stream(t, b, s)
	for range 20 {
		next(t, fast)
	}
	stop()
	waitFor(t, "both are given up", func() bool { return !h.watched() })
}

// A stream ends with its session.
func TestStreamEndsWithItsSession(t *testing.T) {
	s := serve(t, &fake{})
	for life := time.Second; ; life *= 2 {
		s.guard.mu.Lock()
		s.guard.sessions.life = life
		s.guard.mu.Unlock()
		b := loggedIn(t, s, Reader{})
		r, _, code := tryStream(t, b, s)
		if _, err := r.ReadBytes('\n'); code == http.StatusUnauthorized || err != nil {
			continue // this machine was slower
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Errorf("the stream ends: %v", err)
		}
		if code, text := get(t, b, s.url("/api/members")); code != http.StatusUnauthorized {
			t.Errorf("after its session's end: %d %s", code, text)
		}
		return
	}
}

func waitFor(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in a minute: %s", what)
		}
	}
}

func TestTooManyStreams(t *testing.T) {
	s := serve(t, &fake{})
	b := loggedIn(t, s, Reader{})
	for range mostStreams {
		r, _ := stream(t, b, s)
		next(t, r)
	}
	if code, text := get(t, b, s.url("/api/stream")); code != http.StatusServiceUnavailable || !strings.Contains(text, "close one") {
		t.Errorf("one too many: %d %s", code, text)
	}
}

// A stranger who holds very many connections takes little memory, and ends no stream of a reader.
func TestStrangersConnections(t *testing.T) {
	s := serve(t, &fake{})
	b := loggedIn(t, s, Reader{})
	r, stop := stream(t, b, s)
	defer stop()
	next(t, r)
	held := make([]net.Conn, 4*mostStrangers)
	for i := range held {
		c, err := net.Dial("tcp", s.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := fmt.Fprintf(c, "GET /api/members HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil && i < mostStrangers {
			t.Fatal(err)
		}
		held[i] = c
	}
	for i, c := range held[:2*mostStrangers] {
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("the connection that a stranger opened as number %d stays open", i)
		}
	}
	next(t, r)
	if code, _ := get(t, b, s.url("/api/members")); code != http.StatusOK {
		t.Errorf("a reader gets %d", code)
	}
}
