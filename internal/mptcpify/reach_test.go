package mptcpify

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// TestFastOpenInPlace: the first connection of a program with blocking sockets asks for a cookie, and the next one has
// its message in the SYN. If the cookie is outdated, or such SYNs do not arrive, the connection is made again without
// data in the SYN. It is always MPTCP.
func TestFastOpenInPlace(t *testing.T) {
	needProgram(t, "nft")
	newSite(t)
	set := func(t *testing.T, key, value string) {
		t.Helper()
		if text, err := exec.Command("sysctl", "-qw", "net.ipv4."+key+"="+value).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	set(t, "tcp_fastopen", "3")
	r := startRelay(t, modeFast)
	for _, addr := range []string{serverAddr6, serverAddr} {
		server := plainServer(t, net.JoinHostPort(addr, "0"))
		converter := converterAddr
		if server.Addr().Is6() {
			converter = converterAddr6
		}
		at := netip.AddrPortFrom(netip.MustParseAddr(converter), rfc8803.Port)
		for i, c := range []struct {
			spoil func()
			want  []string // what the relay is told
		}{
			{nil, []string{"carried %[1]s %[2]s true"}},
			{nil, []string{"fast open %[2]s 1", "carried %[1]s %[2]s false"}},
			{func() { set(t, "tcp_fastopen_key", "11111111-22222222-33333333-44444444") }, []string{"fast open %[2]s 3", "carried %[1]s %[2]s true"}},
			{nil, []string{"fast open %[2]s 1", "carried %[1]s %[2]s false"}},
			{func() {
				rules := "add table inet t; add chain inet t in { type filter hook input priority 0; }; add rule inet t in tcp flags & (syn|ack) == syn meta length > 104 drop"
				if text, err := exec.Command("nft", rules).CombinedOutput(); err != nil {
					t.Fatalf("%v: %s", err, text)
				}
			}, []string{"fast open %[2]s 3", "carried %[1]s %[2]s true"}},
		} {
			if i == 2 && addr == serverAddr6 {
				break // what follows is the same for both families
			}
			if c.spoil != nil {
				c.spoil()
			}
			before := len(r.lines())
			wantProbe(t, python(t, r, blockingScript, hostPort(server)...), wantTalk(server))
			var got []string
			last := fmt.Sprintf(c.want[len(c.want)-1], server, at)
			eventually(t, last, func() bool {
				got = r.lines()[before:]
				return slices.Contains(got, last)
			})
			for _, line := range c.want {
				if line = fmt.Sprintf(line, server, at); !slices.Contains(got, line) {
					t.Errorf("connection %d: %q, want %q", i, got, line)
				}
			}
			if !slices.ContainsFunc(got, func(l string) bool { return strings.HasPrefix(l, fmt.Sprintf("converted %v true true", server)) }) {
				t.Errorf("connection %d: not MPTCP: %q", i, got)
			}
		}
	}
}

// If neither a SYN with the message nor the following ones without it are answered, the path is reported, and the
// program is connected to its server in time.
func TestFastOpenUnanswered(t *testing.T) {
	needProgram(t, "nft")
	newSite(t)
	if text, err := exec.Command("sysctl", "-qw", "net.ipv4.tcp_fastopen=3").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	r := startRelay(t, modeFast)
	server := plainServer(t, net.JoinHostPort(serverAddr, "0"))
	wantProbe(t, python(t, r, blockingScript, hostPort(server)...), wantTalk(server)) // asks for a cookie
	rules := fmt.Sprintf("add table inet t; add set inet t ended { type inet_service; flags dynamic; size 100; }; add chain inet t in { type filter hook input priority 0; }; "+
		"add rule inet t in tcp dport %[1]d tcp flags & (syn|ack) == syn meta length > 104 add @ended { tcp sport }; add rule inet t in tcp dport %[1]d tcp sport @ended drop", rfc8803.Port)
	if text, err := exec.Command("nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	before := len(r.lines())
	wantProbe(t, python(t, r, blockingScript, hostPort(server)...), wantTalk(server))
	want := fmt.Sprintf("fast open %v 2", netip.AddrPortFrom(netip.MustParseAddr(converterAddr), rfc8803.Port))
	if got := r.lines()[before:]; !slices.Contains(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
