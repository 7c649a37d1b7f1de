package tunnel

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/kernel/netstate"
)

// minMTU is RFC 8200, section 5.
const minMTU = 1280

// innerMTU is the largest packet that goes through a tunnel to a waypoint in one
// piece, given what is left in it of a path's MTU.
func innerMTU(at netip.Addr, left func(path int) int) (int, error) {
	outer, err := netstate.PathMTU(at)
	if err != nil {
		return 0, err
	}
	mtu := left(outer)
	if mtu < minMTU {
		return 0, fmt.Errorf("packets to %v may have %d bytes, which leaves %d in a tunnel, less than IPv6's least of %d", at, outer, mtu, minMTU)
	}
	return mtu, nil
}

// probe has the kernel learn the path's MTU, so that the first large packets are
// not cut: nothing else sends large ones, QUIC's own discovery is off. What the
// kernel learns it forgets after ten minutes. A probe that cannot be sent is no
// matter: then the kernel knows why, or the tunnel's packets will tell.
func probe(ctx context.Context, to netip.AddrPort, rtt time.Duration) {
	_, _ = netstate.ProbePathMTU(ctx, to, min(rtt+probeSlack, time.Second))
}

// probeSlack is for a router that takes its time to answer.
const probeSlack = 50 * time.Millisecond
