package strangers

import (
	"context"
	"fmt"
	"net"
	"sync"
)

// Each serves each connection of a listener in a goroutine of its own, and closes it then. When ctx ends, it closes the
// listener, waits for the goroutines and returns nil. serve must end with ctx.
func Each(ctx context.Context, l net.Listener, serve func(net.Conn)) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("wait for clients: %w", err)
		}
		clients.Go(func() {
			defer conn.Close()
			serve(conn)
		})
	}
}
