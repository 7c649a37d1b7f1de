package netstate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// Network returns the addresses of uplinks and their routers, whatever else comes and goes on the host.
func TestNetwork(t *testing.T) {
	ns, _ := twoHosts(t)
	var handle *Addresses
	ns.Must(t, func() (err error) { handle, err = OpenAddresses(); return err })
	defer handle.Close()
	ip := func(line string) {
		t.Helper()
		ns.Output(t, "ip", strings.Fields(line)...)
	}
	is := func(what string, want ...string) {
		t.Helper()
		got, err := handle.Network()
		if err != nil {
			t.Fatal(err)
		}
		var list []netip.Addr
		for _, a := range want {
			list = append(list, netip.MustParseAddr(a))
		}
		if !slices.Equal(got, list) {
			t.Errorf("%s: %v, want %v", what, got, list)
		}
	}
	veth := func(name string) {
		t.Helper()
		ip("link add " + name + " type veth peer name " + name + "p")
		ip("link set " + name + "p up")
		ip("link set " + name + " up")
	}

	is("no routes to routers")
	ip("route add 192.0.2.0/24 via 10.1.0.9")
	is("no default route, but one to a router", "10.1.0.1", "10.1.0.9")
	ip("route add default via 10.1.0.2")
	ip("-6 route add default via fe80::99 dev eth0")
	home := []string{"10.1.0.1", "10.1.0.2", "fd01::", "fe80::99"}
	is("at home", home...)

	// These are no uplinks.
	ip("link add docker0 type bridge")
	ip("address add 172.17.0.1/16 dev docker0")
	ip("-6 address add fd17::1/64 dev docker0 nodad")
	ip("link set docker0 up")
	veth("veth0")
	is("a container", home...)
	ip("-6 address add fd01::1234/64 dev eth0 nodad")
	ip("-6 address add fd01::1235/64 dev eth0 nodad preferred_lft 0")
	ip("-6 address add fe80::7/64 dev eth0 nodad")
	ip("address add 10.1.0.7/24 dev eth0") // secondary
	is("more addresses in the same networks", home...)
	veth("vpn0")
	ip("address add 10.9.0.1/24 dev vpn0")
	ip("route add 10.10.0.0/16 via 10.9.0.2")
	ip("route add 224.0.0.0/4 dev vpn0")
	is("a VPN to some networks", home...)
	ip("address add 10.200.0.2/32 dev veth0")
	ip("route add default dev veth0 table 3690987527 protocol 220") // as tunnelRoutes does
	ip("route add unreachable default table 77 metric 9")
	is("a tunnel of ours", home...)

	// These are.
	ip("route add 0.0.0.0/1 via 10.9.0.2")
	ip("route add 128.0.0.0/1 via 10.9.0.2")
	is("a VPN to everywhere", "10.1.0.1", "10.1.0.2", "10.9.0.1", "10.9.0.2", "fd01::", "fe80::99")
	ip("link del vpn0")
	is("without the VPN", home...)
	veth("wwan0")
	ip("address add 10.2.0.1/24 dev wwan0")
	ip("route add default via 10.2.0.2 metric 700")
	is("a second uplink", "10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2", "fd01::", "fe80::99")
	ip("route add default via 10.2.0.2 metric 600")
	ip("route del default via 10.1.0.2")
	ip("route add default via 10.1.0.2 metric 650")
	is("the second is preferred", "10.2.0.1", "10.2.0.2", "10.1.0.1", "10.1.0.2", "fd01::", "fe80::99")
	ip("route del default via 10.2.0.2 metric 600")
	ip("route del default via 10.2.0.2 metric 700")
	ip("route add default via 10.2.0.2 table 77 metric 1")
	is("the second is in another table", "10.1.0.1", "10.1.0.2", "10.2.0.1", "10.2.0.2", "fd01::", "fe80::99")
	ip("link del wwan0")
	ip("route del default via 10.1.0.2")
	ip("route add default via 10.1.0.3")
	is("another router", "10.1.0.1", "10.1.0.3", "fd01::", "fe80::99")
	ip("link set eth0 down")
	is("no network")
}
