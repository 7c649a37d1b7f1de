package client

import (
	"fmt"
	"slices"

	"github.com/detour-collective/dcol/internal/api"
	"github.com/detour-collective/dcol/internal/path"
)

// mostEnded bounds the ended connections that are remembered.
const mostEnded = 512

// lately holds the connections that ended last.
type lately struct {
	ring []api.Ended
	next int
}

func (l *lately) add(e api.Ended) {
	if len(l.ring) < mostEnded {
		l.ring = append(l.ring, e)
		return
	}
	l.ring[l.next] = e
	l.next = (l.next + 1) % mostEnded
}

// list returns them, the earliest first.
func (l *lately) list() []api.Ended {
	return slices.Concat(l.ring[l.next:], l.ring[:l.next])
}

func tokenText(t path.Token) string { return fmt.Sprintf("%08x", uint32(t)) }
