package netstate

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// consistent asks for a list again while it changes under our hands: the kernel says of such a list
// that it may be incomplete (NLM_F_DUMP_INTR), which any other program's new interface or address can
// cause.
func consistent[T any](list func() ([]T, error)) ([]T, error) {
	for range 10 {
		got, err := list()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return got, err
		}
	}
	return nil, errors.New("it changes too often to be read")
}
