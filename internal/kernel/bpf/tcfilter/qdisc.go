package tcfilter

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// qdiscs records the existing interfaces, and which of them have a qdisc for filters: either "clsact" or "ingress".
type qdiscs struct {
	links []netlink.Link
	kinds map[int]string
}

func readQdiscs(handle *netlink.Handle) (*qdiscs, error) {
	state := &qdiscs{kinds: map[int]string{}}
	err := whole(func() (err error) {
		state.links, err = handle.LinkList()
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the interfaces: %w", err)
	}
	var all []netlink.Qdisc
	err = whole(func() (err error) {
		all, err = handle.QdiscList(nil)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the qdiscs: %w", err)
	}
	for _, q := range all {
		if kind := q.Type(); kind == "clsact" || kind == "ingress" {
			state.kinds[q.Attrs().LinkIndex] = kind
		}
	}
	return state, nil
}

// whole repeats list while its result may be incomplete because something changed in the meantime.
func whole(list func() error) (err error) {
	for range 10 {
		if err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			return err
		}
	}
	return err
}

func clsact(index int) netlink.Qdisc {
	return &netlink.GenericQdisc{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index,
			Handle:    netlink.MakeHandle(0xffff, 0),
			Parent:    netlink.HANDLE_CLSACT,
		},
		QdiscType: "clsact",
	}
}
