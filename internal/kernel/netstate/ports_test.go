package netstate

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

func TestParsePorts(t *testing.T) {
	for list, want := range map[string]Ports{
		"":               nil,
		"8080":           {{8080, 8080}},
		"8080,9000-9010": {{8080, 8080}, {9000, 9010}},
		"1-65535":        {{1, 65535}},
	} {
		if got, err := parsePorts(list); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%q: %v, %v, want %v", list, got, err, want)
		}
	}
	for _, list := range []string{"x", "80,", "1-", "-1", "9-8", "65536", "1-2-3"} {
		if got, err := parsePorts(list); err == nil {
			t.Errorf("%q: %v", list, got)
		}
	}
}

func TestPortsOfTheKernel(t *testing.T) {
	ns := netnstest.New(t)
	ns.Output(t, "sysctl", "-qw", "net.ipv4.ip_local_port_range=30000 31000", "net.ipv4.ip_local_reserved_ports=30010,30020-30029", "net.ipv4.ip_unprivileged_port_start=443")
	ns.Must(t, func() error {
		if got, err := LocalPorts(); err != nil || got != (PortRange{30000, 31000}) {
			t.Errorf("local ports %v, %v", got, err)
		}
		if got, err := FirstPort(); err != nil || got != 1 {
			t.Errorf("root listens from port %d on, %v", got, err)
		}
		reserved, err := ReservedPorts()
		for port, want := range map[uint16]bool{30009: false, 30010: true, 30011: false, 30020: true, 30029: true, 30030: false} {
			if reserved.Has(port) != want {
				t.Errorf("%d is reserved: %v, want %v", port, !want, want)
			}
		}
		return err
	})
	ns.Must(t, func() error {
		if err := netnstest.LimitRights(); err != nil {
			return err
		}
		if got, err := FirstPort(); err != nil || got != 443 {
			t.Errorf("without rights, the first port is %d, %v", got, err)
		}
		return nil
	})
}
