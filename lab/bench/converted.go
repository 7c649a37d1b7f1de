package bench

import (
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/detour-collective/dcol/internal/converter/cookie"
	"github.com/detour-collective/dcol/internal/converter/rfc8803"
)

// benchKey seals the cookies of the benchmark's clients.
var benchKey = cookie.Key{1}

// benchMark is the mark of the connections that a converter opens to servers. No rule matches it.
const benchMark = 1

// converted is a connection to a converter. It behaves like dcol's client towards a converter that has just worked: it
// sends the Convert message together with the first bytes that are written, and reads the converter's answer before the
// server's bytes.
type converted struct {
	*net.TCPConn
	message  []byte // not sent yet
	answered bool
}

// convertTo asks the converter at the other end of a connection for a server.
func convertTo(conn *net.TCPConn, t Target) (*converted, error) {
	client := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr()
	message, err := rfc8803.Message{
		Connect: &rfc8803.Connect{Server: t.Server},
		Cookie:  benchKey.Seal(cookie.Claim{Mark: benchMark, Client: client, Expires: time.Now().Add(time.Hour)}),
	}.Append(nil)
	c := &converted{TCPConn: conn, message: message}
	if err != nil || !t.Waits {
		return c, err
	}
	if _, err = c.Write(nil); err == nil {
		err = c.readAnswer()
	}
	return c, err
}

// Write sends the message, if it was not sent yet, and then b.
func (c *converted) Write(b []byte) (int, error) {
	first := len(c.message)
	if first > 0 {
		b = slices.Concat(c.message, b)
		c.message = nil
	}
	n, err := c.TCPConn.Write(b)
	return max(n-first, 0), err
}

// Read reads the server's bytes.
func (c *converted) Read(b []byte) (int, error) {
	if !c.answered {
		if err := c.readAnswer(); err != nil {
			return 0, err
		}
	}
	return c.TCPConn.Read(b)
}

func (c *converted) readAnswer() error {
	c.answered = true
	b := make([]byte, rfc8803.MaxLen)
	if _, err := io.ReadFull(c.TCPConn, b[:rfc8803.HeaderLen]); err != nil {
		return fmt.Errorf("read the converter's answer: %w", err)
	}
	n, err := rfc8803.Len(b)
	if err != nil {
		return err
	}
	if _, err := io.ReadFull(c.TCPConn, b[rfc8803.HeaderLen:n]); err != nil {
		return fmt.Errorf("read the converter's answer: %w", err)
	}
	m, _, err := rfc8803.Decode(b[:n])
	if err == nil && m.Error != nil {
		err = m.Error
	}
	return err
}
