package engine

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// Urgent bytes (MSG_OOB) arrive at their place among the others, in both directions, whether the engine reads or splices them. That
// they are urgent is lost.
func TestUrgentBytesArrive(t *testing.T) {
	for _, client := range []bool{false, true} {
		for _, server := range []struct{ speaks, asked bool }{{false, false}, {true, true}, {false, true}} {
			for _, size := range []int{10, 1 << 20} {
				t.Run(fmt.Sprintf("MPTCP: client %v, server %+v, %d bytes", client, server, size), func(t *testing.T) {
					var sent []byte
					for i := range byte(5) {
						sent = append(append(sent, bytes.Repeat([]byte{'a' + i}, size)...), '!')
					}
					urgently := func(c *net.TCPConn) {
						raw, err := c.SyscallConn()
						if err != nil {
							t.Error(err)
							return
						}
						for part := range bytes.SplitAfterSeq(sent, []byte("!")) {
							if len(part) == 0 {
								continue
							}
							_, _ = c.Write(part[:len(part)-1])
							err := raw.Write(func(fd uintptr) bool {
								return unix.Sendto(int(fd), part[len(part)-1:], unix.MSG_OOB, nil) != unix.EAGAIN
							})
							if err != nil {
								t.Error(err)
							}
						}
						_ = c.CloseWrite()
					}
					to := serve(t, server.speaks, func(c *net.TCPConn) {
						if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
							t.Errorf("%d of %d bytes arrive at the server, or others: %v", len(got), len(sent), err)
						}
						urgently(c)
					})
					_, at := start(t, Config{Front: toServer{to, server.asked}}, true)
					c := dial(t, at, client)
					urgently(c)
					if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
						t.Errorf("%d of %d bytes arrive at the client, or others: %v", len(got), len(sent), err)
					}
				})
			}
		}
	}
}
