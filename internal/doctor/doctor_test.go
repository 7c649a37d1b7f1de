package doctor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/detour-collective/dcol/internal/kernel/bpf/inband"
	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/mptcpify"
	"github.com/detour-collective/dcol/internal/nat/portmap"
	"github.com/detour-collective/dcol/internal/vpn/openvpn"
	"github.com/detour-collective/dcol/internal/vpn/wireguard"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	// The real run asks mptcpify, which never starts a stage of this binary.
	goleak.VerifyTestMain(m)
}

// healthy is a host without problems: a client and waypoint whose agent does not run.
func healthy() *Env {
	file := func(content string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(content + "\n")} }
	return &Env{
		FS: fstest.MapFS{
			"run/systemd/system/.made":                        file(""),
			"proc/sys/kernel/osrelease":                       file("6.12.1-amd64"),
			"proc/sys/net/mptcp/enabled":                      file("1"),
			"proc/sys/net/mptcp/pm_type":                      file("0"),
			"proc/sys/net/mptcp/allow_join_initial_addr_port": file("1"),
			"proc/sys/net/mptcp/checksum_enabled":             file("1"),
			"proc/sys/net/mptcp/blackhole_timeout":            file("60"),
			"proc/sys/net/ipv4/tcp_congestion_control":        file("cubic"),
			"proc/sys/net/ipv4/tcp_timestamps":                file("1"),
			"proc/sys/net/ipv4/ip_forward":                    file("1"),
			"proc/sys/net/ipv6/conf/all/forwarding":           file("1"),
			"proc/sys/net/ipv4/conf/all/rp_filter":            file("0"),
			"proc/sys/net/ipv4/conf/default/rp_filter":        file("1"),
			"proc/sys/net/ipv4/conf/lo/rp_filter":             file("1"),
			"proc/sys/net/ipv4/conf/eth0/rp_filter":           file("2"),
			"proc/sys/net/netfilter/nf_conntrack_max":         file("1000"),
			"proc/sys/net/netfilter/nf_conntrack_count":       file("10"),
			"proc/sys/net/netfilter/nf_conntrack_acct":        file("0"),
			"proc/self/status":                                file("Name:\tdcol\nCapEff:\t000001ffffffffff"),
			"proc/self/mounts":                                file("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0"),
			"proc/1/comm":                                     file("systemd"),
			"sys/kernel/btf/vmlinux":                          file("BTF"),
			"dev/net/tun":                                     file(""),
		},
		System: System{
			SocketMethods: func() []mptcpify.Method {
				return []mptcpify.Method{
					{Name: "seccomp", For: "any program", Available: true, Why: "tried"},
					{Name: "bpf", For: "all programs", Why: "operation not permitted", Fix: "be root"},
					{Name: "mptcpize", For: "some programs", Why: "not found", Fix: "apt-get install mptcpize"},
					{Name: "program", For: "willing programs", Available: true, Why: "they ask"},
				}
			},
			ForwardDrops:      func() ([]string, error) { return nil, nil },
			MarkUses:          func() ([]netstate.MarkUse, error) { return nil, nil },
			Endpoints:         func() (int, error) { return 0, nil },
			PlainTCP:          func() (bool, error) { return false, nil },
			TryFallback:       func() (bool, error) { return false, nil },
			TryFastOpen:       func() error { return nil },
			ListenUDP:         func(string) error { return nil },
			ClockSynchronised: func() (bool, error) { return true, nil },
			AskRouter: func(context.Context) (netip.Addr, string, error) {
				return netip.MustParseAddr("192.168.1.2"), "PCP", nil
			},
			FindOpenVPN:       func() (string, string, error) { return "/usr/sbin/openvpn", "2.6.14", nil },
			TryInBandSender:   func(string) error { return nil },
			TryInBandReceiver: func() error { return nil },
			TryWireGuard:      func() (string, error) { return "kernel", nil },
			TryTunnelRouting:  func() error { return nil },
		},
		Now:   time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC),
		Built: time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC),
		Config: Config{
			Path: "/etc/dcol/dcol.toml", Client: true, Waypoint: true, Listen: ":45672",
			Kinds: allKinds(), Offers: allKinds(), Authenticator: true, OpenVPNPort: 1194, PortMapping: true, Marks: 0xff0000ff,
		},
		Identity: Identity{NotBefore: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)},
	}
}

func allKinds() []string { return []string{kindWireGuard, kindOpenVPN, kindInBand, "mapped"} }

// set and remove change the root folder of the fake host.
func (e *Env) set(name, content string) {
	e.FS.(fstest.MapFS)[name] = &fstest.MapFile{Data: []byte(content)}
}

func (e *Env) remove(name string) { delete(e.FS.(fstest.MapFS), name) }

