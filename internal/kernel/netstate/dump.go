package netstate

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// restless is how long a list may keep changing. It takes a millisecond or so to read.
const restless = 2 * time.Second

// consistent asks for a list again while it changes under our hands: the kernel says of such a list
// that it may be incomplete (NLM_F_DUMP_INTR), which any other program's new interface or address can
// cause.
func consistent[T any](list func() ([]T, error)) ([]T, error) {
	for began := time.Now(); ; {
		got, err := list()
		switch {
		case !errors.Is(err, netlink.ErrDumpInterrupted):
			return got, err
		case time.Since(began) > restless:
			return nil, fmt.Errorf("it has changed too often for %v to be read", restless)
		}
	}
}
