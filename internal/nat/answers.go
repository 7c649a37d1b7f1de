package nat

import (
	"hash/maphash"
	"net/netip"

	"golang.org/x/time/rate"
)

const (
	// answersRate and answersBurst bound what one source can make a member send.
	answersRate  = 1 // a second
	answersBurst = 20
	// answersShares is how many shares the sources of an address family have between them. It bounds the
	// memory, and with answersRate what all sources together can make a member send.
	answersShares = 512
	// answersPrefix is what counts as one source in IPv6: whoever has a network there has as many addresses
	// as they like.
	answersPrefix = 64
)

// answers decides who gets an answer. Each source has a share, and several sources may have the same one.
// Which ones depends on a random key, so that nobody can choose a source that has the share of somebody else.
// There is no common allowance beside the shares: few packets with forged sources would use it up. Not for
// concurrent use.
type answers struct {
	key maphash.Seed
	// IPv4 and IPv6 have shares of their own: a single host may send from very many networks in IPv6.
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
