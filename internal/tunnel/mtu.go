package tunnel

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// minMTU is IPv6's minimum MTU (RFC 8200, section 5).
const minMTU = 1280

// innerMTU returns the largest packet that fits through a tunnel to a waypoint without
// fragmentation. left returns the part of a path's MTU that is left in the tunnel.
func innerMTU(at netip.Addr, left func(path int) int) (int, error) {
	outer, err := netstate.PathMTU(at)
	if err != nil {
		return 0, err
	}
	mtu := left(outer)
	if mtu < minMTU {
		return 0, fmt.Errorf("the path to %v has an MTU of %d, which leaves %d in a tunnel; IPv6 needs at least %d", at, outer, mtu, minMTU)
	}
	return mtu, nil
}

// probe makes the kernel learn the path's MTU before the first large packets are sent. Nothing else
// would: QUIC's own discovery is off. The kernel forgets the MTU after ten minutes. A probe that
// cannot be sent needs no error: either the kernel already knows why, or the tunnel's packets will
// show it.
func probe(ctx context.Context, to netip.AddrPort, rtt time.Duration) {
	_, _ = netstate.ProbePathMTU(ctx, to, min(rtt+probeSlack, time.Second))
}

// probeSlack allows for routers that answer slowly.
const probeSlack = 50 * time.Millisecond
