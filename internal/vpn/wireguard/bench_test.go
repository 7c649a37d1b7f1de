package wireguard

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"
)

// BenchmarkGoodput sends from client to server, beside the tunnel, where router and waypoint just
// forward, and through it.
func BenchmarkGoodput(b *testing.B) {
	b.Run("forwarding", func(b *testing.B) {
		n := newNetwork(b)
		goodput(b, n, client4)
	})
	b.Run("userspace", func(b *testing.B) {
		n := newNetwork(b)
		n.join(b, Config{ForceUserspace: true}, waypoint4)
		goodput(b, n, clientInner[0].String())
	})
}

func goodput(b *testing.B, n network, from string) {
	b.Helper()
	l := n.server.Listen(b, net.JoinHostPort(server4, "0"))
	done := make(chan int64)
	go func() {
		c, err := l.Accept()
		if err != nil {
			done <- 0
			return
		}
		defer c.Close()
		if _, err := c.Write(make([]byte, 64)); err != nil {
			b.Error(err)
		}
		got, _ := io.Copy(io.Discard, c)
		done <- got
	}()
	k := dial(b, n.client, from, netip.MustParseAddrPort(l.Addr().String()))
	chunk := make([]byte, 1<<20)
	b.SetBytes(int64(len(chunk)))
	b.ResetTimer()
	for range b.N {
		if _, err := k.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	_ = k.Close()
	if got := <-done; got != int64(b.N)*int64(len(chunk)) {
		b.Errorf("%d bytes arrived", got)
	}
}

// BenchmarkOpen measures the cost of a tunnel before it carries anything: interface, socket, handshake.
func BenchmarkOpen(b *testing.B) {
	n := newNetwork(b)
	for range b.N {
		client, waypoint := n.join(b, Config{ForceUserspace: true}, waypoint4)
		eventually(b, "a handshake", func() bool { return client.state(b).Alive(time.Now()) })
		for _, e := range []*end{client, waypoint} {
			if err := e.Close(); err != nil {
				b.Fatal(err)
			}
		}
	}
}
