package relay

import (
	"context"
	"fmt"
	"net"
	"os"
)

// handed is the name of a listening socket that is handed over.
func handed(part, address string) string { return part + " at " + address }

// listen returns the listening socket of a part: one that the relay before has handed over, or a new one, for MPTCP and
// TCP.
func (r *relay) listen(part, address string) (*os.File, error) {
	name := handed(part, address)
	if f := r.inherited[name]; f != nil {
		delete(r.inherited, name)
		return f, nil
	}
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	defer l.Close()
	return l.(*net.TCPListener).File()
}
