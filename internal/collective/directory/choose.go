package directory

import (
	"bytes"
	"crypto/sha256"
	"iter"
	"slices"
)

// DefaultWaypoints is the default number of waypoints with which a client has sessions.
const DefaultWaypoints = 4

// Client describes the client for which waypoints are chosen.
type Client struct {
	Name   string
	Region string   // empty: no preference
	Kinds  []string // of detours that it can use; empty: all
	Want   int      // number of waypoints
	// First lists waypoints to choose before all others. Never lists waypoints not to choose.
	First, Never []string
	// Converter is the kind that at least one of the waypoints should offer. It may be empty.
	Converter string
}

// Choose returns the waypoints with which a client should have sessions: first the waypoints in c.First, then those in
// current, in their order, then the best others. So the choice is stable while waypoints live. It leaves out the client
// itself and members in unreachable. If no chosen waypoint offers c.Converter, the best one that offers it is added.
func Choose(c Client, members iter.Seq[*Verified], current []string, unreachable map[string]bool) []*Verified {
	current = slices.Concat(c.First, slices.DeleteFunc(slices.Clone(current), func(name string) bool {
		return slices.Contains(c.First, name)
	}))
	kept := make([]*Verified, len(current))
	var others []ranked
	for v := range members {
		if !c.canUse(&v.Record) || unreachable[v.Record.Name] {
			continue
		}
		if i := slices.Index(current, v.Record.Name); i >= 0 {
			kept[i] = v
		} else {
			others = append(others, ranked{v, c.rank(&v.Record)})
		}
	}
	chosen := slices.DeleteFunc(kept, func(v *Verified) bool { return v == nil })
	slices.SortFunc(others, func(a, b ranked) int { return a.compare(b.rank) })
	for _, o := range others {
		chosen = append(chosen, o.Verified)
	}
	first := chosen[:min(max(c.Want, 0), len(chosen))]
	if c.Converter == "" || slices.ContainsFunc(first, c.converts) {
		return first
	}
	if i := slices.IndexFunc(chosen, c.converts); i >= 0 {
		return append(slices.Clone(first), chosen[i])
	}
	return first
}

func (c Client) converts(v *Verified) bool { return slices.Contains(v.Record.Kinds, c.Converter) }

func (c Client) canUse(r *Record) bool {
	return r.Name != c.Name && r.IsWaypoint() && !slices.Contains(c.Never, r.Name) &&
		(len(c.Kinds) == 0 || slices.ContainsFunc(r.Kinds, func(k string) bool { return slices.Contains(c.Kinds, k) }))
}

// rank orders waypoints for a client, the best first. The region is the only part of a record that counts: if the
// stated capacity counted, a waypoint could attract most clients by overstating it.
type rank struct {
	elsewhere bool
	hash      [sha256.Size]byte // of both names: it spreads clients evenly (rendezvous hashing)
}

type ranked struct {
	*Verified
	rank
}

func (c Client) rank(r *Record) rank {
	return rank{
		elsewhere: c.Region != "" && r.Region != c.Region,
		hash:      sha256.Sum256([]byte("dcol waypoint\n" + c.Name + "\n" + r.Name)),
	}
}

func (r rank) compare(other rank) int {
	if r.elsewhere != other.elsewhere {
		if r.elsewhere {
			return 1
		}
		return -1
	}
	return bytes.Compare(r.hash[:], other.hash[:])
}
