package client

import (
	"bytes"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/detour"
	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/policy"
	"github.com/detour-collective/dcol/internal/tunnel"
)

// toldClient is a client without a kernel, and what it logs.
func toldClient(vias ...detour.Via) (*Client, *bytes.Buffer) {
	var told bytes.Buffer
	log := slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{Level: slog.LevelDebug}))
	c := &Client{
		tunnels: emptyTunnels(log), inbox: newInbox(1), log: log,
		manager: path.New(path.Config{Policy: policy.Detours{Subflows: 2}}), book: detour.New(policy.Kinds()),
		roster: newRoster(&config.Config{}),
	}
	for _, v := range vias {
		c.roster.sessions[v] = &waypointSession{}
	}
	return c, &told
}

// A tunnel is looked at each time a session changes. The log tells only what is new.
func TestTunnelIsLoggedWhenItChanges(t *testing.T) {
	bob := detour.Via{Waypoint: "bob", Addr: netip.MustParseAddr("192.0.2.7")}
	c, told := toldClient(bob)
	up := tunnel.Standing{Via: bob, Kind: path.WireGuard, Tunnels: []detour.Tunnel{{Kind: path.WireGuard, Local: netip.MustParseAddr("10.99.0.2")}}}
	down := tunnel.Standing{Via: bob, Kind: path.WireGuard, Why: "no answer"}
	for i, step := range []struct {
		standing tunnel.Standing
		lines    int
	}{{up, 1}, {up, 1}, {up, 1}, {down, 2}, {down, 2}, {up, 3}} {
		c.tunnelChanged(t.Context(), step.standing)
		(<-c.inbox.calls)(time.Now())
		if n := strings.Count(told.String(), "msg=tunnel"); n != step.lines {
			t.Fatalf("after step %d the log has %d lines, want %d:\n%s", i, n, step.lines, told)
		}
	}
}

// What is logged about a waypoint says what was seen and what to do, and claims no more.
func TestBlameIsTold(t *testing.T) {
	c, told := toldClient()
	c.logBlame(path.Blame{Waypoint: "bob", Kind: path.InBand, Err: io.ErrNoProgress, Fix: "ask its operator", Until: time.Now()})
	for _, want := range []string{"not used for a while", "waypoint=bob", "kind=in-band", "server=all", io.ErrNoProgress.Error(), "ask its operator"} {
		if !strings.Contains(told.String(), want) {
			t.Errorf("%q is missing: %s", want, told)
		}
	}
	if strings.Contains(told.String(), "harm") {
		t.Errorf("a silent path is taken for harm: %s", told)
	}
}
