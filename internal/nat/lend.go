package nat

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"time"
)

// Lend makes a Prober of a socket that is to be used for something else later: when end has returned,
// nothing reads from it any more.
func Lend(socket *net.UDPConn, log *slog.Logger) (p *Prober, end func()) {
	p = NewProber(lent{socket}, nowhere{}, log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			log.Debug("a socket that was lent", "err", err)
		}
	}()
	return p, func() {
		cancel()
		socket.SetReadDeadline(time.Unix(1, 0)) // ends the reading
		<-ended
		socket.SetReadDeadline(time.Time{})
	}
}

// lent is a socket whose packets are all ours.
type lent struct{ socket *net.UDPConn }

// ReadOther ends when end says so, with the socket's deadline.
func (l lent) ReadOther(_ context.Context, b []byte) (int, netip.AddrPort, error) {
	n, from, err := l.socket.ReadFromUDPAddrPort(b)
	return n, netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), err
}

func (l lent) WriteOther(b []byte, to netip.AddrPort) error {
	_, err := l.socket.WriteToUDPAddrPort(b, to)
	return err
}

// nowhere is the other port of who has none: nobody asks who knocks for answers from there.
type nowhere struct{}

func (nowhere) WriteToUDPAddrPort(b []byte, _ netip.AddrPort) (int, error) { return len(b), nil }
