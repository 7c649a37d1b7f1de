package traffic

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/proxy"
)

// dialLimit limits the time for connecting.
const dialLimit = 10 * time.Second

// ServerPart and ClientPart are the names of the programs of the two ends.
const (
	ServerPart = "traffic-server"
	ClientPart = "traffic-client"
)

// Client is the end that chooses the traffic.
type Client struct {
	Plan Plan
	At   netip.AddrPort // the server
	From netip.Addr     // the socket's own address, unless it is not valid
	// Proxy, unless empty, is the address and port of a SOCKS5 proxy through which to connect.
	Proxy string
}

// Run sends and receives the planned traffic and prints a Report.
func (c *Client) Run(ctx context.Context, _ io.Reader, out io.Writer, _ *slog.Logger) error {
	r, err := c.measure(ctx)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(r)
}

// measure sends and receives the planned traffic.
func (c *Client) measure(ctx context.Context) (Report, error) {
	if err := c.Plan.check(); err != nil {
		return Report{}, err
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("connect to the server: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })()
	if err := conn.SetDeadline(time.Now().Add(c.Plan.end())); err != nil {
		return Report{}, err
	}
	done, err := c.converse(ctx, conn)
	if err != nil {
		return Report{}, fmt.Errorf("%w (at most %v after the last was due)", err, Patience)
	}
	return Report{Size: c.Plan.Size, Interval: c.Plan.Interval, Done: done}, nil
}

// dial connects to the server.
func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: dialLimit, KeepAlive: -1}
	d.SetMultipathTCP(false) // the caller decides, not Go
	if c.From.IsValid() {
		d.LocalAddr = &net.TCPAddr{IP: c.From.AsSlice()}
	}
	if c.Proxy == "" {
		return d.DialContext(ctx, "tcp", c.At.String())
	}
	ctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	socks, err := proxy.SOCKS5("tcp", c.Proxy, nil, &d)
	if err != nil {
		return nil, err
	}
	return socks.(proxy.ContextDialer).DialContext(ctx, "tcp", c.At.String())
}

func (c *Client) converse(ctx context.Context, conn net.Conn) ([]time.Duration, error) {
	if err := c.Plan.write(conn); err != nil {
		return nil, fmt.Errorf("say what is to come: %w", err)
	}
	switch c.Plan.Kind {
	case Requests:
		return ask(ctx, conn, c.Plan)
	case Download:
		return receiveMessages(conn, c.Plan)
	default:
		if err := sendMessages(ctx, conn, c.Plan); err != nil {
			return nil, err
		}
		return readArrivals(conn, c.Plan)
	}
}

// writeArrivals sends the client the arrival times of its messages: microseconds, four bytes each.
func writeArrivals(w io.Writer, done []time.Duration) error {
	us := make([]uint32, len(done))
	for i, d := range done {
		us[i] = uint32(d.Microseconds())
	}
	return binary.Write(w, binary.BigEndian, us)
}

func readArrivals(r io.Reader, p Plan) ([]time.Duration, error) {
	us := make([]uint32, p.Count)
	if err := binary.Read(r, binary.BigEndian, us); err != nil {
		return nil, fmt.Errorf("wait for the server to have all %d messages: %w", p.Count, err)
	}
	done := make([]time.Duration, len(us))
	for i, d := range us {
		done[i] = time.Duration(d) * time.Microsecond
	}
	return done, nil
}
