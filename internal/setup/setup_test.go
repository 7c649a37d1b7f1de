package setup

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/collective"
	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/coordinator"
	"github.com/detour-collective/dcol/internal/enrol"
)

func newHost(t *testing.T) Host {
	dir := t.TempDir()
	return Host{Config: filepath.Join(dir, "etc/dcol.toml"), State: filepath.Join(dir, "state"), Log: slog.New(slog.DiscardHandler)}
}

var friends = Founding{Collective: "friends", Name: "hub", Addresses: []string{"192.0.2.7"}}

func found(t *testing.T) Host {
	t.Helper()
	h := newHost(t)
	m, err := h.Found(friends)
	if err != nil {
		t.Fatal(err)
	}
	if m.Collective != "friends" || m.Name != "hub" || !m.Coordinates() {
		t.Fatalf("it is %+v", m)
	}
	return h
}

func TestFound(t *testing.T) {
	h := found(t)
	c, err := config.Load(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	if !c.Has(config.RoleWaypoint) || !c.Has(config.RoleClient) || !slices.Equal(c.Collective.Coordinators, []string{"hub@127.0.0.1:45672"}) || c.StateDir != h.State {
		t.Errorf("the configuration is %+v", c)
	}
	if info, err := os.Stat(c.Identity.Key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
	if _, err := os.Stat(filepath.Join(h.RootDir(), "ca.key")); err != nil {
		t.Error(err)
	}
	if _, err := coordinator.Open(coordinator.Config{Dir: h.coordinatorDir(), Identity: h.load(t), Log: h.Log}); err != nil {
		t.Error("the coordinator cannot use it:", err)
	}
}

func (h Host) load(t *testing.T) *collective.Identity {
	t.Helper()
	id, err := collective.Load(h.identity(), h.Log)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Whatever a crash has left, the same command completes it: with the same key, the same subnet and one collective.
func TestFoundAfterCrash(t *testing.T) {
	for _, lost := range [][]string{
		{"etc"}, {"etc", "state/identity/member.crt"}, {"etc", "state/identity/member.crt", "state/identity/ca.crl"}, {"etc", "state/coordinator"},
	} {
		h := found(t)
		before := h.load(t).Self()
		for _, name := range lost {
			if err := os.RemoveAll(filepath.Join(filepath.Dir(h.State), name)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := h.Found(friends); err != nil {
			t.Errorf("without %v: %v", lost, err)
			continue
		}
		after := h.load(t).Self()
		if after.Key != before.Key || after.Subnet != before.Subnet && !slices.Contains(lost, "state/coordinator") {
			t.Errorf("without %v: it was %+v, and is %+v", lost, before, after)
		}
	}
}

func TestFoundRefuses(t *testing.T) {
	h := found(t)
	for _, f := range []Founding{
		{Collective: "enemies", Name: "hub", Addresses: friends.Addresses},
		{Collective: "friends", Name: "pub", Addresses: friends.Addresses},
	} {
		if _, err := h.Found(f); !errors.Is(err, collective.ErrExists) || !strings.Contains(err.Error(), "the collective friends") {
			t.Errorf("%+v: %v", f, err)
		}
	}
	for _, f := range []Founding{
		{Name: "hub", Addresses: friends.Addresses}, {Collective: "x", Addresses: friends.Addresses},
		{Collective: "x", Name: "Hub", Addresses: friends.Addresses}, {Collective: "x", Name: "hub"},
		{Collective: "x", Name: "hub", Addresses: []string{"a b"}},
	} {
		h := newHost(t)
		if _, err := h.Found(f); err == nil {
			t.Errorf("%+v is no error", f)
		}
		if _, err := os.Stat(h.State); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%+v: something was written: %v", f, err)
		}
	}
}

// An address at which other hosts cannot reach this one is refused, because it would be in every invitation.
func TestFoundRefusesAddresses(t *testing.T) {
	for _, a := range []string{
		"300.1.1.1", "127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "::ffff:192.0.2.7", "localhost", "Hub.Localhost.", "0.0.0.0", "::",
		"255.255.255.255", "240.0.0.1", "224.0.0.1", "ff02::1", "169.254.1.1", "fe80::1", "fe80::1%eth0", "192.0.2.7:45672", "",
	} {
		h := newHost(t)
		if _, err := h.Found(Founding{Collective: "friends", Name: "hub", Addresses: []string{a}}); err == nil || !strings.HasPrefix(err.Error(), "--address "+a+": ") {
			t.Errorf("%q: %v", a, err)
		}
	}
	for _, a := range []string{"192.0.2.7", "10.0.0.7", "2001:db8::7", "fd00::7", "hub.example", "localhost.example"} {
		if err := checkReachable(a); err != nil {
			t.Errorf("%q: %v", a, err)
		}
	}
}

// Configurations that did not come from here are not replaced.
func TestMemberInFiles(t *testing.T) {
	h := newHost(t)
	if m, err := h.Member(); m != nil || err != nil {
		t.Fatalf("%+v, %v", m, err)
	}
	for text, want := range map[string]string{
		"name = \"alice\"\nroles = [\"client\"]\n[identity]\ncertificate = \"c\"\nkey = \"k\"\nca = \"a\"\n": "without a coordinator",
		"nonsense": "a configuration already exists",
		"name = \"alice\"\nroles = [\"client\"]\n[identity]\ncertificate = \"c\"\nkey = \"k\"\nca = \"a\"\ncrl = \"l\"\n[collective]\ncoordinators = [\"hub@192.0.2.1:45672\"]\n": "its identity cannot be used",
	} {
		if err := os.MkdirAll(filepath.Dir(h.Config), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(h.Config, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if m, err := h.Member(); m != nil || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v", text, m, err)
		}
	}
}

// coordinate runs the coordinator of a collective that was founded here.
func coordinate(t *testing.T, h Host, clock func() time.Time) *coordinator.Coordinator {
	t.Helper()
	c, err := coordinator.Open(coordinator.Config{
		Dir: h.coordinatorDir(), Identity: h.load(t), Listen: "127.0.0.1:0", BusListen: "127.0.0.1:0", Addresses: []string{"127.0.0.1"}, Clock: clock, Log: h.Log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		c.Close()
	})
	for c.Status().Listening == "" {
		time.Sleep(10 * time.Millisecond)
	}
	return c
}

func TestJoin(t *testing.T) {
	c := coordinate(t, found(t), nil)
	line, err := c.Invite(coordinator.InviteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	j := Joining{Line: line, Name: "bob", ClientOnly: true}
	m, err := h.Join(t.Context(), j)
	if err != nil {
		t.Fatal(err)
	}
	if m.Collective != "friends" || m.Name != "bob" || !slices.Equal(m.Roles, []config.Role{config.RoleClient}) || m.Coordinates() {
		t.Errorf("it is %+v", m)
	}
	before := h.load(t).Self()

	// The command crashed before it wrote the configuration, or the coordinator's answer was lost.
	for _, lost := range []string{"etc", "state/identity/member.crt"} {
		if err := errors.Join(os.RemoveAll(filepath.Dir(h.Config)), os.RemoveAll(filepath.Join(filepath.Dir(h.State), lost))); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Join(t.Context(), j); err != nil {
			t.Fatalf("again, without %s: %v", lost, err)
		}
		if after := h.load(t).Self(); after.Key != before.Key || after.Subnet != before.Subnet {
			t.Errorf("it was %+v, and is %+v", before, after)
		}
	}

	// If its files are damaged, the error says what to do, and the host keeps its identity.
	if err := os.Truncate(filepath.Join(h.State, "identity", "member.crt"), 10); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Member(); err == nil || !strings.Contains(err.Error(), "join again with a new invitation") {
		t.Errorf("with a damaged certificate: %v", err)
	}
	next, err := c.Invite(coordinator.InviteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(h.Config); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Join(t.Context(), Joining{Line: next, Name: "bob", ClientOnly: true}); err != nil {
		t.Fatal(err)
	}
	if after := h.load(t).Self(); after.Key != before.Key || after.Subnet != before.Subnet {
		t.Errorf("it was %+v, and is %+v", before, after)
	}

	// Another host uses the same invitation, and one host uses it twice at the same time.
	other := newHost(t)
	if _, err := other.Join(t.Context(), Joining{Line: line, Name: "eve"}); !errors.Is(err, enrol.TokenUsed) {
		t.Errorf("a line that was used: %v", err)
	}
	unlock, err := other.lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := other.Join(t.Context(), Joining{Line: line, Name: "eve"}); err == nil || !strings.Contains(err.Error(), "is already running") {
		t.Errorf("two at once: %v", err)
	}
}

// A host that leaves tells the coordinator, whose list of members it is gone from. Without a coordinator it says so.
func TestTellLeaving(t *testing.T) {
	c := coordinate(t, found(t), nil)
	line, err := c.Invite(coordinator.InviteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	h := newHost(t)
	if _, err := h.Join(t.Context(), Joining{Line: line, Name: "bob", ClientOnly: true}); err != nil {
		t.Fatal(err)
	}
	member := func() bool {
		return slices.ContainsFunc(c.Members(), func(m coordinator.Member) bool { return m.Name == "bob" })
	}
	if !member() {
		t.Fatal("bob is no member")
	}
	settings, err := config.Load(h.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := TellLeaving(t.Context(), settings, slog.New(slog.DiscardHandler)); err != nil || member() {
		t.Errorf("%v, still a member: %v", err, member())
	}
	settings.Collective.Coordinators = []string{"hub@127.0.0.1:1"}
	if err := os.RemoveAll(settings.CollectiveDir()); err != nil {
		t.Fatal(err)
	}
	if err := TellLeaving(t.Context(), settings, slog.New(slog.DiscardHandler)); !errors.Is(err, enrol.ErrUnreachable) {
		t.Errorf("without a coordinator: %v", err)
	}
}

func TestJoinWithAWrongClock(t *testing.T) {
	h := found(t)
	for _, off := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		t.Run(off.String(), func(t *testing.T) {
			c := coordinate(t, h, func() time.Time { return time.Now().Add(off) })
			line, err := c.Invite(coordinator.InviteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = newHost(t).Join(t.Context(), Joining{Line: line, Name: "bob"})
			if !errors.Is(err, enrol.ClockWrong) || !strings.Contains(err.Error(), "24h0m0s") || !strings.Contains(err.Error(), "set the clock right") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestMemberName(t *testing.T) {
	for hostname, want := range map[string]string{
		"alice": "alice", "Alice.example.org": "alice", "my_host": "my-host", "-x-": "x", "localhost": "", "ca": "", "": "", "…": "", strings.Repeat("a", 70): strings.Repeat("a", 63),
	} {
		if got := MemberName(hostname); got != want {
			t.Errorf("%q: %q, want %q", hostname, got, want)
		}
	}
}
