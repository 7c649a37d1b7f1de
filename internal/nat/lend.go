package nat

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Lend returns a Prober for a socket that will later be used for something else. After end has
// returned, nothing reads from the socket.
func Lend(socket *net.UDPConn, log *slog.Logger) (p *Prober, end func()) {
	p = NewProber(lent{socket}, nowhere{}, log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			log.Debug("a borrowed socket", "err", err)
		}
	}()
	return p, func() {
		cancel()
		socket.SetReadDeadline(time.Unix(1, 0)) // ends the read
		<-ended
		socket.SetReadDeadline(time.Time{})
	}
}

// lent is a socket used by the Prober only.
type lent struct{ socket *net.UDPConn }

// ReadOther returns when end sets the socket's deadline.
func (l lent) ReadOther(_ context.Context, b []byte) (int, netip.AddrPort, error) {
	n, from, err := l.socket.ReadFromUDPAddrPort(b)
	return n, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), err
}

func (l lent) WriteOther(b []byte, to netip.AddrPort) error {
	_, err := l.socket.WriteToUDPAddrPort(b, to)
	return err
}

// nowhere is a Sender without a port, for a Prober that gets no requests for answers from another port.
type nowhere struct{}

func (nowhere) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) { return len(b), nil }
