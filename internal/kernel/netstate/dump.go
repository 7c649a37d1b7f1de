package netstate

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
)

// restless is the longest time for which a list is read again because it changed while it was read. Reading takes about
// a millisecond.
const restless = 2 * time.Second

// consistent repeats list while its result may be incomplete because the list changed during the
// dump (NLM_F_DUMP_INTR). Any other program's new interface or address can cause this.
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
