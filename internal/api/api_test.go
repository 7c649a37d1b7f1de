package api

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	// After an oversized request net/http lets the client read its answer for half a second before it closes the
	// connection.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"))
}

// fake is an Agent whose methods are functions.
type fake struct {
	status   func(context.Context) (Status, error)
	mapped   func(context.Context, MapRequest) (MapAnswer, error)
	given    func(context.Context, SwitchRequest) (Given, error)
	converts func(context.Context, ConvertRequest) (Converting, error)
	steers   func(SteerRequest) (Steering, error)
	why      func(WhyRequest) (Why, error)
	members  Members
	invited  func(InviteRequest) (Invitation, error)
	expelled func(ExpelRequest) (Expulsion, error)
}

func (f fake) Status(ctx context.Context) (Status, error) { return f.status(ctx) }
func (f fake) Map(ctx context.Context, r MapRequest) (MapAnswer, error) {
	return f.mapped(ctx, r)
}
func (f fake) Convert(ctx context.Context, r ConvertRequest) (Converting, error) {
	return f.converts(ctx, r)
}
func (f fake) Spare(context.Context, SpareRequest) (Spared, error) { return Spared{}, nil }
func (f fake) LogLevel(_ context.Context, r LogLevelRequest) (LogLevels, error) {
	return LogLevels(r), nil
}
func (f fake) Reload(_ context.Context, r ReloadRequest) (Reloaded, error) {
	return Reloaded{File: "dcol.toml", Waiting: []SettingChange{{Key: "run_dir"}}, Applied: []SettingChange{}}, nil
}
func (f fake) History(_ context.Context, r HistoryRequest) (History, error) {
	return History{Schema: HistorySchema, Step: r.Step}, nil
}
func (f fake) Web(context.Context, WebRequest) (Web, error) {
	return Web{URL: "http://127.0.0.1/"}, nil
}
func (f fake) Steer(_ context.Context, r SteerRequest) (Steering, error) { return f.steers(r) }
func (f fake) Why(_ context.Context, r WhyRequest) (Why, error)          { return f.why(r) }
func (f fake) SwitchWaypoint(ctx context.Context, r SwitchRequest) (Given, error) {
	return f.given(ctx, r)
}
func (f fake) Transport(context.Context) (Transport, error) { return fullTransport(), nil }

func (f fake) UseCongestion(_ context.Context, r CongestionRequest) (Transport, error) {
	if r.Use != "lia" {
		return Transport{}, errors.New("refused")
	}
	return fullTransport(), nil
}

func (f fake) Members(context.Context) (Members, error)                      { return f.members, nil }
func (f fake) Invite(_ context.Context, r InviteRequest) (Invitation, error) { return f.invited(r) }
func (f fake) Expel(_ context.Context, r ExpelRequest) (Expulsion, error)    { return f.expelled(r) }

// serve answers at a socket of the test until the test ends or stop is called.
func serve(t *testing.T, agent Agent) (socket string, stop func()) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "run", "agent.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := Serve(ctx, l, agent); err != nil {
			t.Errorf("Serve: %v", err)
		}
	}()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return socket, stop
}

