package client

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"github.com/detour-collective/dcol/internal/converter/choice"
	"github.com/detour-collective/dcol/internal/converter/engine/enginetest"
	"github.com/detour-collective/dcol/internal/kernel/mptcp"
)

// If SYNs are lost, Linux repeats them without MPTCP, and the connection is plain TCP. That does not make the server count
// as one without MPTCP, whoever connects to it: this host, or a converter.
func TestLostSYNsShowNothing(t *testing.T) {
	needsNamespace(t)
	setMPTCP(t, "blackhole_timeout", "0")               // else the kernel offers no MPTCP any more
	setMPTCP(t, "syn_retrans_before_tcp_fallback", "0") // else the converter would take too long
	to := enginetest.Serve(t, server4, true, enginetest.Echo)
	loseOffers(t, to)
	conv, convAt := startConverter(t)
	staysUnknown(t, to, convAt)
	if n := conv.Counters().Accepted; n != 1 {
		t.Fatalf("%d connections through the converter", n)
	}
	// Once SYNs arrive, the converter tries MPTCP again.
	losesNothing(t)
	client := member(t, choice.Always, convAt)
	enginetest.Exchange(t, startAsked(t, client).dial(t, to), 1000)
	if len(client.Choose(choice.Who{}, to)) > 0 {
		t.Error("the converter has not found out that the server speaks MPTCP")
	}
}

// After an outage, Linux offers MPTCP to no server for a while, although no SYN is lost any more. Such connections do not
// make a server count as plain either.
func TestOutageShowsNothing(t *testing.T) {
	needsNamespace(t)
	setMPTCP(t, "blackhole_timeout", "3600")
	setMPTCP(t, "syn_retrans_before_tcp_fallback", "0")
	to := enginetest.Serve(t, server4, true, enginetest.Echo)
	loseOffers(t, to)
	enginetest.Exchange(t, enginetest.Dial(t, to, true), 1000)
	losesNothing(t)
	if plain, err := mptcp.PlainTCP(); err != nil || !plain {
		t.Fatalf("the kernel offers no MPTCP: %v, %v", plain, err)
	}
	conv, convAt := startConverter(t)
	staysUnknown(t, to, convAt)
	if conv.Counters().Accepted == 0 {
		t.Error("no connection through the converter")
	}
}

// staysUnknown connects to a server, first from this host and then through a converter, and fails the test if the server
// counts as plain afterwards.
func staysUnknown(t *testing.T, server, converter netip.AddrPort) {
	t.Helper()
	for mode, converters := range map[choice.Mode][]netip.AddrPort{choice.Auto: nil, choice.Always: {converter}} {
		client := member(t, mode, converters...)
		enginetest.Exchange(t, startAsked(t, client).dial(t, server), 1000)
		if client.IsPlain(server) {
			t.Errorf("in mode %v, the server counts as plain", mode)
		}
	}
}

// loseOffers makes the kernel drop SYNs to a server that offer MPTCP.
func loseOffers(t *testing.T, to netip.AddrPort) {
	t.Helper()
	nft(t, fmt.Sprintf(`table inet lost {
		chain in { type filter hook input priority 0; ip daddr %s tcp dport %d tcp flags syn tcp option mptcp exists drop
		}
	}`, to.Addr(), to.Port()), "lost")
}

// losesNothing ends loseOffers.
func losesNothing(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("nft", "delete", "table", "inet", "lost").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// setMPTCP sets a sysctl of MPTCP until the test ends.
func setMPTCP(t *testing.T, name, value string) {
	t.Helper()
	file := "/proc/sys/net/mptcp/" + name
	before, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		t.Skipf("this kernel has no net.mptcp.%s", name)
	}
	if err == nil {
		err = os.WriteFile(file, []byte(value), 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.WriteFile(file, before, 0) })
}
