package client

import (
	"time"

	"github.com/detour-collective/dcol/internal/path"
)

const (
	// watchEvery is short in comparison with the silence that makes a detour suspect.
	watchEvery = 100 * time.Millisecond
	// sampleShare bounds the part of a core that sampling may take when there are very many subflows: one in this many.
	sampleShare = 50
	// leastRoom is the number of connections that a round of close samples includes however slow this host is.
	leastRoom = 16
	// eachAtFirst is the assumed time to sample a connection before the first round.
	eachAtFirst = 30 * time.Microsecond
	// paceLasts is the number of rounds over which the time to sample a connection is averaged.
	paceLasts = 32
)

// pace keeps rounds of close samples within their share of a core. With more connections, rounds come less often. If that
// is not enough, they include fewer connections.
type pace struct {
	took    time.Duration // in the last rounds
	sampled float64       // connections in the last rounds
}

// each returns the time that it takes to sample a connection.
func (p *pace) each() time.Duration {
	if p.sampled == 0 {
		return eachAtFirst
	}
	return max(time.Duration(float64(p.took)/p.sampled), time.Microsecond)
}

// room returns the number of connections that a round has time for.
func (p *pace) room() int {
	return max(leastRoom, int(path.LongestInterval/sampleShare/p.each()))
}

// next records a round, and returns the time until the next one. If a round took much longer than usual, this host was
// probably busy with something else, so it counts only in part.
func (p *pace) next(took time.Duration, sampled int) time.Duration {
	counts := took
	if p.sampled > 0 {
		counts = min(took, 2*time.Duration(sampled)*p.each())
	}
	p.took += counts - p.took/paceLasts
	p.sampled += float64(sampled) - p.sampled/paceLasts
	return min(max(watchEvery, sampleShare*took), path.LongestInterval)
}
