package transport

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/kernel/bpf/cc"
	"github.com/detour-collective/dcol/internal/kernel/bpf/cgrouptest"
	"github.com/detour-collective/dcol/internal/kernel/bpf/option"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
	"github.com/detour-collective/dcol/internal/ratelimit"
	"github.com/detour-collective/dcol/internal/tcpopt"
	"github.com/detour-collective/dcol/internal/units"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// lacking reports whether a problem is the want of a cgroup, or of a newer kernel for dcol's own congestion controls.
func lacking(t *testing.T, problem string) bool {
	t.Helper()
	return strings.Contains(problem, "needs Linux 6.4") && netnstest.KernelBefore(t, 6, 4) || strings.Contains(problem, "cgroup2")
}

func TestNothingConfigured(t *testing.T) {
	tr, err := Open(&config.Config{}, quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	s, err := tr.Status()
	if err != nil || len(s.Congestion) != 0 || s.Default == "" || len(s.Available) == 0 || tr.Problems() != nil {
		t.Errorf("%+v, %v, problems %q", s, err, tr.Problems())
	}
}

func TestTables(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		tr, err := Open(&config.Config{Congestion: []config.Congestion{
			{Use: "olia", Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}},
			{Use: "reno", Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}},
			{Use: "olia", Ports: []int{443}},
		}}, quiet)
		if err != nil {
			return err
		}
		defer tr.Close()
		if p := tr.Problems(); p != nil {
			if lacking(t, p[0]) {
				t.Skip(p)
			}
			return errors.New(p[0])
		}
		for _, address := range []string{"127.0.0.2", "127.0.0.1"} {
			if err := connect(address); err != nil {
				return err
			}
		}
		s, err := tr.Status()
		if err != nil {
			return err
		}
		// Each end of a connection is one of this namespace. The client of 127.0.0.2 comes from 127.0.0.1.
		olia, reno := s.Congestion[0], s.Congestion[1]
		if olia.Set != 1 || reno.Set != 3 || s.Congestion[2].Set != 0 {
			t.Errorf("counted %+v", s.Congestion)
		}
		if !strings.HasPrefix(olia.Name, "olia") || s.Congestion[2].Name != olia.Name || reno.Name != "reno" {
			t.Errorf("names %+v", s.Congestion)
		}
		return nil
	})
}

func connect(address string) error {
	l, err := net.Listen("tcp", address+":0")
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		return err
	}
	return s.Close()
}

// A table whose cgroup does not exist is a problem and leaves the others in force. It applies when the cgroup appears, also
// beside requests at run time.
func TestCgroupThatAppears(t *testing.T) {
	cgroup := filepath.Join(cgrouptest.New(t), "service")
	netnstest.New(t).Must(t, func() error {
		tr, err := Open(&config.Config{Congestion: []config.Congestion{{Use: "cubic", Cgroup: cgroup}, {Use: "reno"}}}, quiet)
		if err != nil {
			return err
		}
		defer tr.Close()
		named := func() bool {
			p := tr.Problems()
			return len(p) == 1 && strings.Contains(p[0], cgroup)
		}
		if !named() {
			t.Errorf("problems %q", tr.Problems())
		}
		if err := connect("127.0.0.1"); err != nil {
			return err
		}
		s, err := tr.Status()
		if err != nil {
			return err
		}
		if len(s.Congestion) != 2 || s.Congestion[1].Set != 2 || !strings.Contains(s.Problem, cgroup) {
			t.Errorf("status %+v", s)
		}
		if _, err := tr.Use(api.CongestionRequest{Use: "reno", Ports: []int{1}}); err != nil || !named() {
			t.Errorf("after a request: %v, problems %q", err, tr.Problems())
		}
		if err := os.Mkdir(cgroup, 0o755); err != nil {
			return err
		}
		defer os.Remove(cgroup)
		for deadline := time.Now().Add(30 * time.Second); tr.Problems() != nil; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				return fmt.Errorf("with the cgroup: problems %q", tr.Problems())
			}
		}
		if s, err = tr.Status(); err != nil || s.Problem != "" {
			t.Errorf("with the cgroup: %v, status %+v", err, s)
		}
		return nil
	})
}

