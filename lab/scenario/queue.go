package scenario

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/detour-collective/dcol/internal/units"
)

// Queue is the size of a link's drop-tail queue, in bytes or in packets, because routers are specified in either.
// Packets have the link's MTU.
type Queue struct {
	Bytes   units.Size
	Packets int
}

const queueForm = `a size such as "64KiB" or a number of full-size packets such as "100p"`

// Form describes the notation of a Queue.
func (Queue) Form() string { return queueForm }

// UnmarshalText implements encoding.TextUnmarshaler.
func (q *Queue) UnmarshalText(text []byte) error {
	if number, packets := strings.CutSuffix(strings.TrimSpace(string(text)), "p"); packets {
		n, err := strconv.Atoi(strings.TrimSpace(number))
		if err != nil || n < 1 || n > 1e6 {
			return fmt.Errorf("%q is not %s", text, queueForm)
		}
		*q = Queue{Packets: n}
		return nil
	}
	var s units.Size
	if err := s.UnmarshalText(text); err != nil {
		return fmt.Errorf("%q is not %s", text, queueForm)
	}
	*q = Queue{Bytes: s}
	return nil
}

func (q Queue) String() string {
	if q.Packets > 0 {
		return strconv.Itoa(q.Packets) + "p"
	}
	return q.Bytes.String()
}

// MarshalText implements encoding.TextMarshaler.
func (q Queue) MarshalText() ([]byte, error) { return []byte(q.String()), nil }

// In returns the queue's size in bytes on a link with the given MTU.
func (q Queue) In(mtu int) int {
	if q.Packets > 0 {
		return q.Packets * mtu
	}
	return int(q.Bytes)
}
