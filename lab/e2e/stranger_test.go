package e2e

import (
	"fmt"
	"net"
	"net/netip"
)

// occupy has another program listen on a UDP port of a host.
func (w *world) occupy(host string, port int) (conn *net.UDPConn) {
	w.Helper()
	err := w.host(host).Do(func() (err error) {
		conn, err = net.ListenUDP("udp", &net.UDPAddr{Port: port})
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { conn.Close() })
	return conn
}

func port(addr netip.Addr, n int) string { return net.JoinHostPort(addr.String(), fmt.Sprint(n)) }
