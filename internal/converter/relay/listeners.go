package relay

import (
	"context"
	"fmt"
	"net"
	"os"
)

// listen returns the listening socket for an address: one that the relay before has handed over, or a new one, for
// MPTCP and TCP.
func (r *relay) listen(address string) (*os.File, error) {
	if f := r.inherited[address]; f != nil {
		delete(r.inherited, address)
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