// Two agents, of which one asks and one grants.
func TestOptions(t *testing.T) {
	client, server := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: client, Name: "v", Addresses: []string{"192.0.2.1/24"}},
		netnstest.End{NS: server, Name: "v", Addresses: []string{"192.0.2.2/24"}})
	asking := openIn(t, client, config.Options{Ask: config.AskOptions{
		UserTimeout: units.Duration(time.Second), Congestion: "reno", InitialWindow: 25, AckDelay: 100, AckSegments: 8,
	}})
	granting := openIn(t, server, config.Options{Accept: config.AcceptOptions{
		UserTimeoutMin: units.Duration(10 * time.Second), UserTimeoutMax: units.Duration(time.Minute), Congestion: []string{"reno", "olia"},
		InitialWindow: 20, Trusted: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, AckDelay: true,
	}})
	var l net.Listener
	server.Must(t, func() (err error) { l, err = net.Listen("tcp", "192.0.2.2:0"); return err })
	defer l.Close()
	var c net.Conn
	client.Must(t, func() (err error) { c, err = net.Dial("tcp", l.Addr().String()); return err })
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	go func() {
		_, _ = s.Write(make([]byte, 4<<20))
		s.Close()
	}()
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"user-timeout": "1s capped 10s", "congestion": "reno granted reno", "initial-window": "25 segments capped 20 segments",
	}
	await(t, granting, func(o *api.Options) bool { return len(o.Recent) == 4 })
	got, err := granting.Status()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range got.Options.Recent {
		if w, ok := want[r.Option]; ok && strings.Join([]string{r.Asked, r.Verdict, r.Granted}, " ") != w {
			t.Errorf("%+v, want %s", r, w)
		}
		if r.Option == "delayed-ack" && (r.Asked != "100% of the round trip, 8 segments" || r.Verdict != "capped") {
			t.Errorf("%+v", r)
		}
		if r.At.IsZero() || r.Local.String() != l.Addr().String() || r.Remote.String() != c.LocalAddr().String() {
			t.Errorf("%+v", r)
		}
	}
	if !slices.Contains(got.Options.Counts, api.OptionCount{Option: "congestion", Verdict: "granted", Count: 1}) || got.Options.Calls == 0 {
		t.Errorf("%+v", got.Options)
	}
	await(t, asking, func(o *api.Options) bool { return len(o.Recent) == 4 })
}

// A network whose firewall drops announcements is named.
func TestUnannounced(t *testing.T) {
	client, server := netnstest.New(t), netnstest.New(t)
	netnstest.Veth(t, netnstest.End{NS: client, Name: "v", Addresses: []string{"192.0.2.1/24"}},
		netnstest.End{NS: server, Name: "v", Addresses: []string{"192.0.2.2/24"}})
	server.Output(t, "nft", "add table inet t; add chain inet t c { type filter hook input priority 0; }; add rule inet t c tcp option 254 exists drop")
	tr := openIn(t, client, config.Options{Ask: config.AskOptions{Congestion: "reno"}})
	l := server.Listen(t, "192.0.2.2:0")
	c, err := client.Dial(t.Context(), netip.MustParseAddrPort(l.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := tr.Status()
	if err != nil {
		t.Fatal(err)
	}
	o := s.Options
	if len(o.Unannounced) != 1 || o.Unannounced[0].Network.String() != "192.0.2.0/24" || !o.Unannounced[0].Until.After(time.Now()) || !o.UnannouncedInternet.IsZero() {
		t.Errorf("nothing is announced to %+v, to the Internet until %v", o.Unannounced, o.UnannouncedInternet)
	}
}

func openIn(t *testing.T, ns *netnstest.NS, o config.Options) (tr *Transport) {
	t.Helper()
	ns.Must(t, func() (err error) {
		tr, err = Open(&config.Config{Options: o}, quiet)
		return err
	})
	t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, p := range tr.Problems() {
		if lacking(t, p) {
			t.Skip(p)
		}
		t.Error(p)
	}
	return tr
}

func await(t *testing.T, tr *Transport, done func(*api.Options) bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		s, err := tr.Status()
		if err != nil {
			t.Fatal(err)
		}
		if done(s.Options) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("now %+v", s.Options)
		}
	}
}

// A congestion control that the kernel has not does not keep the others from being granted.
func TestOptionsWithoutACongestionControl(t *testing.T) {
	netnstest.New(t).Must(t, func() error {
		tr, err := Open(&config.Config{Options: config.Options{Accept: config.AcceptOptions{Congestion: []string{"illinois", "reno"}}}}, quiet)
		if err != nil {
			return err
		}
		defer tr.Close()
		if tr.options == nil {
			t.Skip(tr.Problems())
		}
		if cc.Available("illinois") != nil && (len(tr.Problems()) != 1 || !strings.Contains(tr.Problems()[0], "illinois is granted to no peer")) {
			t.Errorf("problems %q", tr.Problems())
		}
		return nil
	})
}

// Reports are kept and logged within limits, and all are counted.
func TestManyReports(t *testing.T) {
	var logged strings.Builder
	x := &exchange{
		log: slog.New(slog.NewTextHandler(&logged, nil)), counts: make(map[api.OptionCount]uint64), limits: ratelimit.New(logBurst, logInterval),
	}
	const n = 10 * recentMax
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for range n {
		x.note(option.Report{Request: tcpopt.Request{Option: tcpopt.Congestion, Value: 99}, Verdict: tcpopt.Unknown}, at)
	}
	if len(x.recent) > recentMax || len(x.recent) < recentMax/2 {
		t.Errorf("%d reports are kept", len(x.recent))
	}
	if lines := strings.Count(logged.String(), "\n"); lines != logBurst {
		t.Errorf("%d lines are logged", lines)
	}
	if got := x.counts[api.OptionCount{Option: "congestion", Verdict: "unknown"}]; got != n {
		t.Errorf("%d are counted", got)
	}
	if x.recent[0].Asked != "number 99" || x.recent[0].Granted != "" || x.recent[0].Why == "" {
		t.Errorf("%+v", x.recent[0])
	}
}
