package netstate_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/kernel/netstate/netnstest"
)

// Who has a port is found for both protocols and families, and nobody where it is free.
func TestPortHolders(t *testing.T) {
	ns := netnstest.New(t)
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"127.0.0.1:45672", "[::1]:45673"} {
		for _, network := range []string{"udp", "tcp"} {
			t.Run(filepath.Join(network, address), func(t *testing.T) {
				addr, err := net.ResolveTCPAddr("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				holders := func() (list []netstate.PortHolder) {
					ns.Must(t, func() (err error) { list, err = netstate.PortHolders(network, addr.Port); return err })
					return list
				}
				if got := holders(); len(got) > 0 {
					t.Errorf("the port is free, and %+v has it", got)
				}
				ns.Must(t, func() error {
					if network == "udp" {
						c, err := net.ListenPacket(network, address)
						t.Cleanup(func() { c.Close() })
						return err
					}
					l, err := net.Listen(network, address)
					t.Cleanup(func() { l.Close() })
					return err
				})
				want := netstate.PortHolder{User: "root", PID: os.Getpid(), Program: string(name[:len(name)-1])}
				if got := holders(); len(got) != 1 || got[0] != want {
					t.Errorf("got %+v, want %+v", got, want)
				}
			})
		}
	}
}
