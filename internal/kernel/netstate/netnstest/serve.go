package netnstest

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
)

// Serve accepts the connections of a TCP listener and handles each in a goroutine, until the test ends. Then it closes
// the connections, because the other ends of some may have vanished without closing theirs.
func Serve(t testing.TB, l net.Listener, handle func(*net.TCPConn)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				handle(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() { cancel(); l.Close(); serving.Wait() })
}

// Echo sends back what it receives.
func Echo(c *net.TCPConn) { _, _ = io.Copy(c, c) }
