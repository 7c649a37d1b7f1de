package e2e

import (
	"fmt"
	"net/netip"
	"testing"
)

// converting are alice and bob, whose converter alice uses, and a web server that speaks no MPTCP.
func converting(t *testing.T, client string) *world {
	w := standard(newWorld(t))
	w.sysctl(server, "net.mptcp.enabled", "0")
	w.configure(bob, waypointConfig("offers = [\"in-band\", \"mapped\", \"converter\"]\n"+labAllowed))
	w.configure(alice, clientConfig("", w.addr4(bob).String())+"[client.converter]\nuse = \"always\"\n"+client)
	return w
}

// relayed returns how many connections bob's converter has accepted and refused.
func (w *world) converted() string {
	w.Helper()
	return w.dcol(bob, "status", "--json")
}

// A program that uses the proxy reaches a server without MPTCP through the converter.
func TestConverterByProxy(t *testing.T) {
	w := converting(t, "proxy = \"127.0.0.1:1080\"\n")
	w.startBoth()
	for _, proxy := range []string{"socks5h://127.0.0.1:1080", "http://127.0.0.1:1080"} {
		_ = proxy
	}
	_ = netip.Addr{}
	fmt.Println(w.run(alice, "sleep", "2"))
	fmt.Println(w.run(alice, "curl", "-sS", "-o", "/dev/null", "-p", "-x", "socks5h://127.0.0.1:1080", w.url()))
	fmt.Println(w.run(alice, "ss", "-Mtnpe"))
	fmt.Println(w.run(bob, "ss", "-Mtnpe"))
	fmt.Println(w.run(bob, "nft", "list", "table", "inet", "dcol"))
	fmt.Println(w.converted())
}