// full returns a Status with every field set.
func full() Status {
	at := netip.MustParseAddrPort
	since := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	reason := fullReason()
	return Status{
		Schema: StatusSchema, Member: "alice", Version: "v1", Roles: []string{"client", "waypoint"}, Since: since,
		Problems:   []string{"the clock is wrong"},
		TakenPorts: []TakenPort{{Role: "waypoint", Network: "udp", Port: 45672, Holder: &PortHolder{User: "nobody", Program: "nc", PID: 123}}},
		Client: &Using{
			Connections: []Connection{{
				Token: "0a0b0c0d", Local: at("192.0.2.1:40000"), Remote: at("[2001:db8::5]:443"), Since: since, Traffic: "bulk", Note: "waits", NoteReason: &Reason{Code: "budget", Budget: "total"},
				Tried: []Tried{{Waypoint: "eve", At: since, Verdict: "lost", Why: "tried in place of bob and left", Goodput: 1e6, Instead: "bob", With: 2e6, Before: 3e6}},
				Left:  []Left{{Kind: "in-band", Waypoint: "dave", At: since, Ended: true, Why: "its waypoint said that it was loaded", Reason: reason}},
				Subflows: []Subflow{{
					Kind: "mapped", Waypoint: "bob", State: "backup", Local: at("192.0.2.1:40001"), Remote: at("192.0.2.7:443"), Since: since,
					RTT: 12.5, RTTAge: 0.5, MinRTT: 10, SendRate: 1e6, ReceiveRate: 2e6, BytesSent: 1, BytesReceived: 1 << 60, Segments: 90, Retransmitted: 3, Queued: 14480, CongWindow: 10, Why: "bob carries nothing yet", Reason: &reason,
				}},
			}},
			Plain: []netip.AddrPort{at("192.0.2.1:443")},
			Waypoints: []Waypoint{{
				Name: "bob", Addr: at("192.0.2.7:45672"), State: "down", Since: since, Why: "no answer",
				RTT: 3.5, Loss: 0.01, LossPackets: 60, Mappings: 2, Subflows: 1,
				Kinds: []WaypointKind{{Kind: "in-band", State: "resting", Why: "no answer"}},
			}},
			Direct:     &DirectPath{State: DirectLost, Since: since, Connections: 1},
			Exploring:  Exploring{Tries: 1, MostTries: 2, Bytes: 3, MostBytes: 4, Renews: since},
			Sampling:   &Sampling{Active: 5, Measured: 4},
			Steering:   Steering{Use: []Steered{{Name: "bob", Until: since, Unknown: true}}, Only: true, Avoid: []Steered{{Name: "eve", Until: since}}, Warning: "bob is down"},
			Converting: Converting{Use: "auto", Converters: []Converter{{Name: "bob", Addr: at("192.0.2.7:5124"), RTT: 3.5}}, Refused: []RefusedConverter{{Name: "carol", Why: "full"}}},
			Counters:   Counters{Connections: 1, SubflowsAsked: 2, SubflowsUp: 3, SubflowsRefused: 4, EventsLost: 5, Resyncs: 6, Carried: []Carried{{Kind: "mapped", Waypoint: "bob", Received: 1, Sent: 2}}, Lifetimes: Histogram{Bounds: []float64{1}, Counts: []uint64{1, 2}, Sum: 3}},
		},
		Relay: &Relay{Version: "v1", PID: 7, Parts: []RelayPart{
			{Name: "converter", Listen: ":5124", Problem: "in use", Open: 1, Accepted: 2, Refused: 3, Bytes: 4},
		}},
		Collective: fullCollective(since),
		Coordinator: &Coordinator{
			Listen: ":45672", Bus: ":45673", Members: 3, Records: 2, Expelled: 1, Invitations: 4, Unreachable: []string{"bob"},
			AuthorityUntil: since, Messages: 5, Refused: 6, Floods: 7,
		},
		Serving: &Serving{
			Listen: ":45672", Sessions: 1, Mappings: 2, Granted: 3, Refused: map[string]int{"quota": 4}, Offers: []string{"in-band"},
			InBand:  &InBand{Authenticated: true, Addresses: 1, Accepted: 2, UnknownAddress: 3, BadAuthenticator: 4, Replayed: 5, Malformed: 6},
			Members: []Served{{Member: "dave", Sessions: 1, Mappings: 2, Tunnels: 1, Flows: 3, Bytes: 4}},
			Given: Given{
				Closed: "outside-hours", Until: since, Hours: []string{"22:00-07:00"}, Bandwidth: 1e8,
				Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Deny: []netip.Prefix{netip.MustParsePrefix("2001:db8::/32")}, DenyPorts: []int{25}, BandwidthPerMember: 1e7,
				QuotaBytes: 1e12, UsedBytes: 5e9, Renews: since,
			},
			Outside: &Outside{
				Address: at("192.0.2.1:45672"), Leaves: "reachable", NAT: "NAT", Asked: 2, Answered: 1,
				Own: at("192.168.1.2:1").Addr(), Gateway: at("192.168.1.1:1").Addr(), Router: "PCP",
				Opened:  []OpenedPort{{Protocol: "udp", Port: 45672, External: at("192.0.2.1:45672")}},
				Problem: "another NAT is before it", Fix: "ask the provider",
			},
		},
	}
}

func TestStatus(t *testing.T) {
	want := full()
	socket, _ := serve(t, fake{status: func(context.Context) (Status, error) { return want, nil }})
	got, err := Dial(socket).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{}, netip.Prefix{})); d != "" {
		t.Errorf("(-agent's +client's)\n%s", d)
	}
}

