package netstate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Relax prepares a TCP entry for packets that conntrack does not see. It makes conntrack accept later packets whatever
// their sequence numbers, as the kernel's own flow tables do. timeout is the entry's lifetime from now without a
// packet; 0 leaves it unchanged. If there is no such entry, the error is fs.ErrNotExist.
func (c *Conntrack) Relax(origin Tuple, timeout time.Duration) error {
	if _, err := c.conn.Execute(relaxRequest(origin, timeout)); err != nil {
		return fmt.Errorf("relax the conntrack entry of %v to %v: %w", origin.Src, origin.Dst, err)
	}
	return nil
}

// Flow returns a TCP entry. ok is false if there is none.
func (c *Conntrack) Flow(origin Tuple) (f Flow, ok bool, err error) {
	request, err := c.conn.Send(entryRequest(ctMsgGet, netlink.Request, origin))
	var answer netlink.Message
	if err == nil {
		answer, err = c.readAnswer(request.Header.Sequence)
	}
	if errors.Is(err, unix.ENOENT) {
		return Flow{}, false, nil
	}
	if err != nil {
		return Flow{}, false, fmt.Errorf("read the conntrack entry of %v to %v: %w", origin.Src, origin.Dst, err)
	}
	f, ok = decodeFlow(answer.Data)
	return f, ok, nil
}

// readAnswer reads the kernel's answer, which has already arrived. The netlink package would wait
// for more, because the kernel marks an entry as one of several parts but sends no other.
func (c *Conntrack) readAnswer(sequence uint32) (m netlink.Message, err error) {
	raw, err := c.conn.SyscallConn()
	if err != nil {
		return m, err
	}
	var n int
	var readErr error
	b := make([]byte, 4096) // an entry takes a few hundred bytes
	err = raw.Control(func(fd uintptr) {
		for {
			n, _, readErr = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
			if !errors.Is(readErr, unix.EINTR) {
				return
			}
		}
	})
	if err := errors.Join(err, readErr); err != nil {
		return m, err
	}
	if err := m.UnmarshalBinary(b[:n]); err != nil {
		return m, err
	}
	if m.Header.Sequence != sequence {
		return m, errors.New("the kernel answers another question")
	}
	if m.Header.Type == netlink.Error {
		if len(m.Data) < 4 {
			return m, errors.New("the kernel's error is cut off")
		}
		return m, unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	}
	return m, nil
}
