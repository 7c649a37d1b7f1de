package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/probe"
)

// trace traces the path to an address.
func (r *run) trace(ctx context.Context, addr netip.Addr) (_ *trace.Path, _ *packet.Packet, err error) {
	conn, err := r.Open(addr)
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	random := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	built, err := r.Probe.Build(probe.Env{Source: conn.Source(), Destination: addr, Random: random})
	if err != nil {
		return nil, nil, err
	}
	path, err := trace.Run(ctx, conn, built.Packet, trace.Options{
		MaxHops: r.MaxHops, FixedID: built.FixedID, Before: func(ctx context.Context) error { return r.limiter.Wait(ctx) },
	})
	return path, built.Packet, err
}

// The contact that probes carry.
const (
	leastContact, mostContact = 10, 200
)

// ParseProbe parses a probe and adds a payload that names who sends it and why, as in "path measurement, see
// https://example.org/probes". The contact must be an address at which people answer: a URL or a mail address.
func ParseProbe(text, contact string) (probe.Probe, error) {
	if len(contact) < leastContact || len(contact) > mostContact {
		return nil, fmt.Errorf("the contact must have %d to %d characters, such as \"path measurement, questions to noc@example.org\"", leastContact, mostContact)
	}
	reachable := false
	for i := range len(contact) {
		c := contact[i]
		if c < ' ' || c > '~' {
			return nil, errors.New("the contact must be of printable ASCII characters")
		}
		reachable = reachable || c == '@' || i > 0 && contact[i-1] == ':' && c == '/'
	}
	if !reachable {
		return nil, fmt.Errorf("the contact %q has no mail address and no URL", contact)
	}
	parsed, err := probe.Parse(text)
	if err != nil {
		return nil, err
	}
	return append(parsed, probe.Raw([]byte(contact))...), nil
}
