package finder

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/detour-collective/dcol/internal/paths"
)

// network has width routers at each distance from 2 to its depth, then the destination. The next hops of a router are
// all routers at the next distance.
type network struct {
	width, depth, sent int
	reply              paths.Reply // fields of all replies
}

func (n *network) Sent() int { return n.sent }

func (n *network) Probe(_ context.Context, requests []paths.Request) (replies []paths.Reply, err error) {
	for _, r := range requests {
		n.sent++
		reply := n.reply
		at := byte(0)
		if r.Distance > 1 && r.Distance <= n.depth {
			at = byte(1 + rand.New(rand.NewPCG(uint64(r.Flow), uint64(r.Distance))).IntN(n.width))
		}
		reply.From = netip.AddrFrom4([4]byte{10, 0, byte(r.Distance), at})
		reply.Last = r.Distance > n.depth
		replies = append(replies, reply)
	}
	return replies, nil
}

// TestSearch finds flows on distinct paths.
func TestSearch(t *testing.T) {
	n := &network{width: 3, depth: 2}
	found, err := search(t.Context(), n, 2, 6)
	if err != nil || len(found) != 2 || len(found[0]) < 6 || len(found[1]) < 6 || n.sent >= mostProbes {
		t.Errorf("%v with %d probes, %v", found, n.sent, err)
	}
}

// TestSearchWithoutEnoughProbes: if the probes are used up, the paths found so far are returned.
func TestSearchWithoutEnoughProbes(t *testing.T) {
	n := &network{width: 60, depth: 4}
	found, err := search(t.Context(), n, 4, 1)
	if err != nil || len(found) < 2 {
		t.Errorf("%d paths, %v", len(found), err)
	}
	if _, err := paths.Explore(t.Context(), &network{width: 60, depth: 4}, paths.Options{Ways: 4, MaxProbes: mostProbes}); !errors.Is(err, paths.ErrProbes) {
		t.Errorf("the probes suffice: %v", err)
	}
}

// TestSearchBehindNAT: ports are useless if a NAT changes them. A NAT that changes only addresses does no harm.
func TestSearchBehindNAT(t *testing.T) {
	n := &network{width: 3, depth: 2, reply: paths.Reply{Translated: true}}
	if found, err := search(t.Context(), n, 2, 1); err != nil || len(found) != 2 {
		t.Errorf("behind a NAT that leaves ports as they are: %v, %v", found, err)
	}
	n.reply.Renumbered = true
	if found, err := search(t.Context(), n, 2, 1); !errors.Is(err, ErrRenumbered) || found != nil {
		t.Errorf("behind a NAT that changes ports: %v, %v", found, err)
	}
}
