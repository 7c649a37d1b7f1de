package nat

import (
	"hash/maphash"
	"net/netip"

	"golang.org/x/time/rate"
)

const (
	// answersRate and answersBurst bound the answers caused by one source.
	answersRate  = 1 // a second
	answersBurst = 20
	// answersShares is the number of rate limiters for the sources of one address family. It bounds
	// the memory and, with answersRate, the answers caused by all sources together.
	answersShares = 512
	// answersPrefix is the length of an IPv6 prefix that counts as one source, because its owner
	// can use any address in it.
	answersPrefix = 64
)

// answers limits the rate of answers by source. Sources are mapped to limiters by a random key, so
// that nobody can choose a source that shares the limiter of another. There is no overall limit: a
// few packets with forged sources would use it up. It is not safe for concurrent use.
type answers struct {
	key maphash.Seed
	// IPv4 and IPv6 are separate, because a single host may send from very many IPv6 networks.
	v4, v6 [answersShares]*rate.Limiter // nil: not used yet
}

func newAnswers() *answers { return &answers{key: maphash.MakeSeed()} }

// allow reports whether a request from this address is to be answered, and counts it if so.
func (a *answers) allow(from netip.Addr) bool {
	share := a.share(from)
	if *share == nil {
		*share = rate.NewLimiter(answersRate, answersBurst)
	}
	return (*share).Allow()
}

func (a *answers) share(from netip.Addr) **rate.Limiter {
	from = from.Unmap()
	shares := &a.v4
	if from.Is6() {
		network, _ := from.Prefix(answersPrefix) // never fails: an IPv6 address has 128 bits
		shares, from = &a.v6, network.Addr()
	}
	return &shares[maphash.Comparable(a.key, from)%answersShares]
}