func TestMap(t *testing.T) {
	want := MapRequest{Server: netip.MustParseAddrPort("[2001:db8::5]:443"), Waypoint: "bob"}
	answer := MapAnswer{Address: netip.MustParseAddrPort("192.0.2.7:40001"), LeaseSeconds: 600}
	socket, _ := serve(t, fake{mapped: func(_ context.Context, r MapRequest) (MapAnswer, error) {
		if r != want {
			t.Errorf("the agent was asked %+v, want %+v", r, want)
		}
		return answer, nil
	}})
	if got, err := Dial(socket).Map(t.Context(), want); err != nil || got != answer {
		t.Errorf("got %+v, %v; want %+v", got, err, answer)
	}
}

func TestSwitchWaypoint(t *testing.T) {
	for _, want := range []SwitchRequest{{On: true}, {}, {OffSeconds: 7200}} {
		answer := Given{Closed: "switched-off", Until: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Hours: []string{}}
		socket, _ := serve(t, fake{given: func(_ context.Context, r SwitchRequest) (Given, error) {
			if r != want {
				t.Errorf("the agent was asked %+v, want %+v", r, want)
			}
			return answer, nil
		}})
		got, err := Dial(socket).SwitchWaypoint(t.Context(), want)
		if d := cmp.Diff(answer, got); d != "" || err != nil {
			t.Errorf("%v (-agent's +client's)\n%s", err, d)
		}
	}
}

func TestSteerAndWhy(t *testing.T) {
	want := SteerRequest{Word: SteerUse, Waypoints: []string{"bob"}, Only: true, ForSeconds: 60}
	steering := Steering{Use: []Steered{{Name: "bob"}}, Only: true, Avoid: []Steered{{Name: "eve", Until: time.Unix(1, 0).UTC()}}}
	server := netip.MustParseAddrPort("192.0.2.1:0")
	why := Why{
		Schema: WhySchema, Server: server, Connections: []Connection{}, Closed: []ClosedConnection{},
		Candidates: []Candidate{{Waypoint: "bob", Taken: true, Wait: 20, Guessed: true, Why: "it is near"}},
	}
	socket, _ := serve(t, fake{
		steers: func(r SteerRequest) (Steering, error) {
			if d := cmp.Diff(want, r); d != "" {
				t.Errorf("(-asked +was asked)\n%s", d)
			}
			return steering, nil
		},
		why: func(r WhyRequest) (Why, error) {
			if r.Server != server {
				t.Errorf("asked about %v", r.Server)
			}
			return why, nil
		},
	})
	if got, err := Dial(socket).Steer(t.Context(), want); cmp.Diff(steering, got) != "" || err != nil {
		t.Errorf("%v\n%s", err, cmp.Diff(steering, got))
	}
	got, err := Dial(socket).Why(t.Context(), WhyRequest{Server: server})
	if d := cmp.Diff(why, got, cmpopts.EquateComparable(netip.AddrPort{}, netip.Addr{})); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
}

func TestLogLevel(t *testing.T) {
	socket, _ := serve(t, fake{})
	want := LogLevels{All: "warn", Subsystems: map[string]string{"session": "debug"}}
	got, err := Dial(socket).LogLevel(t.Context(), LogLevelRequest(want))
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%v\n%s", err, d)
	}
}

// The user sees the agent's reason for a failed request.
func TestRefusalIsTold(t *testing.T) {
	const why = "bob refuses: \"10.0.0.1\" is private\n<ask its operator>"
	socket, _ := serve(t, fake{
		status: func(context.Context) (Status, error) { return Status{Schema: StatusSchema}, errors.New(why) },
		mapped: func(context.Context, MapRequest) (MapAnswer, error) { return MapAnswer{}, errors.New(why) },
	})
	if _, err := Dial(socket).Status(t.Context()); err == nil || err.Error() != why {
		t.Errorf("Status: %v", err)
	}
	if _, err := Dial(socket).Map(t.Context(), MapRequest{}); err == nil || err.Error() != why {
		t.Errorf("Map: %v", err)
	}
}

func TestOtherSchema(t *testing.T) {
	for _, schema := range []string{"dcol.status/2", ""} {
		socket, _ := serve(t, fake{status: func(context.Context) (Status, error) { return Status{Schema: schema}, nil }})
		_, err := Dial(socket).Status(t.Context())
		if err == nil || !strings.Contains(err.Error(), "restart the agent") {
			t.Errorf("schema %q: %v", schema, err)
		}
	}
}

