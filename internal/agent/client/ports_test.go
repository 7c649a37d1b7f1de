package client

import (
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Local ports that the operator keeps for programs of his own are not used for subflows.
func TestReservedPortsAreNotPicked(t *testing.T) {
	ns := netnstest.New(t)
	ns.Output(t, "sysctl", "-qw", "net.ipv4.ip_local_port_range=30000 30009", "net.ipv4.ip_local_reserved_ports=30000-30004,30006-30009")
	var ports portPicker
	ns.Must(t, func() (err error) { ports, err = newPortPicker(); return err })
	for range 100 {
		if port := ports.pick(); port != 30005 {
			t.Fatalf("picked %d", port)
		}
	}
}
