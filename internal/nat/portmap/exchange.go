package portmap

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"
)

// serverPort is the UDP port at which gateways listen, for PCP and NAT-PMP alike (RFC 6887, 19.1).
const serverPort = 5351

const (
	// patience is the wait for the first answer. The wait doubles for each of tries requests. RFC 6886,
	// 3.1 continues for a minute, but a router is only one hop away.
	patience = 250 * time.Millisecond
	tries    = 4
	// maxAnswer is the maximum size of a PCP message (RFC 6887, 7).
	maxAnswer = 1100
)

var errNoAnswer = errors.New("no answer")

// errOther means that a packet is not the expected answer.
var errOther = errors.New("not an answer to the request")

// exchange sends a request to the gateway until read accepts an answer, which it does by returning
// anything but errOther. The socket is connected, so the kernel drops packets from other sources.
func exchange(ctx context.Context, n Network, request []byte, read func([]byte) error) error {
	dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.Own, 0))}
	conn, err := dialer.DialContext(ctx, "udp", netip.AddrPortFrom(n.Gateway, serverPort).String())
	if err != nil {
		return fmt.Errorf("send to the router %v: %w", n.Gateway, err)
	}
	defer conn.Close()
	unhook := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	var buf [maxAnswer]byte
	wait := patience
	for range tries {
		conn.SetDeadline(time.Now().Add(wait))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if _, err := conn.Write(request); err != nil {
			return fmt.Errorf("send to the router %v: %w", n.Gateway, err)
		}
		for {
			got, err := conn.Read(buf[:])
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil { // refused: nothing listens there
				return fmt.Errorf("no answer from the router %v: %w", n.Gateway, err)
			}
			if err := read(buf[:got]); !errors.Is(err, errOther) {
				return err
			}
		}
		wait *= 2
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errNoAnswer
}