func TestNoAgent(t *testing.T) {
	folder := t.TempDir()
	left := filepath.Join(folder, "left.sock")
	leaveSocket(t, left)
	for _, socket := range []string{filepath.Join(folder, "none.sock"), filepath.Join(folder, "none", "agent.sock"), left} {
		_, err := Dial(socket).Status(t.Context())
		want := "no agent is running at " + socket
		if err == nil || !strings.HasPrefix(err.Error(), want) || !errors.Is(err, ErrNoAgent) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// A request that an ending agent does not answer is repeated, and then finds no agent, or the next one. Only requests that
// would do something else the second time are not repeated.
func TestAgentEnds(t *testing.T) {
	accept := func(l *net.UnixListener) net.Conn {
		c, err := l.Accept()
		if err == nil {
			_, err = http.ReadRequest(bufio.NewReader(c))
		}
		if err != nil {
			t.Error(err)
		}
		return c
	}
	for name, end := range map[string]func(*net.UnixListener){
		"before it accepts": func(l *net.UnixListener) {
			awaitConnection(t, l)
			l.Close()
		},
		"before it answers": func(l *net.UnixListener) { c := accept(l); l.Close(); c.Close() },
		"while it answers": func(l *net.UnixListener) {
			c := accept(l)
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
			l.Close()
			c.Close()
		},
	} {
		for asks, ask := range map[string]func(*Client) error{
			"status":  func(c *Client) error { _, err := c.Status(t.Context()); return err },
			"convert": func(c *Client) error { _, err := c.Convert(t.Context(), ConvertRequest{}); return err },
			"expel":   func(c *Client) error { _, err := c.Expel(t.Context(), ExpelRequest{Member: "eve"}); return err },
		} {
			l := listen(t, filepath.Join(t.TempDir(), "agent.sock"))
			ended := make(chan struct{})
			go func() { defer close(ended); end(l) }()
			err := ask(Dial(l.Addr().String()))
			<-ended
			switch repeats := asks != "expel"; {
			case repeats && !errors.Is(err, ErrNoAgent):
				t.Errorf("%s, %s: %v, want %v", asks, name, err, ErrNoAgent)
			case !repeats && (errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), "dcol members shows whether eve is still a member")):
				t.Errorf("%s, %s: %v", asks, name, err)
			}
		}
	}

	l := listen(t, filepath.Join(t.TempDir(), "agent.sock"))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		for range 2 { // connections that the kernel closes before the socket
			accept(l).Close()
		}
		ended <- Serve(ctx, l, fake{converts: func(context.Context, ConvertRequest) (Converting, error) { return Converting{Use: "auto"}, nil }})
	}()
	if now, err := Dial(l.Addr().String()).Convert(t.Context(), ConvertRequest{Use: "auto"}); err != nil || now.Use != "auto" {
		t.Errorf("the next agent: %+v, %v", now, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// awaitConnection returns when a connection waits to be accepted.
func awaitConnection(t *testing.T, l *net.UnixListener) {
	t.Helper()
	raw, err := l.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			for n := 0; n == 0; { // signals interrupt Poll
				n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 1000)
				n = max(n, 0)
			}
		})
	}
	if err != nil {
		t.Error(err)
	}
}

// listen listens at a socket that stays when the listener is closed, as after a crash.
func listen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	t.Cleanup(func() { l.Close() })
	return l
}

// leaveSocket creates a socket at which nobody listens.
func leaveSocket(t *testing.T, path string) {
	t.Helper()
	if err := listen(t, path).Close(); err != nil {
		t.Fatal(err)
	}
}

// If the client cancels a request, the agent's work on it ends.
func TestClientGivesUp(t *testing.T) {
	asked, given := make(chan struct{}), make(chan error, 1)
	socket, _ := serve(t, fake{mapped: func(ctx context.Context, _ MapRequest) (MapAnswer, error) {
		close(asked)
		<-ctx.Done()
		given <- ctx.Err()
		return MapAnswer{}, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	if _, err := Dial(socket).Map(ctx, MapRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("Map: %v", err)
	}
	if err := <-given; !errors.Is(err, context.Canceled) {
		t.Errorf("the agent's context: %v", err)
	}
}

// An agent that stops ends open requests and removes its socket.
func TestAgentStops(t *testing.T) {
	asked, given := make(chan struct{}), make(chan struct{})
	socket, stop := serve(t, fake{status: func(ctx context.Context) (Status, error) {
		close(asked)
		<-ctx.Done()
		close(given)
		return Status{}, ctx.Err()
	}})
	go func() { <-asked; stop() }()
	if s, err := Dial(socket).Status(t.Context()); err == nil {
		t.Errorf("an answer of an agent that stopped: %+v", s)
	}
	<-given
	if _, err := Dial(socket).Status(t.Context()); err == nil || !strings.Contains(err.Error(), "no agent is running") {
		t.Errorf("afterwards: %v", err)
	}
}
