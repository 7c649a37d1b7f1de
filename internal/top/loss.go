package top

import (
	"fmt"

	"github.com/detour-collective/dcol/internal/api"
)

const (
	// lossSamples is the number of states over which loss is computed.
	lossSamples = 10
	// leastSegments is the least number of segments sent in that time for which the share is shown.
	leastSegments = 20
)

// segments counts the segments that this host sent on a subflow since it began, and how many it retransmitted.
type segments struct{ sent, again uint64 }

func (n segments) plus(more segments) segments {
	return segments{n.sent + more.sent, n.again + more.again}
}

// sentHistory remembers the last counts of a subflow. The zero value has none.
type sentHistory struct {
	counts [lossSamples + 1]segments
	n      int // number of counts added
}

func (h *sentHistory) add(s *api.Subflow) {
	h.counts[h.n%len(h.counts)] = segments{s.Segments, s.Retransmitted}
	h.n++
}

// lately returns the segments sent during the last lossSamples states.
func (h *sentHistory) lately() segments {
	if h.n == 0 {
		return segments{}
	}
	last := h.counts[(h.n-1)%len(h.counts)]
	first := h.counts[max(h.n-len(h.counts), 0)%len(h.counts)]
	if last.sent < first.sent || last.again < first.again {
		return segments{} // the kernel gave no counts
	}
	return segments{last.sent - first.sent, last.again - first.again}
}

// sent returns the segments of a row that were sent lately.
func (f *feed) sent(r *row) (sum segments) {
	h := f.conns[r.id.conn]
	if h == nil {
		return sum
	}
	for id, s := range h.subs {
		if r.sub == nil || id == r.id.sub {
			sum = sum.plus(s.sent.lately())
		}
	}
	return sum
}

// loss returns the share of segments that were retransmitted, or a dash if too few were sent.
func (n segments) loss() cell {
	if n.sent < leastSegments {
		return cell{"-", Dim}
	}
	share := min(float64(n.again)/float64(n.sent), 1)
	text := fmt.Sprintf("%.1f %%", 100*share)
	if share > 0.9995 {
		text = "100 %"
	}
	switch {
	case n.again == 0:
		return cell{text, Dim}
	case share >= 0.02:
		return cell{text, Warn}
	}
	return cell{text, Plain}
}