// broken is a host with many problems.
func broken() *Env {
	e := healthy()
	e.set("proc/sys/kernel/osrelease", "5.10.0-28-amd64")
	e.remove("proc/sys/net/mptcp/enabled")
	e.remove("proc/sys/net/mptcp/pm_type")
	e.set("proc/sys/net/ipv4/conf/all/rp_filter", "1")
	e.set("proc/sys/net/ipv4/conf/eth0/rp_filter", "1")
	e.set("proc/40/comm", "mptcpd\n")
	e.set("proc/self/status", "CapEff:\t0000000000000000")
	e.System.ForwardDrops = func() ([]string, error) { return []string{"inet firewalld filter_FORWARD"}, nil }
	e.System.PlainTCP = func() (bool, error) { return true, nil }
	e.System.MarkUses = func() ([]netstate.MarkUse, error) {
		return []netstate.MarkUse{{Rule: "ip rule 100 (fwmark 0x80000000/0xff000000)", Mask: 0xff000000, Value: 0x80000000}}, nil
	}
	e.System.ListenUDP = func(string) error { return &os.SyscallError{Syscall: "bind", Err: syscall.EADDRINUSE} }
	e.System.ClockSynchronised = func() (bool, error) { return false, nil }
	e.System.AskRouter = func(context.Context) (netip.Addr, string, error) {
		return netip.MustParseAddr("192.168.1.2"), "", portmap.ErrNoProtocol
	}
	e.System.FindOpenVPN = func() (string, string, error) { return "", "", &openvpn.MissingError{} }
	refused := &inband.UnavailableError{Fix: "give the agent CAP_BPF", Err: syscall.EPERM}
	e.System.TryInBandSender = func(string) error { return refused }
	e.System.TryInBandReceiver = func() error { return refused }
	e.System.TryWireGuard = func() (string, error) {
		return "", &wireguard.UnavailableError{Fix: "modprobe wireguard", Err: syscall.ENODEV}
	}
	e.System.TryTunnelRouting = func() error {
		return fmt.Errorf("%w: there is no tunnel to try it with: %w", errCannotTry, syscall.ENODEV)
	}
	e.Identity.NotAfter = time.Date(2026, 5, 31, 0, 0, 0, 0, time.UTC)
	return e
}

func TestRendering(t *testing.T) {
	for name, env := range map[string]*Env{"healthy": healthy(), "broken": broken()} {
		t.Run(name, func(t *testing.T) {
			report := NewReport(Examine(t.Context(), env, Checks()))
			var text bytes.Buffer
			if err := report.Text(&text); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", text.Bytes())
			data, err := json.MarshalIndent(report, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".json", append(data, '\n'))
			if want := name == "healthy"; report.Healthy() != want {
				t.Errorf("healthy: %v, want %v", report.Healthy(), want)
			}
		})
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v (go test -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

func TestTextCounts(t *testing.T) {
	var text bytes.Buffer
	err := NewReport([]Finding{{Code: "a", Title: "A", Result: warning("fix", "amiss")}}).Text(&text)
	if want := "\n0 failed, 1 warning, 0 ok, 0 skipped\n"; err != nil || !strings.HasSuffix(text.String(), want) {
		t.Errorf("%v; got %q, want it to end with %q", err, text.String(), want)
	}
}

func TestTextReportsWriteErrors(t *testing.T) {
	full := &os.PathError{Op: "write", Path: "stdout", Err: syscall.ENOSPC}
	err := NewReport([]Finding{{Code: "a", Title: "A", Result: ok("fine")}}).Text(writerFunc(func([]byte) (int, error) { return 0, full }))
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("got %v", err)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestExamineGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		release := make(chan struct{})
		checks := []Check{
			{"slow", "Slow", func(context.Context, *Env) Result { time.Sleep(500 * time.Millisecond); return ok("slowly") }},
			{"panics", "Panics", func(context.Context, *Env) Result { panic("no such luck") }},
			{"hangs", "Hangs", func(context.Context, *Env) Result { <-release; return ok("too late") }},
			{"also-slow", "Also slow", func(context.Context, *Env) Result { time.Sleep(900 * time.Millisecond); return info("fast") }},
		}
		start := time.Now()
		got := Examine(ctx, healthy(), checks)
		if took := time.Since(start); took != time.Second {
			t.Errorf("took %v: checks do not run at the same time, or outlive the context", took)
		}
		close(release)
		var states []string
		for _, f := range got {
			states = append(states, f.Code+" "+string(f.State))
			if (f.State == Failed || f.State == Warning) && f.Fix == "" {
				t.Errorf("%s: no fix", f.Code)
			}
		}
		want := []string{"slow ok", "panics failed", "hangs failed", "also-slow info"}
		if diff := cmp.Diff(want, states); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if !strings.Contains(got[1].Detail, "no such luck") {
			t.Errorf("the panic is not told: %q", got[1].Detail)
		}
	})
}

func TestCodesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Checks() {
		if seen[c.Code] || c.Title == "" || c.Run == nil {
			t.Errorf("check %+v: not unique, or incomplete", c)
		}
		seen[c.Code] = true
	}
}

// TestHost examines the machine that runs the tests: whatever its state, each finding is complete.
func TestHost(t *testing.T) {
	env := Host()
	env.Now = time.Now()
	for _, config := range []Config{
		{Path: "/etc/dcol/dcol.toml", Err: fs.ErrNotExist},
		healthy().Config,
	} {
		env.Config = config
		for _, f := range Examine(t.Context(), env, Checks()) {
			t.Logf("%+v", f)
			if f.Detail == "" {
				t.Errorf("%s says nothing", f.Code)
			}
			if (f.State == Failed || f.State == Warning) != (f.Fix != "") && f.State != Info {
				t.Errorf("%s is %s, its fix %q", f.Code, f.State, f.Fix)
			}
			if strings.Contains(f.Detail, "itself failed") {
				t.Errorf("%s: %s", f.Code, f.Detail)
			}
		}
	}
}
