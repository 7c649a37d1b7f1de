package waypoint

import (
	"net/netip"
	"slices"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
	"github.com/detour-collective/dcol/internal/waypoint/egress"
)

// vicinity follows what stands around the host: its addresses and links, as the kernel has them, and how others
// see it, as it is told. Its owner asks for both.
type vicinity struct {
	own    func() ([]netstate.Address, error)
	onLink func() ([]netip.Prefix, error)

	known bool // now has been read
	now   egress.Surroundings
}

// look reads addresses and links, and reports whether they are others than before. If they cannot be read,
// nothing changes.
func (v *vicinity) look() (changed bool, err error) {
	list, err := v.own()
	if err != nil {
		return false, err
	}
	links, err := v.onLink()
	if err != nil {
		return false, err
	}
	own := make([]netip.Addr, len(list))
	for i, a := range list {
		own[i] = a.Addr
	}
	if v.known && slices.Equal(own, v.now.Own) && slices.Equal(links, v.now.OnLink) {
		return false, nil
	}
	v.known, v.now.Own, v.now.OnLink = true, own, links
	return true, nil
}

// hear takes note of how others see the host, and reports whether that has changed.
func (v *vicinity) hear(o egress.Outside) (changed bool) {
	if o.Equal(v.now.Outside) {
		return false
	}
	v.now.Outside = o
	return true
}
